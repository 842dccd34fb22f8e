"""What a user sees when something goes wrong, on the embedded default."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually, exists, outside, processes_mentioning
from shoal import Resources, Session, Task, task
from shoal.client.run import Run
from shoal.errors import (
    GatewayUnavailable,
    NotPicklable,
    OutOfMemory,
    RunCancelled,
    RunStuck,
    RunTimeout,
    StoreRefused,
    StoreUnavailable,
    TaskError,
    TaskTimeout,
    UsageError,
    WorkerDied,
)
from shoal.execution.plan import Placement, Plan
from shoal.planning.base import Conditions
from shoal.platform import limits
from shoal.platform.gateway import LocalGateway
from shoal.storage.embedded import server_binary
from shoal.storage.redis import RedisStore
from shoal.types import WorkerId
from shoal.workflow import Workflow

pytestmark = pytest.mark.real


@task
def add(*numbers: int) -> int:
    return sum(numbers)


@task
def fail(value: Any, note: str = "") -> None:
    raise ValueError(f"bad {value}")


@task
def throw(make: Callable[[], BaseException]) -> None:
    raise make()


@task
def end(how: Callable[[], Any]) -> Any:
    return how()


@task
def add_nothing(value: Any) -> Any:
    return value


@task
def held(lock: Any, late: None = None) -> bool:
    return isinstance(lock, type(threading.Lock()))


@task
def write_pid(folder: str) -> None:
    """Write the process id to a file, and run for a long time."""
    (Path(folder) / "unfinished").write_text(str(os.getpid()))
    (Path(folder) / "unfinished").rename(Path(folder) / "pid")
    time.sleep(300)


def pid_in(folder: Path) -> int:
    """Return the process of a `write_pid` task, once it runs."""
    assert eventually(lambda: (folder / "pid").exists())
    return outside(int((folder / "pid").read_text()))


def failure(session: Session, *outputs: Any, **options: Any) -> TaskError:
    with pytest.raises(TaskError) as caught:
        session.compute(*outputs, **options)
    return caught.value


# A task raises.


def test_a_task_error_contains_everything_known(session: Session) -> None:
    error = failure(session, add(1, add(fail(7, note="x" * 200), add(2, 3))))
    assert type(error).__name__ == "TaskError(ValueError)"
    assert error.task == "fail#0"
    assert re.fullmatch(r"w\d+", error.worker)
    assert error.reason == "ValueError: bad 7"
    assert error.arguments.startswith("(7, note='xxx")
    assert len(error.arguments) < 100
    assert error.not_run == ("add#1", "add#2")
    assert 'raise ValueError(f"bad {value}")' in error.remote_traceback
    assert "shoal/worker" not in error.remote_traceback
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.args == ("bad 7",)
    for part in ("fail#0", "ValueError: bad 7", "add#1, add#2", "On the worker", "called with (7"):
        assert part in str(error)


def test_a_failure_is_caught_as_what_the_task_raised(session: Session) -> None:
    with pytest.raises(ValueError, match="task 'fail#0' failed") as caught:
        session.compute(fail(7))
    assert isinstance(caught.value, TaskError)
    assert caught.value.args == ("bad 7",)
    with pytest.raises(FileNotFoundError) as missing:
        session.compute(Task(open)("/there/is/no/such/file"))
    assert missing.value.filename == "/there/is/no/such/file"
    with pytest.raises(NotPicklable, match="task 'end#0' failed"):
        session.compute(end(threading.Lock))
    with pytest.raises(OutOfMemory) as out:
        session.compute(throw(MemoryError))
    assert isinstance(out.value, MemoryError)


def test_a_task_error_shows_outputs_among_the_arguments_as_such(session: Session) -> None:
    assert failure(session, fail(add(1, 2))).arguments == "(<output of add#0>)"


def test_the_session_works_after_a_failure(session: Session) -> None:
    for _ in range(3):
        failure(session, fail(1))
        assert session.compute(add(1, 2)) == [3]


def test_a_failure_is_raised_again_each_time_the_result_is_asked_for(session: Session) -> None:
    run = session.submit(fail(1))
    for _ in range(2):
        with pytest.raises(TaskError, match="bad 1"):
            run.result(TIMEOUT)
    assert run.status().state == "failed"


class Locked(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Picky(Exception):
    def __init__(self, code: int, *, text: str) -> None:
        super().__init__(f"{code} {text}")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Homesick(Exception):
    """An exception that can be unpickled only where it was created."""

    def __reduce__(self) -> Any:
        return _only_in, (os.getpid(),)


def _only_in(pid: int) -> Homesick:
    if os.getpid() != pid:
        raise ImportError("not here")
    return Homesick("far away")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Locked("does not pickle"), "Locked: does not pickle"),
        (lambda: Picky(4, text="does not unpickle"), "Picky: 4 does not unpickle"),
        (lambda: Homesick("far away"), "Homesick: far away"),
        (lambda: Mute(), "Mute"),
        (lambda: SystemExit(5), "SystemExit: 5"),
        (lambda: KeyboardInterrupt(), "KeyboardInterrupt"),
        (lambda: GeneratorExit(), "GeneratorExit"),
        (lambda: RunTimeout("run", 1.0, "state"), "RunTimeout: run run had no result"),
        (lambda: MemoryError("huge"), "MemoryError: huge"),
    ],
)
def test_any_exception_arrives_in_some_form(
    session: Session, make: Callable[[], BaseException], reason: str
) -> None:
    error = failure(session, throw(make))
    assert error.reason.startswith(reason)
    assert error.__cause__ is not None
    assert session.compute(add(1)) == [1]


def test_an_unpicklable_exception_is_replaced_by_one_that_describes_it(
    session: Session,
) -> None:
    error = failure(session, throw(lambda: Locked("does not pickle")))
    assert type(error.__cause__) is RuntimeError
    assert str(error.__cause__) == "Locked: does not pickle"
    assert "Locked: does not pickle" in error.remote_traceback


def test_a_memory_error_comes_with_advice(session: Session) -> None:
    error = failure(session, throw(lambda: MemoryError()))
    assert isinstance(error, OutOfMemory)
    assert isinstance(error.__cause__, MemoryError)
    assert "Resources(memory_mb=" in str(error)


def test_the_first_of_several_failures_ends_the_run(session: Session) -> None:
    error = failure(session, add(*[fail(number) for number in range(10)]), workers=4)
    assert error.not_run == ("add#0",)


# A task ends its process.


def test_a_task_that_ends_its_process_is_named_with_the_exit_code(session: Session) -> None:
    run = session.submit(add(end(lambda: os._exit(3)), 1))
    with pytest.raises(WorkerDied) as caught:
        run.result(TIMEOUT)
    error = caught.value
    assert error.task == "end#0"
    assert "exit code 3" in error.reason
    assert error.not_run == ("add#0",)
    assert f"`shoal logs {run.id}` shows" in str(error)


def test_a_task_that_kills_its_process_is_named_with_the_signal(session: Session) -> None:
    error = failure(session, end(lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert type(error) is WorkerDied
    assert error.task == "end#0"
    assert "signal 9" in error.reason


def test_a_crash_of_the_interpreter_is_named_with_the_signal(session: Session) -> None:
    error = failure(session, end(lambda: ctypes.string_at(0)))
    assert type(error) is WorkerDied
    assert "signal 11" in error.reason


def test_a_worker_that_is_killed_from_outside_is_named(session: Session, tmp_path: Path) -> None:
    run = session.submit(add(write_pid(str(tmp_path))))
    os.kill(pid_in(tmp_path), signal.SIGSEGV)
    with pytest.raises(WorkerDied, match=r"write_pid#0.*signal 11") as caught:
        run.result(TIMEOUT)
    assert caught.value.not_run == ("add#0",)


@task(resources=Resources(memory_mb=256, cpus=1))
def allocate(megabytes: int) -> int:
    held = b"x" * (megabytes * 1024 * 1024)
    if megabytes > 256:
        time.sleep(TIMEOUT)  # a watched sandbox is killed soon, not at once
    return len(held)


def test_exceeding_the_memory_limit_is_an_error_with_the_limit_and_advice(session: Session) -> None:
    error = failure(session, add(allocate(1024), 1), restarts=0, memory_mb=256)
    assert isinstance(error, OutOfMemory)
    assert error.task == "allocate#0"
    assert error.not_run == ("add#0",)
    assert "@task(resources=Resources(memory_mb=…))" in str(error)
    if limits.detect().kind != "rlimit":
        assert "memory limit of 256 MB" in error.reason
    assert session.compute(allocate(16)) == [16 * 1024 * 1024]


# A task takes too long.


@task(timeout=1)
def linger(how: Callable[[], Any]) -> Any:
    return how()


def sleep_in_c() -> None:
    ctypes.CDLL(None).usleep(60_000_000)


def sleep_with_the_interpreter_locked() -> None:
    ctypes.PyDLL(None).usleep(60_000_000)


def spin() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    "how", [lambda: time.sleep(60), sleep_in_c, sleep_with_the_interpreter_locked, spin]
)
def test_a_task_that_exceeds_its_timeout_fails(session: Session, how: Callable[[], None]) -> None:
    error = failure(session, add(linger(how), 1))
    assert isinstance(error, TaskTimeout)
    assert error.task == "linger#0"
    assert "longer than 1 s" in error.reason
    assert error.not_run == ("add#0",)
    assert "@task(timeout=…)" in str(error)
    assert session.compute(add(1, 2)) == [3]


def test_a_timeout_ends_the_run_even_if_other_tasks_are_running(session: Session) -> None:
    nap = Task(time.sleep, name="nap")
    outputs = [linger(lambda: time.sleep(60)), *[nap(0.01) for _ in range(20)]]
    error = failure(session, *outputs, workers=1, memory_mb=4096)
    assert isinstance(error, TaskTimeout)
    assert error.task == "linger#0"


def test_tasks_that_stay_within_their_timeout_are_left_alone(session: Session) -> None:
    values = [linger(lambda number=number: number) for number in range(200)]
    assert session.compute(*values) == list(range(200))


def test_a_worker_whose_tasks_have_timeouts_is_woken_by_messages(
    session: Session,
) -> None:
    """1. Its slot has nothing to do and waits. 2. A task arrives. 3. The slot has to be woken, not
    only the thread that waits for the worker's end."""

    def slowly(number: int) -> int:
        time.sleep(0.05)
        return number

    limited = Task(slowly, name="limited", timeout=60)
    rounds = [limited(number) for number in range(4)]
    for _ in range(4):
        rounds = [limited(Task(sum, name="total")([*rounds, number])) for number in range(4)]
    assert len(session.compute(*rounds, workers=4)) == 4


