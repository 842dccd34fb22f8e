"""Workflows on the embedded default: results are right, and every task runs where planned."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal
from observing import TIMEOUT, eventually, processes_mentioning
from shoal import DAGTask, Output, PreLoadOptimization, Resources, Session, Task, Workflow, task
from shoal.engine import default_engine
from shoal.errors import RunTimeout, UsageError
from shoal.execution.costs import Costs, Direction
from shoal.execution.plan import Placement, Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import Simulation
from shoal.metadata.predictions import DefaultCosts
from shoal.planning.base import Conditions
from shoal.planning.spread import SpreadPlanner
from shoal.platform.gateway import LocalGateway
from shoal.storage.codec import decode
from shoal.storage.keys import signed_output
from shoal.storage.redis import RedisStore
from shoal.types import TaskId, WorkerId
from shoal.worker.package import pack
from shoal.workflow import Ref

pytestmark = pytest.mark.real


@task
def add(*numbers: Any) -> Any:
    return sum(numbers)


@task
def identity(value: Any) -> Any:
    return value


class PlacedPlanner:
    """A planner with given placements: the worker's number for each task's number."""

    def __init__(
        self,
        assignment: list[int],
        *,
        linger: float | None = 0.5,
        resources: Mapping[int, Resources] | None = None,
    ) -> None:
        self._assignment = assignment
        self._linger = linger
        self._resources = resources or {}

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Place the first task as the first number says, and so on."""
        placements = {
            task: Placement(WorkerId(f"w{owner}"), self._resources.get(owner, conditions.resources))
            for task, owner in zip(workflow.calls, self._assignment, strict=True)
        }
        return Plan(workflow, placements, self._linger, planner="planned")


# Results.


@DAGTask
def load(path: str) -> list[int]:
    return [len(path)]


@DAGTask(forced_optimizations=[PreLoadOptimization()])
def left(values: list[int]) -> int:
    return values[0] + 1


@DAGTask
def right(values: list[int]) -> int:
    return values[0] * 2


@DAGTask(forced_optimizations=[PreLoadOptimization()])
def join(one: int, other: int) -> tuple[int, int]:
    return one, other


def test_the_papers_diamond_runs_as_printed() -> None:
    values = load("path")
    result = join(left(values), right(values))
    try:
        assert result.compute() == (5, 8)
        assert result.submit().result(TIMEOUT) == (5, 8)
    finally:
        default_engine.close()


def test_several_outputs_are_computed_in_one_run() -> None:
    common = add(1, 2)
    try:
        assert shoal.compute(common, add(common, 1), common) == [3, 4, 3]
        assert shoal.submit(common, add(common, 1)).result(TIMEOUT) == [3, 4]
    finally:
        default_engine.close()


def test_a_list_of_outputs_is_computed_as_a_list() -> None:
    increment = Task(lambda n: n + 1, name="increment")
    assert shoal.compute([increment(1), increment(2)]) == [2, 3]
    assert shoal.submit([increment(1), increment(2)]).result() == [2, 3]
    assert shoal.compute([increment(1)]) == [2]


@pytest.mark.parametrize("name", [3, b"nightly", ["nightly"]])
def test_a_name_that_is_no_string_is_rejected(session: Session, name: Any) -> None:
    output = Task(int, name="zero")()
    for refuse in (session.compute, session.submit, session.plan, shoal.compute):
        with pytest.raises(UsageError, match=r"name=.*: must be a string"):
            refuse(output, name=name)


def test_options_of_one_call_do_not_affect_the_next() -> None:
    try:
        for memory_mb, found in ((1800, 1800), (None, 2048), (1900, 1900), (None, 2048)):
            options = {} if memory_mb is None else {"memory_mb": memory_mb, "workers": 1}
            run = add(1).submit(**options)
            assert run.result(TIMEOUT) == 1
            assert run.plan.placements[TaskId("add#0")].resources.memory_mb == found
    finally:
        default_engine.close()


def test_a_call_may_name_its_store_and_platform(session: Session) -> None:
    url, token = session.platform.address  # type: ignore[attr-defined]
    output = add(add(1), add(2))
    try:
        assert output.compute(store=session.store.url, platform=url, token=token) == 3
        assert output.compute(store=session.store, platform=session.platform) == 3
    finally:
        default_engine.close()
    assert session.compute(output) == [3]


