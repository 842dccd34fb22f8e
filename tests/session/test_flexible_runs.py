"""Runs with flexible workers on the embedded default."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observing import TIMEOUT, eventually
from shoal import Output, Resources, Run, Session, WukongPlanner, task
from shoal.client.post_run_work import filed_run
from shoal.client.run_records import ended_run
from shoal.errors import GatewayRefused, RunCancelled, TaskError, TaskTimeout, WorkerDied
from shoal.platform.invocation import RunContext, Start
from shoal.storage.letters import Received, WorkerFinished
from shoal.storage.redis import RedisStore
from shoal.types import MB_PER_CPU, TaskId, WorkerId

pytestmark = pytest.mark.real

WUKONG = WukongPlanner(Resources(MB_PER_CPU))
TWO_SLOTS = WukongPlanner(Resources(2 * MB_PER_CPU))
planners = pytest.mark.parametrize("planner", [WUKONG, TWO_SLOTS], ids=["one slot", "two slots"])


@task
def add(*numbers: Any) -> Any:
    return sum(numbers)


@task
def full(number: int, *sources: Any) -> Any:
    return np.full(50_000, number + sum(source[0] for source in sources))


@task
def total(*arrays: Any) -> int:
    return int(sum(array.sum() for array in arrays))


@pytest.fixture(scope="module")
def session(private_folder: Path) -> Iterator[Session]:
    """A session with few sandboxes, because each has to import this module."""
    with Session(sandboxes=4, workers=2) as session:
        yield session


def left_of(session: Session, run: Run) -> list[bytes]:
    """Return the keys that a run has left in the store."""
    store = session.store
    assert isinstance(store, RedisStore)
    found: list[bytes] = store._call([["KEYS", f"shoal:{{{run.id}}}*"]])[0]
    return found


def ended(session: Session, run: Run) -> Any:
    """Return a run's result, after checks of its leftovers, executions and timelines."""
    result = run.result(TIMEOUT)
    assert left_of(session, run) == []
    executed = Counter(span.task for span in run.timeline.of_kind("execute"))
    assert executed == dict.fromkeys(run.workflow.calls, 1)
    timeline = run.timeline
    starts = Counter(span.worker for span in timeline.of_kind("cold start", "warm start"))
    assert starts == dict.fromkeys(timeline.workers, 1)
    first: dict[WorkerId, TaskId | None] = {}
    for span in sorted(timeline.of_kind("execute"), key=lambda span: span.start):
        first.setdefault(span.worker, span.task)
    assert all(worker == task for worker, task in first.items())
    return result


