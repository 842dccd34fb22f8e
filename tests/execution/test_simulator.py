"""Simulated runs: the same invariants hold for any plan, delays and pool."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from execution_examples import (
    CheckedMachine,
    CheckedReactingMachine,
    a,
    b,
    c,
    d,
    plan_of,
    w0,
    w1,
)
from execution_strategies import (
    CONFIGURATIONS,
    DrawnCosts,
    Outcome,
    Scenario,
    delays,
    large_scenario,
    lingers,
    scenarios,
)
from hypothesis import given
from hypothesis import strategies as st

from examples_drawn import examples
from shoal.errors import WorkflowError
from shoal.execution import reacting
from shoal.execution.costs import Direction
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.plan import Placement, Plan, Prewarm
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import Simulation, makespan_of, simulate
from shoal.execution.timeline import Span, Timeline
from shoal.types import SHARED_NBYTES, Resources, TaskId, WorkerId

many = examples(300)


@contextmanager
def checked_machines() -> Iterator[None]:
    """Let every machine check its invariants after each event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reacting, "WorkerMachine", CheckedMachine)
        patch.setattr(reacting, "ReactingMachine", CheckedReactingMachine)
        yield


def most_at_once(spans: list[Span]) -> int:
    """Return how many spans overlap at most; touching spans don't overlap."""
    steps = [(span.end, -1) for span in spans if span.seconds]
    steps += [(span.start, 1) for span in spans if span.seconds]
    level = most = 0
    for _, step in sorted(steps):
        level += step
        most = max(most, level)
    return most


def assert_complete(scenario: Scenario, outcome: Outcome) -> None:
    """Assert that each task ran once and where planned, with the right results and no leftovers."""
    plan, simulation = scenario.plan, outcome.simulation
    assert_performed_as_planned(plan, simulation)
    values = scenario.sequential()
    assert simulation.results == {sink: values[sink] for sink in plan.workflow.sinks}
    assert_nothing_left(outcome)


def assert_performed_as_planned(plan: Plan, simulation: Simulation) -> None:
    """Assert that each task ran once on its planned worker, and elsewhere only as a copy."""
    assignment = {task: placement.worker for task, placement in plan.placements.items()}
    copies = {(task, part.worker) for part in plan.parts() for task in part.copies}
    performed = Counter(simulation.performed)
    assert performed.keys() <= set(assignment.items()) | copies
    assert [performed[planned] for planned in assignment.items()] == [1] * len(assignment)


def assert_nothing_left(outcome: Outcome) -> None:
    """Assert that every worker has finished, and that neither it nor its driver holds anything."""
    for worker in outcome.simulation._workers.values():
        assert worker.machine is not None
        assert worker.machine.finished
        assert not worker.machine._memory.held
        assert worker.values == {}
    assert outcome.pool.busy == 0


@many
@given(scenarios())
def test_each_task_is_performed_once_and_on_its_planned_worker(scenario: Scenario) -> None:
    outcome = scenario.run()
    assert_performed_as_planned(scenario.plan, outcome.simulation)
    executed = [(s.task, s.worker) for s in outcome.timeline.of_kind("execute")]
    assert Counter(executed) == Counter(outcome.simulation.performed)


@many
@given(scenarios())
def test_results_equal_those_of_a_sequential_evaluation(scenario: Scenario) -> None:
    values = scenario.sequential()
    results = scenario.run().simulation.results
    assert results == {sink: values[sink] for sink in scenario.plan.workflow.sinks}


@many
@given(scenarios())
def test_every_worker_finishes_and_holds_nothing(scenario: Scenario) -> None:
    assert_nothing_left(scenario.run())


@many
@given(scenarios())
def test_every_machine_is_consistent_after_each_event(scenario: Scenario) -> None:
    with checked_machines():
        assert_complete(scenario, scenario.run())


@many
@given(scenarios())
def test_two_simulations_of_the_same_input_are_identical(scenario: Scenario) -> None:
    first, second = scenario.run(), scenario.run()
    assert first.timeline == second.timeline
    assert first.simulation.performed == second.simulation.performed


@many
@given(scenarios())
def test_run_takes_no_less_than_its_longest_path(scenario: Scenario) -> None:
    outcome = scenario.run()
    assert outcome.timeline.makespan >= scenario.longest_path(outcome.costs.executions)