def test_an_output_used_twice_is_computed_once(session: Session, tmp_path: Path) -> None:
    def once(folder: str) -> int:
        (Path(folder) / "once").touch(exist_ok=False)
        return 1

    output = Task(once)(str(tmp_path))
    assert session.compute(add(output, output, add(output)), output) == [3, 1]


def test_arguments_may_hold_outputs_at_any_depth(session: Session) -> None:
    one, two = add(1), add(2)
    nested = {"list": [one, (two, {"deep": [one]})], "plain": [1, 2], "name": two}
    filled = {"list": [1, (2, {"deep": [1]})], "plain": [1, 2], "name": 2}
    keep = Task(lambda *args, **kwargs: (args, kwargs), name="keep")
    assert session.compute(keep(nested, 7, by_name=nested, last=one)) == [
        ((filled, 7), {"by_name": filled, "last": 1})
    ]


def test_lambdas_closures_and_local_classes_reach_workers(session: Session) -> None:
    offset = 10

    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

        def doubled(self) -> int:
            return 2 * self.value + offset

    local = Task(lambda value: Local(value), name="local")
    doubled = Task(lambda made: made.doubled(), name="doubled")
    assert session.compute(doubled(local(3)), workers=2) == [16]


def test_methods_and_builtins_are_tasks_too(session: Session) -> None:
    assert session.compute(Task(max)(3, 5), Task("a b".split)(), Task(str.upper)("x")) == [
        5,
        ["a", "b"],
        "X",
    ]


@pytest.mark.parametrize("nbytes", [0, 1, 8 * 1024, 9 * 1024, 64 * 1024, 200_000, 30_000_000])
def test_outputs_of_any_size_arrive(session: Session, nbytes: int) -> None:
    fill = Task(lambda seed: bytes([seed]) * nbytes, name="fill")
    halves = [fill(1), fill(2)]
    planner = PlacedPlanner([0, 1, 2], linger=0.5)
    joined = Task(lambda one, other: one + other, name="joined")(*halves)
    assert session.compute(joined, planner=planner) == [bytes([1]) * nbytes + bytes([2]) * nbytes]