@task(timeout=2, retries=1)
def late_at_first(folder: str) -> str:
    path = Path(folder) / "late"
    if not path.exists():
        path.touch()
        time.sleep(60)
    return "in time"


def test_a_task_that_exceeded_its_timeout_can_be_retried(session: Session, tmp_path: Path) -> None:
    assert session.compute(late_at_first(str(tmp_path))) == ["in time"]


# Retries.


def tried(folder: str) -> int:
    """Return the number of this attempt."""
    with open(Path(folder) / "tries", "a") as file:
        file.write(f"{time.monotonic()}\n")
    return len((Path(folder) / "tries").read_text().splitlines())


@task(retries=2)
def fail_twice(folder: str) -> int:
    count = tried(folder)
    if count <= 2:
        raise OSError(f"try {count}")
    return count


@task(retries=2)
def fail_always(folder: str) -> None:
    raise OSError(f"try {tried(folder)}")


def test_a_task_that_fails_twice_is_retried_with_growing_pauses(
    session: Session, tmp_path: Path
) -> None:
    assert session.compute(add(fail_twice(str(tmp_path)), 10)) == [13]
    first, second, third = map(float, (tmp_path / "tries").read_text().splitlines())
    assert second - first >= 0.05
    assert third - second >= 0.1


def test_when_retries_are_exhausted_the_last_failure_counts(
    session: Session, tmp_path: Path
) -> None:
    error = failure(session, fail_always(str(tmp_path)))
    assert error.reason == "OSError: try 3"
    assert len((tmp_path / "tries").read_text().splitlines()) == 3