@many
@given(scenarios())
def test_no_task_starts_before_its_upstream_tasks_have_ended(scenario: Scenario) -> None:
    """A copied task has ended when one of its executions has."""
    spans = scenario.run().timeline.of_kind("execute")
    ends: dict[TaskId | None, float] = {}
    for span in spans:
        ends[span.task] = min(span.end, ends.get(span.task, span.end))
    for span in spans:
        assert span.task is not None
        for source in scenario.plan.workflow.upstream[span.task]:
            assert ends[source] <= span.start


@many
@given(scenarios())
def test_no_worker_runs_more_tasks_at_once_than_it_has_slots(scenario: Scenario) -> None:
    executions = scenario.run().timeline.of_kind("execute")
    for worker, resources in scenario.plan.workers.items():
        spans = [span for span in executions if span.worker == worker]
        assert most_at_once(spans) <= resources.slots


@many
@given(scenarios())
def test_pool_never_has_more_sandboxes_than_its_capacity(scenario: Scenario) -> None:
    outcome = scenario.run()
    assert 1 <= outcome.pool.most <= scenario.capacity
    cold = [kind for kind, acquired in outcome.pool.starts if acquired.start == "cold"]
    warmed = len(outcome.simulation.warmed)
    assert len(outcome.timeline.of_kind("cold start")) + warmed == len(cold)


@many
@given(scenarios())
def test_no_more_workers_run_than_allowed(scenario: Scenario) -> None:
    most = scenario.run().pool.most_at_work
    assert 1 <= most <= (scenario.workers or scenario.capacity)


@many
@given(scenarios(), lingers)
def test_one_sandbox_is_enough_if_workers_park(scenario: Scenario, linger: float) -> None:
    cramped = replace(scenario, plan=replace(scenario.plan, linger=linger), capacity=1)
    assert_complete(cramped, cramped.run())


@many
@given(
    length=st.integers(2, 30),
    workers=st.integers(2, 4),
    linger=lingers,
    repeats=st.lists(delays, min_size=1, max_size=4),
    sizes=st.lists(st.sampled_from([1, INLINE_NBYTES + 1]), min_size=1, max_size=5),
    capacity=st.integers(1, 4),
)
def test_worker_may_park_many_times_while_messages_are_repeated(
    length: int,
    workers: int,
    linger: float,
    repeats: list[tuple[float, ...]],
    sizes: list[int],
    capacity: int,
) -> None:
    """A chain alternates between the workers, and the last task takes every output."""
    wiring = {f"t{i}": [f"t{i - 1}"] if i else [] for i in range(length)}
    wiring["end"] = list(wiring)
    plan = round_robin(wiring, workers, linger)
    scenario = Scenario(plan, (1.0, 0.25), tuple(sizes), tuple(repeats), capacity)
    with checked_machines():
        assert_complete(scenario, scenario.run())


def round_robin(wiring: dict[str, list[str]], workers: int, linger: float | None) -> Plan:
    """Plan tasks on workers in turn."""
    plan = plan_of(wiring, {"w0": list(wiring)}, linger=linger)
    placements = {
        task: Placement(WorkerId(f"w{number % workers}"), CONFIGURATIONS[0])
        for number, task in enumerate(plan.workflow.calls)
    }
    return replace(plan, placements=placements)


@examples(1500)
@given(seed=st.integers(0, 2**32), tasks=st.integers(1, 24))
def test_all_invariants_hold_for_thousands_of_small_plans(seed: int, tasks: int) -> None:
    scenario = large_scenario(seed, tasks)
    with checked_machines():
        assert_complete(scenario, scenario.run())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_all_invariants_hold_for_large_plans(seed: int) -> None:
    scenario = large_scenario(seed, 400)
    outcome = scenario.run()
    assert_complete(scenario, outcome)
    assert outcome.pool.most <= scenario.capacity
    assert outcome.timeline.makespan >= scenario.longest_path(outcome.costs.executions)


def test_a_worker_that_is_woken_often_still_parks_and_releases_its_sandbox() -> None:
    """Timers of earlier waits must not keep a worker from parking.

    1. The only sandbox goes to w0, then to w1, which waits for w0 more than once.
    2. Each message arrives three times, so that w1's waits and their timers overlap.
    3. w0 gets the sandbox back each time, because w1 parks nevertheless.
    """
    wiring = {f"t{i}": [f"t{i - 1}"] if i else [] for i in range(12)}
    plan = round_robin(wiring, 2, linger=0.5)
    scenario = Scenario(plan, (0.125,), (1,), ((0.0, 0.125, 0.25),), capacity=1)
    outcome = scenario.run()
    assert_complete(scenario, outcome)
    starts = Counter(s.worker for s in outcome.timeline.of_kind("cold start", "warm start"))
    assert starts[w0] > 3
    assert starts[w1] > 3