def reduced(leaves: int) -> Output[Any]:
    level = [add(number) for number in range(leaves)]
    while len(level) > 1:
        level = [add(*level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]


@planners
def test_a_tree_reduction_gives_the_sum(session: Session, planner: WukongPlanner) -> None:
    run = session.submit(reduced(32), planner=planner)
    assert ended(session, run) == sum(range(32))
    assert len(run.timeline.workers) == 32
    assert filed_run(ended_run(run), run.workflow, None).record.workers == 32


@planners
def test_a_wide_fan_out_with_large_outputs_gives_the_right_result(
    session: Session, planner: WukongPlanner
) -> None:
    source = full(1)
    output = total(*[full(number, source) for number in range(25)])
    run = session.submit(output, planner=planner)
    assert ended(session, run) == 50_000 * sum(range(1, 26))
    saved = [span.task for span in run.timeline.of_kind("save")]
    assert len(saved) == len(set(saved)) == 26


def at_work(run: Run) -> int:
    """Return how many workers of a run were busy at once."""
    began = [(span.end, 1) for span in run.timeline.of_kind("cold start", "warm start")]
    left = [(span.start, -1) for span in run.timeline.of_kind("leave")]
    assert len(began) == len(left)
    counts = accumulate(change for _, change in sorted(began + left))
    return max(counts)


@task
def rest(_: Any = None) -> int:
    time.sleep(0.02)
    return 1


@pytest.mark.parametrize("workers", [1, 2])
def test_no_more_workers_run_than_the_setting_allows(session: Session, workers: int) -> None:
    first = rest()
    output = add(*[rest(first) for _ in range(12)], *[rest() for _ in range(4)])
    run = session.submit(output, planner="wukong", workers=workers)
    assert ended(session, run) == 16
    assert at_work(run) <= workers


def test_waiting_for_a_sandbox_is_not_recorded_as_start_up_time(session: Session) -> None:
    """Otherwise history would learn the waiting time as part of a start."""
    session.compute(add(1), planner=WUKONG)
    run = session.submit(add(*[rest() for _ in range(8)]), planner=WUKONG, workers=1)
    run.result(TIMEOUT)
    starts = sorted(run.timeline.of_kind("cold start", "warm start"), key=lambda s: s.start)
    leaves = sorted(span.end for span in run.timeline.of_kind("leave"))
    for start, left in zip(starts[1:], leaves, strict=False):
        assert start.start >= left - 0.001


def test_a_chain_transfers_nothing(session: Session) -> None:
    output = full(0)
    for _ in range(10):
        output = full(1, output)
    run = session.submit(total(output), planner=WUKONG)
    assert ended(session, run) == 500_000
    assert run.timeline.workers == ("full#0",)
    assert not run.timeline.of_kind("fetch", "save")


def test_small_and_large_sinks_arrive_even_if_other_tasks_consume_them(session: Session) -> None:
    a = add(1)
    b, c = full(1), full(2)
    d = total(b, c)
    run = session.submit(a, b, d, add(a, d), planner="wukong")
    one, array, whole, last = ended(session, run)
    assert (one, array.sum(), whole, last) == (1, 50_000, 150_000, 150_001)


def test_a_large_constant_and_nested_outputs_arrive(session: Session) -> None:
    constant = np.arange(50_000)

    @task
    def dig(given: dict[str, list[Any]], array: Any) -> int:
        return int(sum(given["inside"]) + array[-1])

    outputs = [dig({"inside": [add(number), add(1)]}, constant) for number in range(4)]
    run = session.submit(*outputs, planner=WUKONG)
    assert ended(session, run) == [number + 1 + 49_999 for number in range(4)]


def test_none_is_an_output_like_any_other(session: Session) -> None:
    @task
    def nothing(*given: Any) -> None:
        assert all(each is None for each in given)

    first = nothing()
    output = nothing(nothing(first), nothing(first), nothing())
    assert ended(session, session.submit(output, planner=WUKONG)) is None


@task
def value(number: int, *inputs: Any) -> tuple[int, int]:
    """Return a value that identifies the task and its inputs; large if 3 divides the number."""
    padding = "x" * 9000 if number % 3 == 0 else ""
    return number, hash((number, *(given[1] for given in inputs), len(padding)))


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """Generate each task's upstream tasks."""
    count = draw(st.integers(1, 20))
    return [
        sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else []
        for number in range(count)
    ]


switched = st.builds(
    WukongPlanner,
    st.sampled_from([Resources(MB_PER_CPU), Resources(2 * MB_PER_CPU)]),
    fan_out_clustering=st.booleans(),
    fan_in_clustering=st.booleans(),
    delayed_io=st.booleans(),
    big_output_nbytes=st.sampled_from([0, 9000]),
    large_fan_out=st.sampled_from([1, 2, None]),
    decide=st.sampled_from(["threshold", "predicted"]),
)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(graph=graphs(), planner=st.sampled_from([WUKONG, TWO_SLOTS]) | switched)
def test_a_run_agrees_with_a_sequential_evaluation(
    session: Session, graph: list[list[int]], planner: WukongPlanner
) -> None:
    outputs: list[Output[Any]] = []
    expected: list[Any] = []
    for number, sources in enumerate(graph):
        outputs.append(value(number, *[outputs[i] for i in sources]))
        expected.append(value.function(number, *[expected[i] for i in sources]))
    run = session.submit(*outputs, planner=planner)
    assert ended(session, run) == (expected if len(expected) > 1 else expected[0])


@pytest.fixture(params=[1, 2])
def cramped(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session with fewer sandboxes than workers."""
    with Session(sandboxes=request.param, workers=6) as session:
        yield session


def test_a_run_with_more_workers_than_sandboxes_ends(cramped: Session) -> None:
    layer = [add(number) for number in range(6)]
    expected = list(range(6))
    for _ in range(3):
        layer = [add(layer[i], layer[(i + 1) % 6], layer[(i + 5) % 6]) for i in range(6)]
        expected = [expected[i] + expected[(i + 1) % 6] + expected[(i + 5) % 6] for i in range(6)]
    assert ended(cramped, cramped.submit(*layer, planner=WUKONG)) == expected


# Policies.

BIG = 100_000
"""Bytes: outputs of `full` are larger."""
SWITCHES = ("fan_out_clustering", "fan_in_clustering", "delayed_io")


def diamond(branches: int) -> Output[Any]:
    """Build a diamond in which all outputs are large."""
    source = full(1)
    return total(*[full(number, source) for number in range(branches)])


@pytest.mark.parametrize("on", [(), *[(name,) for name in SWITCHES], SWITCHES])
def test_each_policy_behaves_as_predicted_in_real_runs(
    session: Session, on: tuple[str, ...]
) -> None:
    switches = {name: name in on for name in SWITCHES}
    planner = WukongPlanner(Resources(MB_PER_CPU), big_output_nbytes=BIG, **switches)  # type: ignore[arg-type]
    plan = session.plan(diamond(6), planner=planner).plan
    assert [getattr(plan.policies, name) for name in SWITCHES] == list(switches.values())
    run = session.submit(diamond(6), planner=planner)
    assert ended(session, run) == 50_000 * sum(range(1, 7))
    clustered = "fan_out_clustering" in on
    assert len(run.timeline.workers) == (1 if clustered else 6)
    if on == SWITCHES:
        assert not run.timeline.of_kind("save", "fetch")


def test_decisions_by_prediction_need_history_and_then_use_it(session: Session) -> None:
    planner = WukongPlanner(Resources(MB_PER_CPU), decide="predicted")
    output = add(*[add(first, number) for first in [add(1)] for number in range(20)])
    preview = session.plan(output, planner=planner, name="foreseen")
    assert preview.plan.policies.forecast is None
    assert "no history" in preview.plan.notes[-1]
    for _ in range(2):
        run = session.submit(output, planner=planner, name="foreseen")
        assert ended(session, run) == 20 + sum(range(20))
        session.settle()
    forecast = session.plan(output, planner=planner, name="foreseen").plan.policies.forecast
    assert forecast is not None
    assert forecast.ends.keys() == forecast.seconds.keys() == set(run.workflow.calls)
    assert forecast.start > 0


def wide(count: int) -> Output[Any]:
    first = add(1)
    return add(*[add(first, number) for number in range(count)])


def test_the_gateway_starts_a_large_fan_out(session: Session) -> None:
    asked: list[int] = []
    platform = session.platform
    fan_out = platform.fan_out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            platform,
            "fan_out",
            lambda context, starts: (asked.append(len(starts)), fan_out(context, starts)),
        )
        run = session.submit(wide(60), planner=WUKONG)
        assert ended(session, run) == 60 + sum(range(60))
    assert asked == [59]
    assert len(run.timeline.workers) == 60


def test_a_worker_starts_a_fan_out_itself_if_the_gateway_rejects_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def refuse(context: RunContext, starts: Sequence[Start]) -> None:
        refused.append(len(starts))
        raise GatewayRefused("not now")

    monkeypatch.setattr(session.platform, "fan_out", refuse)
    run = session.submit(wide(20), planner=WUKONG)
    assert ended(session, run) == 20 + sum(range(20))
    assert refused == [19]


def test_a_run_survives_a_fan_out_that_is_accepted_and_lost(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway accepts it but starts nothing, so the leases of those workers expire."""
    monkeypatch.setattr(session.platform, "fan_out", lambda context, starts: None)
    run = session.submit(wide(12), planner=WUKONG, lease=1.0)
    assert run.result(TIMEOUT) == 12 + sum(range(12))
    assert left_of(session, run) == []


# Failures.


@task
def fail(*given: Any) -> None:
    raise ValueError("bad")


def test_a_failing_task_ends_the_run_and_is_named(session: Session) -> None:
    first = add(1)
    run = session.submit(add(fail(add(first), add(2)), add(first)), planner=WUKONG, keep_seconds=0)
    with pytest.raises(TaskError, match="fail#0") as caught:
        run.result(TIMEOUT)
    assert isinstance(caught.value.__cause__, ValueError)
    assert left_of(session, run) == []
    assert session.compute(reduced(8), planner=WUKONG) == [28]


@task(retries=2)
def fail_twice(folder: str, *given: Any) -> int:
    tries = len(os.listdir(folder))
    (Path(folder) / str(tries)).touch()
    if tries < 2:
        raise ValueError("not yet")
    return tries


def test_a_task_that_fails_twice_is_retried(session: Session, tmp_path: Path) -> None:
    first = add(1)
    output = add(fail_twice(str(tmp_path), first), add(first), add(first))
    run = session.submit(output, planner=WUKONG)
    assert run.result(TIMEOUT) == 4
    executed = Counter(span.task for span in run.timeline.of_kind("execute"))
    assert executed[TaskId("fail_twice#0")] == 3
    assert left_of(session, run) == []


@task(timeout=0.2)
def linger(*given: Any) -> None:
    time.sleep(30)


def test_a_task_that_exceeds_its_timeout_fails(session: Session) -> None:
    first = add(1)
    with pytest.raises(TaskTimeout, match="linger#0"):
        session.compute(add(linger(first), add(first)), planner=WUKONG)


@task
def end_process(*given: Any) -> None:
    os._exit(3)


def test_a_worker_that_dies_ends_the_run(session: Session) -> None:
    first = add(1)
    run = session.submit(add(add(first), end_process(first)), planner=WUKONG, keep_seconds=0)
    with pytest.raises(WorkerDied, match="exit code 3"):
        run.result(TIMEOUT)
    assert left_of(session, run) == []


def test_an_unpicklable_output_is_named(session: Session) -> None:
    @task
    def made(*given: Any) -> Any:
        return (number for number in range(3))

    assert session.compute(total_of(made()), planner=WUKONG) == [3]
    generator = made()
    with pytest.raises(TaskError, match="made#0"):
        session.compute(total_of(generator), total_of(generator), planner=WUKONG)


@task
def total_of(numbers: Any) -> int:
    return sum(numbers)


def test_cancel_leaves_nothing(session: Session, tmp_path: Path) -> None:
    folder = str(tmp_path)

    @task
    def sleep(name: str, *given: Any) -> None:
        (Path(folder) / name).touch()
        time.sleep(60)

    first = add(1)
    asleep = add(sleep("a", first), sleep("b", first), sleep("c"))
    run = session.submit(asleep, planner=WUKONG, keep_seconds=0)
    assert eventually(lambda: len([*tmp_path.iterdir()]) > 1)
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result()
    assert left_of(session, run) == []


# Timelines.


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_the_client_waits_for_the_timeline_of_every_invoked_worker(
    session: Session, order: str
) -> None:
    """`a` has invoked `b`, which has invoked `c`; their last messages arrive in any order."""
    run = session.submit(add(1), planner=WUKONG)
    run.result(TIMEOUT)
    reports = run._reports
    reports._unfinished = {WorkerId("a")}
    invoked = {"a": (WorkerId("b"),), "b": (WorkerId("c"),), "c": ()}
    for worker in order:
        assert reports._unfinished
        reports._take(Received("", WorkerFinished(WorkerId(worker), b"", invoked[worker])), set())
    assert not reports._unfinished


def test_the_next_plan_learns_from_the_run(session: Session) -> None:
    output = reduced(16)
    for _ in range(2):
        session.compute(output, planner=WUKONG, name="flexible")
    session.settle()
    assert [record.workers for record in session.history.runs(key="flexible")] == [16, 16]
    preview = session.plan(output, planner=WUKONG, name="flexible")
    assert preview.learnt
    assert len(preview.workers) == 16
    assert 0 < preview.makespan < 30


def test_a_report_shows_plan_and_reality_side_by_side(session: Session) -> None:
    run = session.submit(reduced(8), planner=WUKONG)
    text = run.report()
    assert "planned by wukong" in text
    assert "another worker" not in text