# Something can't be pickled.


def test_an_unpicklable_function_is_named_before_anything_runs(
    session: Session, tmp_path: Path
) -> None:
    lock = threading.Lock()

    @task
    def locked(value: int) -> int:
        with lock:
            return value

    ran = Task(lambda: (tmp_path / "ran").touch(), name="ran")
    with pytest.raises(NotPicklable, match=r"the function of task 'locked'.*lock"):
        session.compute(locked(1), ran())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("given", "named", "where"),
    [
        ((1, threading.Lock()), {}, "argument 2 of task 'add#0'"),
        ((1,), {"key": threading.Lock()}, "argument 'key' of task 'add#0'"),
        (([1, {"deep": threading.Lock()}],), {}, "argument 1 of task 'add#0'"),
        ((), {"big": [b"x" * 100_000, threading.Lock()]}, "argument 'big' of task 'add#0'"),
    ],
)
def test_an_unpicklable_argument_is_named(
    session: Session, given: tuple[Any, ...], named: dict[str, Any], where: str
) -> None:
    with pytest.raises(NotPicklable) as caught:
        session.compute(add(*given, **named))
    assert where in str(caught.value)
    assert "inside the task" in str(caught.value)


def test_an_unpicklable_output_is_named(session: Session) -> None:
    error = failure(session, end(threading.Lock))
    assert error.task == "end#0"
    assert "the output of task 'end#0' can't be sent" in error.reason
    assert isinstance(error.__cause__, NotPicklable)