def test_a_plan_whose_workers_wait_forever_in_a_small_pool_is_an_error() -> None:
    plan = plan_of({"a": "", "b": "a", "c": "b"}, {"w0": "ac", "w1": "b"}, linger=None)
    scenario = Scenario(plan, (1.0,), (1,), capacity=1)
    with pytest.raises(WorkflowError, match=r"never ends: workers \['w0', 'w1'\]"):
        scenario.run()


def test_a_worker_that_comes_back_in_time_starts_warm() -> None:
    plan = plan_of({"a": "", "b": "a", "c": "b"}, {"w0": "ac", "w1": "b"}, linger=0.0)
    timeline = Scenario(plan, (0.125,), (1,), capacity=1).run().timeline
    kinds = [(s.kind, s.worker) for s in timeline.of_kind("cold start", "warm start")]
    assert kinds == [("cold start", w0), ("warm start", w1), ("warm start", w0)]


def test_a_worker_that_comes_back_too_late_starts_cold() -> None:
    plan = plan_of({"a": "", "b": "a", "c": "b"}, {"w0": "ac", "w1": "b"}, linger=0.0)
    timeline = Scenario(plan, (0.125,), (1,), capacity=1, idle_seconds=0.0).run().timeline
    kinds = [(s.kind, s.worker) for s in timeline.of_kind("cold start", "warm start")]
    assert kinds == [("cold start", w0), ("cold start", w1), ("cold start", w0)]


def test_with_a_remote_store_outputs_and_messages_travel_together() -> None:
    """Everything takes a second, a cold start two; `a` is too large to travel with its mark.

    w0's mark arrives with the output, and w0 asks for w1 before it hands its timeline in.
    """
    plan = plan_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"})
    timeline = simulate(plan, DrawnCosts((1.0,), (INLINE_NBYTES + 1, 1)))
    assert [(s.kind, s.worker, s.task, s.start, s.end, s.nbytes) for s in timeline.spans] == [
        ("cold start", w0, None, 0.0, 2.0, 0),
        ("execute", w0, a, 2.0, 3.0, INLINE_NBYTES + 1),
        ("save", w0, a, 3.0, 4.0, INLINE_NBYTES + 1),
        ("cold start", w1, None, 4.0, 6.0, 0),
        ("leave", w0, None, 5.0, 5.0, 0),
        ("fetch", w1, a, 6.0, 7.0, INLINE_NBYTES + 1),
        ("execute", w1, b, 7.0, 8.0, 1),
        ("leave", w1, None, 8.0, 8.0, 0),
    ]
    assert timeline.makespan == 9.0


TICK = 1 / 1024


def near_run(nbytes: int) -> list[tuple[str, WorkerId, float, float]]:
    """Spans of `a`, whose output has this size, then `b` on another worker, near the store.

    Everything takes a tick, a cold start 1,024 ticks more.
    """
    plan = plan_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"})
    timeline = simulate(plan, DrawnCosts((TICK,), (nbytes, 1)))
    return [(s.kind, s.worker, s.start / TICK, s.end / TICK) for s in timeline.spans[1:]]


def test_near_the_store_messages_and_the_timeline_follow_an_output_in_shared_memory() -> None:
    """w0 keeps its sandbox until the reply arrives, so w1 starts in another one."""
    assert near_run(SHARED_NBYTES) == [
        ("execute", w0, 1025, 1026),
        ("save", w0, 1026, 1027),
        ("leave", w0, 1027, 1027),
        ("cold start", w1, 1028, 2053),
        ("fetch", w1, 2053, 2054),
        ("execute", w1, 2054, 2055),
        ("leave", w1, 2055, 2055),
    ]