def test_arrays_arrive_equal_and_writable(session: Session) -> None:
    def increment(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        array += 1
        return array

    def make(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.arange(float(np.prod(shape))).reshape(shape)

    change = Task(increment, name="change")
    for shape in [(3,), (100, 200), (1000, 1000)]:
        source = Task(make)(shape)
        one, other = change(source), change(source)
        total = Task(lambda a, b: (a + b)[::2].copy(), name="total")(one, other)
        found, first = session.compute(total, one, planner=PlacedPlanner([0, 1, 2, 3]))
        expected = make(shape) + 1
        np.testing.assert_array_equal(found, (2 * expected)[::2])
        np.testing.assert_array_equal(first, expected)
        first += 1


def test_a_tasks_change_to_a_constant_stays_local(session: Session) -> None:
    array = np.zeros(100_000)

    def spoil(given: np.ndarray[Any, Any]) -> float:
        before = float(given.sum())
        given += 1
        return before

    outputs = [Task(spoil)(array) for _ in range(4)]
    assert session.compute(*outputs, planner=PlacedPlanner([0, 1, 2, 3])) == [0.0] * 4
    assert array.sum() == 0


def test_a_chain_of_100_000_tasks_runs(session: Session) -> None:
    output = add(0)
    for _ in range(100_000 - 1):
        output = add(output, 1)
    run = session.submit(output)
    assert run.result(60) == 99_999
    assert run.status().executed == 100_000
    assert len(run.timeline.of_kind("execute")) == 100_000


def test_a_wide_fan_out_and_in_runs(session: Session) -> None:
    outputs = [add(number, 1) for number in range(2000)]
    run = session.submit(add(*outputs), workers=4)
    assert run.result(60) == sum(range(2001))
    assert {*run.timeline.placements} == {*run.workflow.calls}


# Constants.


def test_a_large_constant_is_sent_once_however_often_it_is_used() -> None:
    text, other = "x" * 100_000, b"y" * 50_000
    outputs = [add(text, number) for number in range(6)]
    outputs += [add("x" * 100_000), add(other, key=other), add([other]), add("small")]
    conditions = Conditions(DefaultCosts(), workers=3, resources=Resources(memory_mb=1769))
    plan = SpreadPlanner().plan(Workflow.of(*outputs), conditions)
    packed = pack(plan, b"key")
    values = [
        decode(b"".join(blob), b"key", signed_output(name))
        for name, blob in packed.constants.items()
    ]
    assert Counter(map(type, values)) == {str: 1, bytes: 1, list: 1}
    assert all(sum(map(len, blob)) < 20_000 for blob in packed.packages.values())


def test_a_large_constant_is_kept_once_for_all_workers(tmp_path: Path) -> None:
    """The store is inspected while the tasks that take the constant wait for a file."""

    def length(data: bytes, folder: str) -> int:
        (Path(folder) / f"pid-{os.getpid()}").touch()
        assert eventually(lambda: (Path(folder) / "go").exists())
        return len(data)

    with Session(workers=4) as session:
        store = session.store
        assert isinstance(store, RedisStore)
        data = os.urandom(100_000)
        outputs = [Task(length)(data, str(tmp_path)) for _ in range(4)]
        run = session.submit(*outputs, planner=PlacedPlanner([0, 1, 2, 3]))
        assert eventually(lambda: len(list(tmp_path.glob("pid-*"))) == 4)
        shared = Path(run.shared.path).iterdir() if run.shared else ()
        nbytes = sum(path.stat().st_size for path in shared)
        for key in store._call([["KEYS", f"shoal:{{{run.id}}}*"]])[0]:
            nbytes += store._call([["MEMORY", "USAGE", key]])[0]
        (tmp_path / "go").touch()
        assert run.result(TIMEOUT) == [100_000] * 4
    assert 100_000 < nbytes < 180_000


# Code from a user's files.


def script(folder: Path, text: str, *args: str) -> str:
    """Run a script and return its output."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(path), *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_script_can_use_its_own_functions_and_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "from shoal import task\n\n@task\ndef double(value):\n    return 2 * value\n\n"
        "def plain(value):\n    return value + 1\n"
    )
    said = script(
        tmp_path,
        """
        import shoal
        from beside import double, plain

        FACTOR = 3

        class Box:
            def __init__(self, value):
                self.value = value

        @shoal.task
        def triple(value):
            return Box(value * FACTOR)

        @shoal.task
        def opened(box):
            return plain(box.value)

        print(opened(triple(double(7))).compute(workers=2))
        print(type(triple(1).compute()) is Box)
        """,
    )
    assert said == "43\nTrue\n"


def test_a_script_needs_no_main_guard_and_runs_from_any_folder(tmp_path: Path) -> None:
    """A worker doesn't import `__main__`, so the script doesn't run again."""
    (tmp_path / "data.txt").write_text("17")
    said = script(
        tmp_path,
        """
        import shoal
        print("begin")
        read = shoal.task(lambda name: int(open(name).read()), name="read")
        print(read("data.txt").compute())
        """,
    )
    assert said == "begin\n17\n"


def test_the_next_script_sees_a_changed_module(tmp_path: Path) -> None:
    for number in (1, 22):
        (tmp_path / "changing.py").write_text(
            f"from shoal import task\n\n@task\ndef number():\n    return {number}\n"
        )
        said = script(tmp_path, "from changing import number; print(number().compute())")
        assert said == f"{number}\n"


# Handles.


def test_a_handle_reports_progress(session: Session, tmp_path: Path) -> None:
    def await_go(folder: str) -> int:
        assert eventually(lambda: (Path(folder) / "go").exists())
        return 1

    quick = [add(number) for number in range(5)]
    run = session.submit(
        add(Task(await_go)(str(tmp_path)), *quick), planner=PlacedPlanner([1, *[0] * 6])
    )
    with pytest.raises(RunTimeout, match=r"no result after 0\.05 s: running") as caught:
        run.result(timeout=0.05)
    assert caught.value.run == run.id
    assert eventually(lambda: run.status().executed == 5)
    assert (run.status().state, run.status().tasks) == ("running", 7)
    assert str(run.status()) == "running, 5 of 7 tasks executed"
    (tmp_path / "go").touch()
    assert run.result(TIMEOUT) == 11
    assert run.result() == 11
    assert str(run.status()) == "done, 7 of 7 tasks executed"
    assert run.id in repr(run)


def test_the_timeline_has_every_task_once_on_its_planned_worker(session: Session) -> None:
    outputs = [add(add(number), add(number, 1)) for number in range(10)]
    run = session.submit(add(*outputs), workers=3)
    assert run.result(TIMEOUT) == 100
    executions = run.timeline.of_kind("execute")
    assert Counter(span.task for span in executions) == Counter(list(run.workflow.calls))
    for span in executions:
        assert span.task is not None
        assert span.worker == run.plan.placements[span.task].worker
        assert 0 <= span.start <= span.end <= run.makespan + 1
        assert span.cpu >= 0
    starts = run.timeline.of_kind("cold start", "warm start")
    assert {span.worker for span in starts} == {*run.plan.workers}


def test_the_timeline_records_transfers(session: Session) -> None:
    large = Task(lambda: b"x" * 100_000, name="large")
    run = session.submit(Task(len, name="size")(large()), planner=PlacedPlanner([0, 1]))
    assert run.result(TIMEOUT) == 100_000
    (saved,), (fetched,) = run.timeline.of_kind("save"), run.timeline.of_kind("fetch")
    assert (saved.task, saved.worker) == ("large#0", "w0")
    assert fetched.worker == "w1"
    assert fetched.nbytes == saved.nbytes > 100_000


def test_runs_are_recorded_in_history(session: Session) -> None:
    output = add(add(1), add(2))
    for _ in range(2):
        session.compute(output, name="kept in history")
    with pytest.raises(shoal.errors.TaskError):
        session.compute(Task(lambda: 1 / 0, name="broken")(), name="kept in history too")
    session.settle()
    runs = session.history.runs(key="kept in history")
    assert [(run.outcome, run.tasks) for run in runs] == [("done", 3), ("done", 3)]
    assert session.history.count("kept in history", Workflow.of(output).fingerprint()) == 2
    timeline = session.history.load(runs[0]).timeline
    assert {*timeline.placements} == {*Workflow.of(output).calls}
    assert timeline.makespan == runs[0].makespan > 0
    (failed,) = session.history.runs(key="kept in history too")
    assert failed.outcome.startswith("task 'broken#0' failed on worker w0: ZeroDivisionError")


def test_a_run_is_recorded_whatever_name_its_planner_has(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    class Named(PlacedPlanner):
        def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
            return replace(super().plan(workflow, conditions), planner="\ud800")

    run = session.submit(add(1), planner=Named([0]), name="oddly named")
    assert run.result(TIMEOUT) == 1
    session.settle()
    assert session.history.find(run.id).planner == "?"
    assert caplog.messages == []


def test_settling_a_closed_session_returns() -> None:
    with Session() as session:
        session.compute(add(1))
    thread = threading.Thread(target=session.settle, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_runs_are_not_recorded_with_history_off(session: Session) -> None:
    session.compute(add(1), name="not kept", history=False)
    session.settle()
    assert session.history.runs(key="not kept") == []


# The runtime and the simulator agree.


@task
def value(number: int, *inputs: Any) -> tuple[int, int]:
    """Return a value that identifies the task and its inputs; large if 3 divides the number."""
    padding = "x" * 9000 if number % 3 == 0 else ""
    return number, hash((number, *(given[1] for given in inputs), len(padding)))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Generate each task's upstream tasks and its worker."""
    count = draw(st.integers(1, 24))
    workers = draw(st.integers(1, 4))
    sources = [
        sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else []
        for number in range(count)
    ]
    return sources, [draw(st.integers(0, workers - 1)) for _ in range(count)]


class Free(Costs):
    """Everything costs the same."""

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return a second."""
        return 1.0

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Return a second."""
        return 1.0

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return a second."""
        return 1.0

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """Return a large size for some tasks."""
        return 9000 if len(task) % 3 == 0 else 10

    def coordination(self) -> float:
        """Return a second."""
        return 1.0


def perform(workflow: Workflow, task: TaskId, values: Mapping[TaskId, Any]) -> Any:
    """Call a task's function in this process."""
    call = workflow.calls[task]
    args = [values[call.refs[i]] if i in call.refs else each for i, each in enumerate(call.args)]
    assert not any(isinstance(each, Ref) for each in args)
    return call.task.function(*args)


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(graph=graphs(), linger=st.sampled_from([0.0, 0.05, 0.5, None]))
def test_a_run_agrees_with_its_simulation_and_a_sequential_evaluation(
    session: Session, graph: tuple[list[list[int]], list[int]], linger: float | None
) -> None:
    sources, assignment = graph
    outputs: list[Output[Any]] = []
    for number, inputs in enumerate(sources):
        outputs.append(value(number, *[outputs[i] for i in inputs]))
    workflow = Workflow.of(*outputs)
    order = [workflow.calls[task].args[0] for task in workflow.calls]
    planner = PlacedPlanner([assignment[number] for number in order], linger=linger)
    run = session.submit(*outputs, planner=planner, workers=8)
    sequential: dict[TaskId, Any] = {}
    for name in run.workflow.calls:
        sequential[name] = perform(run.workflow, name, sequential)
    expected = [sequential[sink] for sink in run.workflow.sinks]
    simulation = Simulation(
        run.plan, Free(), WarmPool(), perform=lambda t, given: perform(run.workflow, t, given)
    )
    simulation.run()
    assert [simulation.results[sink] for sink in run.workflow.sinks] == expected
    assert run.values(TIMEOUT) == expected
    assert run.timeline.placements == dict(simulation.performed)
    assert len(run.timeline.of_kind("execute")) == len(simulation.performed)


# Parking, and too few sandboxes.


@task
def slow(*given: Any) -> int:
    time.sleep(0.4)
    return 1


@pytest.mark.parametrize("linger", [0.0, 0.05])
def test_a_worker_that_waits_long_parks_and_comes_back(session: Session, linger: float) -> None:
    """Its earlier outputs, small and large, are available when it comes back."""
    early = Task(lambda: b"x" * 50_000, name="early")()
    small = add(1, 2)
    late = Task(lambda data, number, waited: (len(data), number + waited), name="late")
    run = session.submit(
        late(early, small, slow()), planner=PlacedPlanner([0, 0, 1, 0], linger=linger)
    )
    assert run.result(TIMEOUT) == (50_000, 4)
    starts = run.timeline.of_kind("cold start", "warm start")
    assert Counter(span.worker for span in starts) == {"w0": 2, "w1": 1}
    assert len(run.timeline.of_kind("execute")) == 4


def test_a_worker_that_may_wait_does_not_park(session: Session) -> None:
    run = session.submit(add(add(1), slow()), planner=PlacedPlanner([0, 1, 0], linger=None))
    assert run.result(TIMEOUT) == 2
    assert len(run.timeline.of_kind("cold start", "warm start")) == 2


def test_a_worker_parks_again_and_again(session: Session) -> None:
    output: Any = add(0)
    for _ in range(12):
        output = add(output, 1)
    planner = PlacedPlanner([number % 2 for number in range(13)], linger=0.0)
    run = session.submit(output, planner=planner)
    assert run.result(TIMEOUT) == 12
    assert len(run.timeline.of_kind("execute")) == 13


@pytest.fixture(params=[1, 2])
def cramped(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session with fewer sandboxes than workers."""
    with Session(sandboxes=request.param, workers=6) as session:
        yield session


def test_a_run_with_more_workers_than_sandboxes_ends(cramped: Session) -> None:
    """Waiting workers must release their sandboxes to the workers they wait for."""
    layer = [add(number) for number in range(6)]
    for _ in range(3):
        layer = [add(layer[i], layer[(i + 1) % 6], layer[(i + 5) % 6]) for i in range(6)]
    workflow = Workflow.of(*layer)
    assignment = [int(name.partition("#")[2]) % 6 for name in workflow.calls]
    run = cramped.submit(*layer, planner=PlacedPlanner(assignment, linger=0.0))
    expected = [number for number in range(6)]
    for _ in range(3):
        expected = [expected[i] + expected[(i + 1) % 6] + expected[(i + 5) % 6] for i in range(6)]
    assert len(run.plan.workers) == 6
    assert run.result(60) == expected
    assert len(run.timeline.of_kind("execute")) == 24


def test_the_default_plan_works_with_few_sandboxes(cramped: Session) -> None:
    layer = [add(number) for number in range(6)]
    for step in (1, 2):
        layer = [add(layer[i], layer[(i + step) % 6]) for i in range(6)]
    assert cramped.compute(add(*layer), workers=3) == [4 * sum(range(6))]


# Concurrent runs and sessions.


def test_runs_from_several_threads_do_not_disturb_each_other(session: Session) -> None:
    found: dict[int, Any] = {}

    def compute(number: int) -> None:
        for _ in range(5):
            layer = [add(number, i) for i in range(6)]
            found[number] = session.compute(add(*layer), workers=3)

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: [6 * number + 15] for number in range(3)}


def test_many_submitted_runs_all_finish(session: Session) -> None:
    runs = [session.submit(add(add(number), add(number))) for number in range(20)]
    random.Random(1).shuffle(runs)
    assert sorted(run.result(60) for run in runs) == [2 * number for number in range(20)]


def test_two_sessions_share_the_server_and_no_sandbox(session: Session) -> None:
    pid = Task(os.getpid, name="pid")
    (mine,) = session.compute(pid())
    with Session(workers=1) as other:
        assert other.store.url == session.store.url
        assert other.compute(pid()) != [mine]
    assert session.compute(pid(), add(1))[1] == 1


def test_tasks_get_the_resources_they_request(session: Session) -> None:
    def memory() -> int:
        groups = Path("/proc/self/cgroup").read_text()
        return hash(groups)

    small = Task(memory, name="small", resources=Resources(memory_mb=128))
    large = Task(memory, name="large", resources=Resources(memory_mb=512, cpus=2))
    run = session.submit(small(), large(), small(), Task(memory, name="usual")(), workers=4)
    groups = run.result(TIMEOUT)
    assert len({*groups}) >= 3 or len({*groups}) == 1
    placements = run.plan.placements
    assert placements[TaskId("small#0")].resources == Resources(memory_mb=128)
    assert placements[TaskId("large#0")].resources == Resources(memory_mb=512, cpus=2)
    assert placements[TaskId("usual#0")].resources.memory_mb == 2048
    assert run.timeline.placements == {t: p.worker for t, p in placements.items()}


def test_the_next_run_reuses_a_sandbox(session: Session) -> None:
    pid = Task(os.getpid, name="pid")
    first = session.compute(pid(), workers=1)
    gateway = session.platform
    assert isinstance(gateway, LocalGateway)
    assert eventually(lambda: gateway.status()["busy"] == 0)
    run = session.submit(pid(), workers=1)
    assert run.result(TIMEOUT) == first[0]
    (start,) = run.timeline.of_kind("cold start", "warm start")
    assert start.kind == "warm start"


def test_latency_can_be_added_for_experiments(tmp_path: Path) -> None:
    with Session(latency=0.03, workers=2) as session:
        run = session.submit(add(add(1), add(2)), planner=PlacedPlanner([0, 1, 2]))
        assert run.result(TIMEOUT) == 3
        assert run.makespan > 0.09


def test_shared_memory_is_freed_with_the_session() -> None:
    large = Task(lambda: b"x" * 1_000_000, name="large")
    with Session(workers=2) as session:
        for _ in range(3):
            run = session.submit(Task(len, name="size")(large()), planner=PlacedPlanner([0, 1]))
            assert run.result(TIMEOUT) == 1_000_000
            session.settle()
    assert run.shared is None or not Path(run.shared.path).exists()


def test_nothing_of_a_run_is_left_in_the_store(session: Session) -> None:
    run = session.submit(*[add(add(number), number) for number in range(20)], workers=4)
    run.result(TIMEOUT)
    store = session.store
    assert isinstance(store, RedisStore)
    assert store._call([["KEYS", f"shoal:{{{run.id}}}*"]])[0] == []


def test_a_sessions_processes_end_with_it(private_folder: Path, session: Session) -> None:
    before = processes_mentioning(str(private_folder)).keys()
    with Session(workers=2) as other:
        other.compute(add(add(1), add(2)))
        assert processes_mentioning(str(private_folder)).keys() - before
    left = processes_mentioning(str(private_folder)).keys() - before
    assert not left


@task
def hashed(text: str) -> int:
    return hash(text)


def test_strings_hash_alike_on_the_workers_of_all_gateways() -> None:
    with Session(progress=False) as one, Session(progress=False) as other:
        assert one.compute(hashed("word")) == other.compute(hashed("word"))