@pytest.mark.parametrize("planner", ["spread", "wukong"])
def test_an_unpicklable_sink_with_an_unpicklable_input_fails_at_once(
    session: Session, planner: str
) -> None:
    error = failure(session, add_nothing(end(threading.Lock)), workers=1, planner=planner)
    assert error.task == "add_nothing#0"
    assert "the output of task 'add_nothing#0' can't be sent" in error.reason
    assert isinstance(error.__cause__, NotPicklable)
    assert session.compute(add(1, 2)) == [3]


def test_an_unpicklable_output_is_not_retried(session: Session, tmp_path: Path) -> None:
    def lock() -> Any:
        with (tmp_path / "tries").open("a") as tries:
            tries.write("x")
        return threading.Lock()

    failure(session, Task(lock, retries=3)())
    assert (tmp_path / "tries").read_text() == "x"


def test_an_unpicklable_output_keeps_its_worker_from_parking(
    session: Session, tmp_path: Path
) -> None:
    """Its worker would park if it could."""

    class Placed:
        def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
            assignment = {"late#0": WorkerId("w1")}
            placements = {
                task: Placement(assignment.get(task, WorkerId("w0")), conditions.resources)
                for task in workflow.calls
            }
            return Plan(workflow, placements, linger=0.01)

    late = Task(time.sleep, name="late")(1.0)
    assert session.compute(held(end(threading.Lock), late), planner=Placed(), restarts=0) == [True]


@pytest.mark.parametrize("planner", ["spread", "wukong"])
def test_an_unpicklable_output_is_named_if_its_worker_has_to_leave(planner: str) -> None:
    def lock() -> Any:
        time.sleep(2.2)
        return threading.Lock()

    with Session(workers=1, function_seconds=3.0) as session:
        error = failure(session, held(Task(lock)()), planner=planner)
    assert isinstance(error.__cause__, NotPicklable)
    assert "can't be sent to another process" in error.reason


def test_a_generator_can_be_used_on_the_same_worker_but_not_sent(session: Session) -> None:
    count = Task(lambda: (number for number in range(4)), name="count")
    assert session.compute(Task(sum, name="total")(count()), workers=1) == [6]
    with pytest.raises(TaskError, match="the output of task 'count#0' can't be sent"):
        session.compute(count())


def test_none_is_an_output_like_any_other(session: Session) -> None:
    nothing = Task(lambda *given: None, name="nothing")
    shown = Task(repr, name="shown")
    assert session.compute(nothing(), shown(nothing(nothing()))) == [None, "None"]


def test_a_task_cannot_return_outputs(session: Session) -> None:
    with pytest.raises(TaskError, match="has not been computed"):
        session.compute(end(lambda: add(1, 2)))


# Printing.