def test_near_the_store_the_timeline_follows_the_trip_that_saves_an_output() -> None:
    """`a` isn't large enough for shared memory, and travels with its mark.

    w0 asks for w1 until 1028, and then hands its timeline in.
    """
    assert near_run(SHARED_NBYTES - 1) == [
        ("execute", w0, 1025, 1026),
        ("save", w0, 1026, 1027),
        ("cold start", w1, 1027, 2052),
        ("leave", w0, 1028, 1028),
        ("fetch", w1, 2052, 2053),
        ("execute", w1, 2053, 2054),
        ("leave", w1, 2054, 2054),
    ]


def near_executions(seconds: float, slots: int = 1) -> list[float]:
    """Return when `a` and `b` start, in ticks, if `a` is sent to another worker near the store."""

    class Costs(DrawnCosts):
        def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
            return seconds

        def startup(
            self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
        ) -> float:
            return 0.0

    plan = plan_of(
        {"a": "", "b": "a", "c": "a"},
        {"w0": "ab", "w1": "c"},
        resources={"w0": CONFIGURATIONS[slots - 1], "w1": CONFIGURATIONS[0]},
    )
    return [tick / TICK for tick in starts(simulate(plan, Costs((TICK,), (1,))), "execute", w0)]


@pytest.mark.parametrize("slots", [1, 2])
def test_near_the_store_a_slot_waits_for_the_round_trip_after_a_long_task(slots: int) -> None:
    """The slot that ran `a` also requests w1's start, and runs `b` afterwards."""
    assert near_executions(3 * TICK, slots) == [0.0, 5.0]


def test_near_the_store_a_slot_does_not_wait_for_the_round_trip_after_a_short_task() -> None:
    assert near_executions(TICK) == [0.0, 1.0]


def test_with_a_remote_store_a_worker_continues_and_batches_what_it_sends() -> None:
    """`b` and `c` end while `a` is saved; both are sent in the next trip."""
    large = (INLINE_NBYTES + 1,)
    wiring = {"a": "", "b": "a", "c": "b", "d": "abc"}
    timeline = simulate(plan_of(wiring, {"w0": "abc", "w1": "d"}), Slow((0.25,), large))
    saves = [(s.task, s.start, s.end, s.nbytes) for s in timeline.of_kind("save") if s.task != d]
    assert saves == [
        (a, 1.5, 2.5, large[0]),
        (b, 2.5, 3.5, 2 * large[0]),
        (c, 3.5, 3.5, 0),
    ]
    assert [s.start for s in timeline.of_kind("execute")][:3] == [1.25, 1.5, 1.75]


class Slow(DrawnCosts):
    """Every trip to the store takes a second."""

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        return 1.0

    def coordination(self) -> float:
        return 1.0


def test_a_transfer_takes_as_long_as_outputs_of_its_task_do() -> None:
    class Mapped(Slow):
        def transfer_of(
            self, task: TaskId, direction: Direction, nbytes: int, resources: Resources
        ) -> float:
            return 0.25 if task == b else super().transfer_of(task, direction, nbytes, resources)

    plan = plan_of({"a": "", "b": "", "c": "a", "d": "b"}, {"w0": "ab", "w1": "c", "w2": "d"})
    timeline = simulate(plan, Mapped((1.0,), (10**7,)))
    moved = {(s.kind, s.task): s.seconds for s in timeline.of_kind("save", "fetch")}
    assert (moved["save", a], moved["save", b]) == (1.0, 0.25)
    assert (moved["fetch", a], moved["fetch", b]) == (1.0, 0.25)


def test_a_message_to_a_running_worker_is_part_of_the_timeline() -> None:
    """`c` waits for `a`, which w0 has itself, and for `b`; w2 is started for `d` by its message."""
    plan = plan_of({"a": "", "b": "", "c": "ab", "d": "c"}, {"w0": "ac", "w1": "b", "w2": "d"})
    timeline = simulate(plan, DrawnCosts((1.0,), (1,)))
    assert [(s.worker, s.task, s.start, s.end) for s in timeline.of_kind("deliver")] == [
        (w0, c, 3.0, 4.0)
    ]


@many
@given(scenarios())
def test_makespan_is_the_same_whether_the_run_is_recorded_or_not(scenario: Scenario) -> None:
    def costs() -> DrawnCosts:
        return DrawnCosts(scenario.seconds, scenario.sizes, scenario.constants())

    def pool() -> WarmPool[Resources]:
        return WarmPool(scenario.capacity, scenario.idle_seconds)

    recorded = simulate(scenario.plan, costs(), pool())
    assert makespan_of(scenario.plan, costs(), pool()) == recorded.makespan


