"""The exceptions form the tree in the docstring, and each survives pickling."""

import copy
import inspect
import pickle
import re

import pytest

from shoal import errors
from shoal.errors import ShoalError, TaskError

SAMPLES = [
    errors.ShoalError("something"),
    errors.UsageError("wrong"),
    errors.SettingsError("unknown setting"),
    errors.WorkflowError("a cycle"),
    errors.PlanError("each task has one placement", "'a#0' has none"),
    errors.ReactionError("The reaction Late is broken"),
    errors.NotPicklable("argument 0 of 'clean'", "a lock"),
    errors.CodeTooLarge(70 * 2**20, 64 * 2**20, [("project/data", 60 * 2**20)]),
    errors.RunGoesOn("r1"),
    errors.UnknownRun("r1"),
    errors.NothingKept("r1"),
    errors.TaskError("clean#3", "w2", "ValueError: no", arguments="('a',)", not_run=["b#0"]),
    errors.TaskTimeout("clean#3", "w2", "it took longer than 3 s", remote_traceback="Traceback"),
    errors.OutOfMemory("clean#3", "w2", "MemoryError", not_run=["b#0", "c#0"]),
    errors.InputChanged("clean#3", "w2", "it changed argument 1 in place"),
    errors.WorkerDied("clean#3", "w2", "signal 9"),
    errors.RunEnded("over"),
    errors.RunCancelled("r1"),
    errors.RunTimeout("r1", 2.5, "3 of 5 tasks are done"),
    errors.RunStuck("r1", 60.0, "Task 'a#0' of worker w0 waits for b#0 of worker w1."),
    errors.PlatformError("broken"),
    errors.GatewayUnavailable("nobody there"),
    errors.GatewayRefused("no such function"),
    errors.GatewayBusy("too many requests"),
    errors.EnvironmentMismatch("Python 3.12 on the workers, 3.11 here"),
    errors.TokenRefused("http://127.0.0.1:8470", fixed=True),
    errors.StoreError("broken"),
    errors.StoreUnavailable("nobody there"),
    errors.StoreInterrupted("hung up"),
    errors.ShardUnavailable("nobody there"),
    errors.ShardLost("restarted without its data"),
    errors.StoreRefused("full"),
    errors.Tampered("a wrong signature"),
    errors.CodeLost("the archive is missing"),
    errors.RunOver("ended"),
    errors.RunLost("r1"),
    errors.HistoryError("/data/history-2.sqlite", "disk I/O error"),
    errors.HistoryLocked("/data/history-2.sqlite", "database is locked"),
    errors.HistoryUnavailable("the server at h:6379", "it can't be reached"),
    errors.HistoryTooNew("/data/history-2.sqlite", "a newer Shoal wrote it"),
    errors.HistoryDamaged("the store at host:6379", "no JSON", "nightly"),
    errors.NoThread("r1", "can't start new thread"),
    errors.UnsupportedSystem(),
    errors.RemoteTraceback("Traceback (most recent call last):\nValueError"),
    errors.ProtocolViolation("executed twice"),
]
MADE_FROM_FACTS = [sample for sample in SAMPLES if type(sample).__init__ is not Exception.__init__]

CLASSES = {
    found.__name__: found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, BaseException)
}


def test_every_exception_is_in_the_tree_drawn_in_the_docstring() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?: {2,}\S.*)?$", line):
            depth, name = len(match[1]) // 4, match[2]
            assert name not in drawn
            path[depth:] = [name]
            drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {name: found.__bases__[0].__name__ for name, found in CLASSES.items()}
    others = [base for found in CLASSES.values() for base in found.__bases__[1:]]
    assert others == [ImportError]  # `import shoal` raises it, so it is an ImportError


def test_there_is_a_sample_of_every_exception() -> None:
    assert {type(sample) for sample in SAMPLES} == set(CLASSES.values())


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_exception_survives_pickling(error: ShoalError, protocol: int) -> None:
    found = pickle.loads(pickle.dumps(error, protocol))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args
    assert vars(found) == vars(error)


@pytest.mark.parametrize("error", MADE_FROM_FACTS, ids=lambda error: type(error).__name__)
def test_an_exception_keeps_its_arguments_as_attributes(error: ShoalError) -> None:
    assert set(inspect.signature(type(error)).parameters) == set(vars(error))


def test_notes_survive_pickling_too() -> None:
    error = errors.UnknownRun("r1")
    error.add_note("the run was removed")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["the run was removed"]


def test_a_copy_does_not_share_its_attributes() -> None:
    error = errors.UnknownRun("r1")
    copied = copy.copy(error)
    copied.run = "r2"
    assert error.run == "r1"


def test_an_exception_of_a_users_subclass_survives_pickling() -> None:
    found = pickle.loads(pickle.dumps(Own(1, b=2)))
    assert (found.a, found.b, str(found)) == (1, 2, "1 and 2")


class Own(ShoalError):
    def __init__(self, a: int, *, b: int) -> None:
        self.a = a
        self.b = b
        super().__init__(f"{a} and {b}")


def test_a_task_error_says_what_failed_where_and_what_was_not_run() -> None:
    error = TaskError("resize#3", "w2", "ValueError: no", not_run=["a#0", "b#0", "c#0", "d#0"])
    assert str(error) == (
        "task 'resize#3' failed on worker w2: ValueError: no. "
        "4 tasks that need it were not run (a#0, b#0, c#0, …)."
    )


def test_a_task_error_speaks_of_one_task_in_the_singular() -> None:
    error = TaskError("resize#3", "w2", "It broke!", not_run=["a#0"])
    assert str(error) == (
        "task 'resize#3' failed on worker w2: It broke! 1 task that needs it was not run (a#0)."
    )


def test_a_task_error_ends_with_advice_arguments_and_the_workers_traceback() -> None:
    error = errors.OutOfMemory(
        "resize#3",
        "w2",
        "MemoryError",
        arguments="(photo, scale=2)",
        remote_traceback="Traceback (most recent call last):\n  …\n",
    )
    assert str(error).splitlines() == [
        "task 'resize#3' failed on worker w2: MemoryError.",
        "Give it more memory: @task(resources=Resources(memory_mb=…)).",
        "It was called with (photo, scale=2).",
        "On the worker:",
        "Traceback (most recent call last):",
        "  …",
    ]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("It can't be read: no such file..", "It can't be read: no such file."),
        ("It broke!. Try again..", "It broke! Try again."),
        ("Why?. Because", "Why? Because"),
        ("Wait... there is more....", "Wait... there is more...."),
        ("In .. or a/.. or v1..2.", "In .. or a/.. or v1..2."),
        ("(a sentence.). One more", "(a sentence.). One more"),
    ],
)
def test_a_message_ends_with_one_full_stop(said: str, shown: str) -> None:
    assert str(ShoalError(said)) == shown


def test_an_error_that_quotes_another_ends_with_one_full_stop() -> None:
    inner = errors.NotPicklable("an argument", "a lock.")
    outer = errors.HistoryError("/data", str(inner))
    for error in (inner, outer, TaskError("a#0", "w0", str(outer)), TaskError("a#0", "w0", "x.\n")):
        assert ".." not in str(error)
        assert "\n." not in str(error)


def test_worker_died_names_the_run_whose_logs_say_more() -> None:
    assert "`shoal logs 1115-r1`" in str(errors.WorkerDied("a#0", "w0", "signal 9", run="1115-r1"))
    assert "`shoal logs RUN`" in str(errors.WorkerDied("a#0", "w0", "signal 9"))