def test_a_task_that_prints_a_lot_is_not_blocked(session: Session) -> None:
    def shout() -> str:
        for number in range(20_000):
            print(number, "x" * 60)
        return "done"

    run = session.submit(Task(shout)())
    assert run.result(TIMEOUT) == "done"
    lines = run.logs()
    assert [line.text.split()[0] for line in lines] == [str(number) for number in range(20_000)]
    assert {line.stream for line in lines} == {"stdout"}


def test_output_printed_before_a_crash_is_kept(session: Session) -> None:
    def gasp() -> None:
        print("last words", file=sys.stderr)
        os._exit(1)

    run = session.submit(Task(gasp)())
    with pytest.raises(WorkerDied):
        run.result(TIMEOUT)
    assert [(line.stream, line.text) for line in run.logs()] == [("stderr", "last words")]


# Store or gateway can't be reached.


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_an_unreachable_store_is_an_immediate_error(tmp_path: Path) -> None:
    for store in (f"redis://127.0.0.1:{free_port()}", f"unix://{tmp_path}/none.sock"):
        with pytest.raises(StoreUnavailable, match=r"can't be reached.*Is the server running"):
            Session(store=store)


@pytest.fixture
def locked_store(tmp_path: Path) -> Iterator[str]:
    """The port of a server that requires a password."""
    port = free_port()
    options = f"--port {port} --bind 127.0.0.1 --requirepass secret --save --dir {tmp_path}"
    server = subprocess.Popen([server_binary(), *options.split(" ")], stdout=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_a_wrong_password_is_an_error_that_does_not_show_it(locked_store: str) -> None:
    def connected() -> bool:
        with contextlib.suppress(StoreUnavailable):
            RedisStore(f"redis://:secret@{locked_store}").disconnect()
            return True
        return False

    assert eventually(connected)
    for url in (f"redis://:wrong@{locked_store}", f"redis://{locked_store}"):
        with pytest.raises(StoreRefused, match="rejected the login") as caught:
            Session(store=url)
        assert "wrong@" not in str(caught.value)
    with Session(store=f"redis://:secret@{locked_store}", workers=1) as session:
        assert session.compute(add(1, 2)) == [3]


def test_an_unreachable_gateway_is_an_immediate_error() -> None:
    with pytest.raises(GatewayUnavailable, match=r"can't be reached.*shoal gateway"):
        Session(platform=f"http://127.0.0.1:{free_port()}", token="token")


def test_a_wrong_token_is_an_immediate_error(session: Session) -> None:
    url, token = session.platform.address  # type: ignore[attr-defined]
    with pytest.raises(GatewayUnavailable, match="rejected the token"):
        Session(platform=url, token=token + "x")
    with Session(platform=url, token=token, workers=2) as other:
        assert other.compute(add(add(1), add(2))) == [3]


def test_a_failed_session_leaves_no_process(private_folder: Path, session: Session) -> None:
    before = processes_mentioning(str(private_folder)).keys()
    with pytest.raises(StoreUnavailable):
        Session(store=f"redis://127.0.0.1:{free_port()}")
    assert processes_mentioning(str(private_folder)).keys() <= before


def test_a_store_that_disappears_during_a_run_ends_it(tmp_path: Path) -> None:
    port = free_port()
    options = f"--port {port} --bind 127.0.0.1 --save --dir {tmp_path}"
    server = subprocess.Popen([server_binary(), *options.split(" ")], stdout=subprocess.DEVNULL)
    try:
        url = f"redis://127.0.0.1:{port}"
        assert eventually(lambda: answers(url))
        with Session(store=url, workers=1, reconnect_seconds=0.5) as session:
            run = session.submit(write_pid(str(tmp_path)))
            pid = pid_in(tmp_path)
            server.kill()
            with pytest.raises(StoreUnavailable, match=r"has not answered for 0\.\d s"):
                run.result(TIMEOUT)
            assert not exists(pid)
    finally:
        server.kill()
        server.wait()


def answers(url: str) -> bool:
    try:
        RedisStore(url).disconnect()
    except StoreUnavailable:
        return False
    return True


# Cancelling, closing and killing.


def keys(session: Session) -> list[bytes]:
    """Return the keys in the store, without those that other tests left to expire."""
    store = session.store
    assert isinstance(store, RedisStore)
    found: list[bytes] = store._call([["KEYS", "shoal:*"]])[0]
    return sorted(key for key in found if not key.startswith(b"shoal:{test-"))


def test_cancel_stops_the_workers_and_leaves_nothing(session: Session, tmp_path: Path) -> None:
    output = add(write_pid(str(tmp_path)), *[add(n) for n in range(10)])
    run = session.submit(output, keep_seconds=0)
    pid = pid_in(tmp_path)
    assert run.status().state == "running"
    run.cancel()
    assert not exists(pid)
    assert run.status().state == "cancelled"
    with pytest.raises(RunCancelled, match=run.id):
        run.result()
    assert not [key for key in keys(session) if run.id.encode() in key]
    run.cancel()
    assert session.compute(add(1)) == [1]


def test_cancelling_an_ended_run_changes_nothing(session: Session) -> None:
    run = session.submit(add(1, 2))
    assert run.result(TIMEOUT) == 3
    run.cancel()
    assert run.result() == 3
    assert run.status().state == "done"


def test_cancelling_a_waiting_run_leaves_others_alone(tmp_path: Path) -> None:
    def await_go(folder: str) -> str:
        (Path(folder) / "begun").touch()
        assert eventually(lambda: (Path(folder) / "go").exists())
        return "went"

    with Session(sandboxes=1, workers=1) as session:
        first = session.submit(Task(await_go)(str(tmp_path)))
        assert eventually(lambda: (tmp_path / "begun").exists())
        second = session.submit(Task(lambda: (tmp_path / "ran").touch(), name="other")())
        second.cancel()
        with pytest.raises(RunCancelled):
            second.result()
        (tmp_path / "go").touch()
        assert first.result(TIMEOUT) == "went"
    assert not (tmp_path / "ran").exists()


def test_closing_a_session_cancels_its_runs(tmp_path: Path) -> None:
    with Session(workers=1) as session:
        run = session.submit(write_pid(str(tmp_path)))
        pid = pid_in(tmp_path)
    assert not exists(pid)
    with pytest.raises(RunCancelled):
        run.result(TIMEOUT)
    with pytest.raises(UsageError, match="closed"):
        session.compute(add(1))
    session.close()


def test_closing_a_session_right_after_submit_ends_the_run() -> None:
    """1. A run is submitted. 2. The session is closed before the run's thread has started."""
    for _ in range(5):
        with Session(workers=1) as session:
            run = session.submit(Task(time.sleep, name="sleep")(60))
        with pytest.raises(RunCancelled):
            run.result(TIMEOUT)


def test_a_timeout_of_compute_cancels_the_run(session: Session, tmp_path: Path) -> None:
    with pytest.raises(RunTimeout, match=r"no result after 0\.5 s"):
        session.compute(write_pid(str(tmp_path)), timeout=0.5)
    assert isinstance(session.platform, LocalGateway)
    assert session.platform.status()["busy"] == 0


SCRIPT = """
import os, sys, time
from pathlib import Path
import shoal

@shoal.task
def write_pid(folder):
    (Path(folder) / "unfinished").write_text(str(os.getpid()))
    (Path(folder) / "unfinished").rename(Path(folder) / "pid")
    time.sleep(300)

if __name__ == "__main__":
"""


@contextlib.contextmanager
def script(folder: Path, *lines: str) -> Iterator[subprocess.Popen[str]]:
    """Start a client in a separate process group, and wait until its task runs."""
    path = folder / "script.py"
    path.write_text(SCRIPT + "\n".join(f"    {line}" for line in lines))
    process = subprocess.Popen(
        [sys.executable, str(path), str(folder)],
        env=dict(os.environ) | {"OF_TEST": str(folder), "SHOAL_PASS_VARIABLES": "OF_TEST"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            pid_in(folder)
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return a script's exit code and output, once it has ended."""
    said, _ = process.communicate(timeout=TIMEOUT)
    return process.returncode, said


def of_client(folder: Path) -> dict[int, str]:
    """Return the processes of a script, without the server that it shares with this process."""
    found = processes_mentioning(f"OF_TEST={folder}")
    return {pid: text for pid, text in found.items() if "valkey" not in text}


@pytest.mark.parametrize(
    "compute",
    [
        "write_pid(sys.argv[1]).compute()",
        "write_pid(sys.argv[1]).compute(progress=True)",
        "write_pid(sys.argv[1]).compute(timeout=200)",
        "write_pid(sys.argv[1]).submit().result()",
    ],
)
def test_ctrl_c_ends_a_client_promptly_and_leaves_nothing(
    session: Session, tmp_path: Path, compute: str
) -> None:
    before = keys(session)
    with script(tmp_path, compute) as client:
        worker = pid_in(tmp_path)
        assert len(keys(session)) > len(before)
        os.killpg(client.pid, signal.SIGINT)
        code, said = ended(client)
    assert code in (-signal.SIGINT, 1)  # 1 if Python imports anything later
    assert re.search(r"\nKeyboardInterrupt\n(Completed outputs are kept: .*\n)?\Z", said)
    assert not exists(worker)
    assert eventually(lambda: not of_client(tmp_path))
    assert keys(session) == before


def test_after_ctrl_c_a_session_can_be_used_again(session: Session, tmp_path: Path) -> None:
    lines = (
        "try:",
        "    write_pid(sys.argv[1]).compute(progress=True)",
        "except KeyboardInterrupt:",
        "    print('interrupted')",
        "for _ in range(3):",
        "    print(shoal.task(max)(1, 2).compute())",
    )
    with script(tmp_path, *lines) as client:
        os.killpg(client.pid, signal.SIGINT)
        _, said = ended(client)  # not 0 if an import was interrupted
    assert said.split()[-4:] == ["interrupted", "2", "2", "2"]


def test_a_killed_client_leaves_no_process(session: Session, tmp_path: Path) -> None:
    with script(tmp_path, "write_pid(sys.argv[1]).compute()") as client:
        worker = pid_in(tmp_path)
        client.kill()
        assert ended(client)[0] == -signal.SIGKILL
    assert eventually(lambda: not exists(worker))
    assert eventually(lambda: not of_client(tmp_path))
    assert session.compute(add(1)) == [1]


def test_the_server_ends_when_its_last_client_is_killed(tmp_path: Path) -> None:
    """It has its own runtime folder, so nobody else uses the server."""
    folder = tmp_path / "r"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with script(tmp_path, "write_pid(sys.argv[1]).compute()") as client:
            assert any("valkey" in text for text in processes_mentioning(str(folder)).values())
            client.kill()
    assert eventually(lambda: not processes_mentioning(str(folder)))


def test_a_script_that_exits_during_a_run_ends_it(session: Session, tmp_path: Path) -> None:
    before = keys(session)
    lines = (
        "write_pid(sys.argv[1]).submit()",
        "while not (Path(sys.argv[1]) / 'pid').exists(): time.sleep(0.01)",
        "print('over')",
    )
    with script(tmp_path, *lines) as client:
        assert ended(client) == (0, "over\n")
    assert eventually(lambda: not of_client(tmp_path))
    assert keys(session) == before


# The platform loses workers.


class Forgetful:
    """A platform that accepts invocations and loses them."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def invoke(self, context: Any, starts: Any) -> None:
        """Do nothing."""


class Away(Forgetful):
    """A platform that becomes unreachable after some invocations."""

    def __init__(self, platform: Any, left: int) -> None:
        super().__init__(platform)
        self._left = left

    def invoke(self, context: Any, starts: Any) -> None:
        """Do nothing so many times, then fail."""
        self._left -= 1
        if self._left < 0:
            raise GatewayUnavailable("nobody is there")

    def running(self, run: Any) -> Any:
        """Fail like `invoke`."""
        raise GatewayUnavailable("nobody is there")


class Returning(Away):
    """A platform that loses an invocation, is unreachable, and comes back."""

    def invoke(self, context: Any, starts: Any) -> None:
        """Do nothing, then fail, then work."""
        self._left -= 1
        if self._left == 0:
            raise GatewayUnavailable("nobody is there")
        if self._left < 0:
            self._platform.invoke(context, starts)


def test_a_run_continues_when_its_gateway_is_back(session: Session) -> None:
    with Session(store=session.store, platform=Returning(session.platform, 2)) as patient:
        assert patient.compute(add(1), lease=0.2, restarts=1000, timeout=TIMEOUT) == [1]


def test_an_error_about_a_gateway_that_stays_away_names_it_instead_of_workers(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.execution.restart_policy.PLATFORM_GRACE_PERIOD", 0.5)
    with (
        Session(store=session.store, platform=Away(session.platform, 1)) as lonely,
        pytest.raises(GatewayUnavailable, match="nobody is there"),
    ):
        lonely.compute(add(1), lease=0.1, restarts=1000)


def test_a_run_that_could_not_start_leaves_nothing(session: Session) -> None:
    away: Any = Away(session.platform, 0)
    before = session.store._call([["KEYS", "*"]])  # type: ignore[attr-defined]
    with Session(store=session.store, platform=away) as lonely:
        with pytest.raises(GatewayUnavailable, match="nobody is there"):
            lonely.compute(add(1))
        assert lonely.store._call([["KEYS", "*"]]) == before  # type: ignore[attr-defined]


def test_a_run_whose_workers_never_start_does_not_wait_forever(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.execution.restart_policy.STUCK_SECONDS", 0.0)
    with (
        Session(store=session.store, platform=Forgetful(session.platform)) as forgetful,
        pytest.raises((WorkerDied, RunStuck), match=r"no sign of life, again and again|is stuck"),
    ):
        forgetful.compute(add(1), lease=0.1, restarts=0)


def test_a_stuck_run_names_what_it_waits_for(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.execution.restart_policy.STUCK_SECONDS", 0.0)
    output = add(add(1), add(2))
    waits = r"Task 'add#2' of worker w\d waits for add#\d of worker w\d"
    with (
        Session(store=session.store, platform=Forgetful(session.platform)) as forgetful,
        pytest.raises(RunStuck, match=waits),
    ):
        forgetful.compute(output, planner="spread", workers=2, lease=0.1, restarts=1000)


def test_final_messages_are_sent_however_long_that_takes() -> None:
    """1. A task with a timeout returns. 2. Its slot sends the last messages slowly.
    3. The worker ends.

    The sandbox must not be killed between 2 and 3, or the last message would be lost.
    """
    with Session(workers=2, latency=0.2) as session:
        limited = Task(lambda number: number, name="limited", timeout=60)
        run: Run = session.submit(*[limited(number) for number in range(4)], memory_mb=4096)
        assert run.result(TIMEOUT) == [0, 1, 2, 3]
        assert {span.task for span in run.timeline.of_kind("execute")} == {*run.workflow.calls}


def test_only_the_exceptions_in_retry_on_are_retried(session: Session, tmp_path: Path) -> None:
    def fail(folder: str, kind: type[Exception]) -> None:
        (Path(folder) / f"{kind.__name__}.{time.time_ns()}").touch()
        raise kind("as told")

    fickle = Task(fail, retries=2, retry_on=(ConnectionError, TimeoutError))
    for kind, tries in ((TimeoutError, 3), (ValueError, 1)):
        assert "as told" in failure(session, fickle(str(tmp_path), kind)).reason
        assert len(list(tmp_path.glob(f"{kind.__name__}.*"))) == tries
    with pytest.raises(UsageError, match="takes exception classes"):
        Task(fail, retry_on=("ValueError",))  # type: ignore[arg-type]


# Environment variables.


@task
def variable(name: str) -> str:
    return os.environ[name]


def test_a_missing_environment_variable_is_explained(session: Session) -> None:
    with pytest.raises(TaskError, match=r"KeyError: 'MY_PLACE'") as failure:
        session.compute(variable("MY_PLACE"))
    assert "not given the environment variable 'MY_PLACE'" in str(failure.value)
    assert "pass_variables='MY_PLACE'" in str(failure.value)
    cause = failure.value.__cause__
    assert isinstance(cause, KeyError)
    assert "pass_variables" in cause.__notes__[0]


def test_a_variable_can_be_passed_by_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PLACE", "here")
    with Session(workers=1, pass_variables="YOUR_*, MY_*") as session:
        assert session.compute(variable("MY_PLACE")) == ["here"]