@pytest.mark.slow
def test_chain_of_100_000_tasks_is_simulated_without_recursion() -> None:
    length = 100_000
    wiring = {f"t{i}": [f"t{i - 1}"] if i else [] for i in range(length)}
    plan = plan_of(wiring, {"w0": list(wiring)})
    timeline = simulate(plan, DrawnCosts((1.0,), (1,)))
    assert len(timeline.of_kind("execute")) == length
    assert timeline.makespan == length + 3.0


class SetCosts(DrawnCosts):
    """Everything but messages takes a second unless set otherwise; outputs are large."""

    def __init__(self, executions: dict[str, float], cold: float = 1.0) -> None:
        super().__init__((1.0,), (INLINE_NBYTES + 1,))
        self._executions = executions
        self._cold = cold

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return 0 for a warm start."""
        return 0.0 if warm else self._cold

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return the given duration."""
        return self._executions.get(task, 1.0)

    def coordination(self) -> float:
        """Return 0."""
        return 0.0


def starts(timeline: Timeline, kind: str, worker: WorkerId) -> list[float]:
    """Return when a worker's spans of a kind start."""
    return [span.start for span in timeline.of_kind(kind) if span.worker == worker]


def test_large_constant_is_fetched_once_by_each_worker_that_needs_it() -> None:
    class Costs(SetCosts):
        @property
        def constants(self) -> dict[TaskId, dict[TaskId, int]]:
            """Return one constant that all tasks share."""
            return {task: {TaskId("constant"): 10**6} for task in (a, b, c)}

        def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
            """Count the constant as part of the input."""
            return float(input_nbytes == 10**6)

    plan = plan_of({"a": "", "b": "", "c": ""}, {"w0": "ab", "w1": "c"})
    timeline = simulate(plan, Costs({}))
    fetches = [(span.worker, span.task, span.nbytes) for span in timeline.of_kind("fetch")]
    assert fetches == [(w0, "constant", 10**6), (w1, "constant", 10**6)]
    assert [span.seconds for span in timeline.of_kind("execute")] == [1.0, 1.0, 1.0]


def test_a_worker_does_one_transfer_at_a_time() -> None:
    plan = plan_of({"a": "", "b": "", "c": "ab"}, {"w0": "a", "w2": "b", "w1": "c"})
    timeline = simulate(plan, SetCosts({}))
    assert starts(timeline, "fetch", w1) == [3.0, 4.0]


def test_a_single_slot_saves_before_it_continues() -> None:
    """`a` ends at 2 and is saved until 3; only then `b` begins."""
    plan = plan_of({"a": "", "b": "", "c": "a"}, {"w0": "ab", "w1": "c"})
    assert starts(simulate(plan, SetCosts({})), "execute", w0) == [1.0, 3.0]


def test_nothing_starts_before_the_client_has_launched_the_run() -> None:
    class Costs(SetCosts):
        def launch(self) -> float:
            """Return five seconds."""
            return 5.0

    assert starts(simulate(plan_of({"a": ""}, {"w0": "a"}), Costs({})), "cold start", w0) == [5.0]


def test_tasks_run_in_the_order_of_their_ranks() -> None:
    plan = plan_of({"a": "", "b": "", "c": ""}, {"w0": "abc"})
    ranked = replace(plan, ranks={a: 2, b: 0, c: 1})
    order = [span.task for span in simulate(ranked, SetCosts({})).of_kind("execute")]
    assert order == [b, c, a]


class SetRates(SetCosts):
    """Transfers take a second per byte."""

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        return nbytes / (INLINE_NBYTES + 1)


def test_outputs_fetched_together_are_one_transfer() -> None:
    timeline = simulate(
        plan_of({"a": "", "b": "", "d": "ab"}, {"w0": "ab", "w1": "d"}), SetCosts({})
    )
    first, second = timeline.of_kind("fetch")
    assert (first.seconds, first.nbytes) == (1.0, 2 * (INLINE_NBYTES + 1))
    assert (second.start, second.seconds, second.nbytes) == (first.end, 0.0, 0)


def test_preloaded_input_is_fetched_while_the_other_is_computed() -> None:
    """`d` waits for `a`, saved at 3, and `b`, saved at 12; w1 runs because of `c`."""
    wiring = {"a": "", "b": "", "c": "", "d": "ab"}
    assignment = {"w0": "a", "w1": "cd", "w2": "b"}
    costs = SetRates({"b": 10.0})
    plain = simulate(plan_of(wiring, assignment), costs)
    preloaded = simulate(plan_of(wiring, assignment, preload="d"), costs)
    assert starts(plain, "fetch", w1) == [12.0, 14.0]
    assert starts(preloaded, "fetch", w1) == [3.0, 12.0]
    assert preloaded.makespan == plain.makespan - 1.0


def test_announcement_does_not_start_a_worker() -> None:
    wiring = {"a": "", "b": "", "c": "ab"}
    plan = plan_of(wiring, {"w0": "a", "w1": "c", "w2": "b"}, preload="c")
    timeline = simulate(plan, SetCosts({"b": 10.0}))
    assert starts(timeline, "cold start", w1) + starts(timeline, "warm start", w1) == [12.0]


SMALL_WORKER, LARGE_WORKER = CONFIGURATIONS[:2]


def warmed(delay: float, execution: float, **pool: Any) -> tuple[Simulation, Timeline]:
    """`a` on a small worker, then `b` on a large one that is warmed up while `a` runs."""
    plan = plan_of(
        {"a": "", "b": "a"},
        {"w0": "a", "w1": "b"},
        resources={"w0": SMALL_WORKER, "w1": LARGE_WORKER},
        prewarm={"a": (Prewarm(LARGE_WORKER, delay),)},
    )
    costs = SetCosts({"a": execution}, cold=5.0)
    simulation = Simulation(plan, costs, WarmPool(**pool))
    return simulation, simulation.run()


def test_worker_whose_sandbox_was_warmed_up_in_time_starts_warm() -> None:
    simulation, timeline = warmed(delay=6.0, execution=10.0)
    assert simulation.warmed == [LARGE_WORKER]
    [start] = timeline.of_kind("warm start")
    assert (start.worker, start.start, start.seconds) == (w1, 16.0, 0.0)


def test_worker_whose_sandbox_is_still_being_warmed_up_waits_for_it() -> None:
    """As in the gateway, the sandbox counts as idle, and is ready 5 s after the request."""
    _, timeline = warmed(delay=1.0, execution=2.0)
    [start] = timeline.of_kind("warm start")
    assert (start.worker, start.start, start.end) == (w1, 8.0, 11.0)


def test_sandbox_that_was_warmed_up_too_early_is_gone() -> None:
    _, timeline = warmed(delay=0.0, execution=10.0, idle_seconds=7.0)
    assert timeline.of_kind("warm start") == ()


def test_nothing_is_warmed_up_in_a_full_pool() -> None:
    simulation, timeline = warmed(delay=1.0, execution=10.0, capacity=1)
    assert simulation.warmed == []
    assert timeline.of_kind("warm start") == ()


def test_nothing_is_warmed_up_if_such_a_sandbox_is_idle() -> None:
    pool: WarmPool[Resources] = WarmPool(idle_seconds=100.0)
    idle = pool.acquire(LARGE_WORKER, 0.0)
    assert idle is not None
    pool.release(idle.sandbox, 0.0)
    plan = plan_of({"a": ""}, {"w0": "a"}, prewarm={"a": (Prewarm(LARGE_WORKER),)})
    simulation = Simulation(plan, SetCosts({}), pool)
    simulation.run()
    assert simulation.warmed == []


@pytest.mark.parametrize("seconds", [1.0, 30.0])
def test_the_first_of_a_task_and_its_copy_counts(seconds: float) -> None:
    """If `a` takes 30 s on w0, much longer than expected, w1 copies it at 3.5 s."""
    plan = plan_of(
        {"a": "", "b": "a", "c": "", "d": "bc"},
        {"w0": "a", "w1": "bcd"},
        duplicable="a",
        expected={"a": (1.0, 2.0)},
    )

    class Costs(SetCosts):
        def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
            return seconds if task == a and not simulation.performed else 1.0

    simulation = Simulation(plan, Costs({}), WarmPool(), perform=lambda task, inputs: task)
    timeline = simulation.run()
    late = seconds > 1.0
    assert simulation.performed.count((a, w1)) == late
    assert simulation.results == {d: d}
    assert starts(timeline, "execute", w1)[:2] == [1.0, 3.5 if late else 4.0]
    assert len(starts(timeline, "fetch", w1)) == (not late)
