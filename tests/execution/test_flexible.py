"""Flexible workers: the machine's effects, and invariants for any workflow and any delays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from execution_examples import ONE_SLOT, a, b, c, d, e
from execution_strategies import (
    CONFIGURATIONS,
    DrawnCosts,
    Outcome,
    Scenario,
    large_scenario,
    scenarios,
)
from flexible_examples import (
    CheckedFlexible,
    flexible_machine,
    flexible_plan,
    made_flexible,
    policies,
)
from hypothesis import given
from hypothesis import strategies as st

from examples_drawn import examples
from shoal.errors import ProtocolViolation, WorkflowError
from shoal.execution import flexible as flexible_module
from shoal.execution import simulator
from shoal.execution.effects import (
    Abort,
    Execute,
    Fetch,
    Finish,
    Forget,
    HandIn,
    Invoke,
    Leave,
    Mark,
    Save,
    SetTimer,
)
from shoal.execution.events import (
    Arrived,
    Executed,
    Failed,
    Fetched,
    Marked,
    Recovered,
    Saved,
    Started,
    TimerFired,
)
from shoal.execution.flexible import INVOKED_NBYTES
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.plan import Placement
from shoal.execution.policies import Policies
from shoal.execution.pool import WarmPool
from shoal.execution.retries import retry_pause
from shoal.execution.simulator import Simulation, simulate
from shoal.execution.timers import RetryTimer
from shoal.types import MB_PER_CPU, Resources, TaskId, WorkerId

SMALL, LARGE = INLINE_NBYTES, INVOKED_NBYTES + 1
TWO_SLOTS = Resources(memory_mb=2 * MB_PER_CPU)
many = examples(300)


def mark(task: TaskId, producer: TaskId, *others: TaskId, saved: bool = False) -> Mark:
    """Return a mark of a task for one of its upstream tasks, which are given in order."""
    outputs = ((), (producer,)) if saved else ((producer,), ())
    return Mark(task, None, tuple(sorted((producer, *others))), *outputs, producer)


# One worker.


def test_nothing_is_written_on_the_edges_of_a_chain() -> None:
    machine = flexible_machine({"a": "", "b": "a", "c": "b"}, "a")
    assert machine.handle(Arrived(a)) == [Execute(a)]
    assert machine.handle(Executed(a, LARGE)) == [Execute(b)]
    assert machine.handle(Executed(b, LARGE)) == [Execute(c), Forget((a,))]
    assert machine.handle(Executed(c, 1)) == [HandIn(c, saved=False), Forget((c, b)), Finish()]
    assert machine.finished


def test_at_a_fan_out_the_worker_becomes_the_first_branch_and_invokes_the_others() -> None:
    machine = flexible_machine({"a": "", "b": "a", "c": "a", "d": "a"}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, SMALL)) == [
        Execute(b),
        Invoke(c, (a,)),
        Invoke(d, (a,)),
    ]
    assert machine.handle(Executed(b, 1)) == [HandIn(b, saved=False), Forget((b, a)), Finish()]


def test_a_large_output_is_saved_once_before_workers_are_invoked_for_branches() -> None:
    machine = flexible_machine({"a": "", "b": "a", "c": "a", "d": "a"}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, LARGE)) == [Execute(b), Save(a)]
    assert machine.handle(Saved(a)) == [Invoke(c, ()), Invoke(d, ())]


def test_a_small_output_for_many_branches_is_saved_once_too() -> None:
    branches = {f"b{number}": "a" for number in range(INVOKED_NBYTES // SMALL + 2)}
    machine = flexible_machine({"a": "", **branches}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, SMALL)) == [Execute(TaskId("b0")), Save(a)]
    assert machine.handle(Saved(a)) == [Invoke(TaskId(t), ()) for t in list(branches)[1:]]


def test_a_worker_with_two_slots_becomes_two_branches() -> None:
    machine = flexible_machine({"a": "", "b": "a", "c": "a", "d": "a"}, "a", resources=TWO_SLOTS)
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, 1)) == [Execute(b), Execute(c), Invoke(d, (a,))]


def test_the_worker_that_sets_the_last_mark_runs_the_fan_in() -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "ab"}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, SMALL)) == [mark(c, a, b), Leave()]
    assert machine.handle(Marked(c, a, claimed=True, held=(a, b))) == [Execute(c)]
    assert machine.handle(Executed(c, 1)) == [HandIn(c, saved=False), Forget((c, a, b)), Finish()]


def test_a_worker_that_sets_an_earlier_mark_stops() -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "ab"}, "a")
    machine.handle(Arrived(a))
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Marked(c, a, claimed=False)) == [Forget((a,)), Finish()]


def test_a_worker_does_not_leave_with_a_mark_while_another_of_its_marks_may_be_the_last() -> None:
    machine = flexible_machine({"a": "", "b": "a", "c": "", "d": "ac", "e": "bc"}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, 1)) == [Execute(b), mark(d, a, c)]
    assert machine.handle(Executed(b, 1)) == [mark(e, b, c)]
    assert machine.handle(Marked(d, a, claimed=True, held=(a, c))) == [Execute(d)]


def test_a_worker_does_not_leave_with_a_mark_before_it_has_saved() -> None:
    machine = flexible_machine(
        {"a": "", "b": "a", "c": "a", "d": "", "e": "bd", "f": "cd"}, "a", resources=TWO_SLOTS
    )
    machine.handle(Arrived(a))
    machine.handle(Executed(a, 1))
    assert machine.handle(Executed(c, LARGE)) == [Save(c)]
    assert machine.handle(Executed(b, 1)) == [mark(e, b, d), Forget((a,))]
    assert machine.handle(Marked(e, b, claimed=False)) == [Forget((b,))]
    assert machine.handle(Saved(c)) == [mark(TaskId("f"), c, d, saved=True), Leave()]


def test_a_large_output_is_saved_before_a_fan_in_is_marked() -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "ab"}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, LARGE)) == [Save(a)]
    assert machine.handle(Saved(a)) == [mark(c, a, b, saved=True), Leave()]
    assert machine.handle(Marked(c, a, claimed=False)) == [Forget((a,)), Finish()]


def test_a_claimed_fan_in_fetches_only_what_is_not_in_memory() -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "", "d": "abc"}, "a")
    machine.handle(Arrived(a))
    machine.handle(Executed(a, LARGE))
    machine.handle(Saved(a))
    assert machine.handle(Marked(d, a, claimed=True, held=(c,))) == [Fetch((b,))]
    assert machine.handle(Fetched((b,))) == [Execute(d)]


def test_a_fan_in_claimed_while_the_slot_is_busy_gets_a_new_worker() -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "a", "d": "ab"}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, 1)) == [Execute(c), mark(d, a, b)]
    answer = machine.handle(Marked(d, a, claimed=True, held=(a, b)))
    assert answer == [Invoke(d, (a, b)), Forget((b,))]


def test_of_two_claimed_fan_ins_one_gets_a_new_worker() -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "ab", "d": "ab"}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, 1)) == [mark(c, a, b), mark(d, a, b), Leave()]
    assert machine.handle(Marked(c, a, claimed=True, held=(a, b))) == [Execute(c)]
    assert machine.handle(Marked(d, a, claimed=True, held=(a, b))) == [Invoke(d, (a, b))]


def test_the_many_inputs_of_a_fan_in_for_a_new_worker_are_saved_first() -> None:
    roots = {f"r{number}": "" for number in range(INVOKED_NBYTES // SMALL + 1)}
    machine = flexible_machine({**roots, "x": ["r0"], "y": list(roots)}, "r0")
    names = tuple(map(TaskId, roots))
    x, y = TaskId("x"), TaskId("y")
    machine.handle(Arrived(names[0]))
    machine.handle(Executed(names[0], SMALL))
    effects = machine.handle(Marked(y, names[0], claimed=True, held=names))
    assert effects == [Save(name) for name in names]
    saved = [machine.handle(Saved(name)) for name in names]
    assert [step for steps in saved for step in steps if isinstance(step, Invoke)] == [
        Invoke(y, ())
    ]
    assert machine.handle(Executed(x, 1))[-1] == Finish()


def test_a_large_sink_is_saved_before_it_is_handed_in() -> None:
    machine = flexible_machine({"a": ""}, "a")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, LARGE)) == [Save(a)]
    assert machine.handle(Saved(a)) == [HandIn(a, saved=True), Forget((a,)), Finish()]


def test_an_output_with_consumers_of_every_kind_is_saved_once() -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "a", "d": "a", "e": "ab"}, "a", sinks="acde")
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, LARGE)) == [Execute(c), Save(a)]
    assert machine.handle(Saved(a)) == [
        Invoke(d, ()),
        mark(e, a, b, saved=True),
        HandIn(a, saved=True),
    ]


def test_inputs_that_came_with_the_invocation_are_not_fetched() -> None:
    machine = flexible_machine({"a": "", "b": "a", "c": "a"}, "c")
    assert machine.handle(Arrived(c, held=(a,))) == [Execute(c)]
    machine = flexible_machine({"a": "", "b": "a", "c": "a"}, "c")
    assert machine.handle(Arrived(c)) == [Fetch((a,))]


def test_a_constant_that_the_next_task_needs_stays_in_memory() -> None:
    k = TaskId("constant:k")
    machine = flexible_machine({"a": "", "b": "a"}, "a", constants={"a": [k], "b": [k]})
    assert machine.handle(Arrived(a)) == [Fetch((k,))]
    assert machine.handle(Fetched((k,))) == [Execute(a)]
    assert machine.handle(Executed(a, LARGE)) == [Execute(b)]
    assert machine.handle(Executed(b, 1))[1] == Forget((b, a, k))


def test_a_failed_task_keeps_its_slot_until_the_retry() -> None:
    wiring = {"a": "", "b": "a", "c": "", "d": "ac"}
    machine = flexible_machine(wiring, "a", retries={"b": 2})
    machine.handle(Arrived(a))
    machine.handle(Executed(a, 1))
    assert machine.handle(Failed(b)) == [SetTimer(RetryTimer(b), retry_pause(b, 0))]
    assert machine.handle(Marked(d, a, claimed=True, held=(a, c)))[0] == Invoke(d, (a, c))
    assert machine.handle(TimerFired(RetryTimer(b))) == [Execute(b)]
    assert machine.handle(Failed(b)) == [SetTimer(RetryTimer(b), retry_pause(b, 1))]
    machine.handle(TimerFired(RetryTimer(b)))
    assert machine.handle(Failed(b)) == [Save(a), Abort(b)]
    assert machine.finished


@pytest.mark.parametrize(
    "event",
    [
        Started(),
        Arrived(b),
        Executed(b, 1),
        Failed(b),
        Saved(a),
        Fetched((a,)),
        Marked(c, a, claimed=True),
        TimerFired(RetryTimer(a)),
    ],
)
def test_an_invalid_event_is_rejected(event: Any) -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "ab"}, "a")
    machine.handle(Arrived(a))
    with pytest.raises(ProtocolViolation, match="worker a"):
        machine.handle(event)


def test_the_story_of_a_task_names_its_marks() -> None:
    machine = flexible_machine({"a": "", "b": "", "c": "ab"}, "a")
    machine.handle(Arrived(a), now=1.0)
    machine.handle(Executed(a, 1), now=2.0)
    assert [line.partition("(")[0] for line in machine.story(a)] == [
        "1.000000 Arrived",
        "1.000000 Execute",
        "2.000000 Executed",
        "2.000000 Mark",
    ]


# Plans.


def test_a_flexible_plan_has_no_workers_and_one_configuration() -> None:
    plan = flexible_plan({"a": "", "b": "a"})
    assert plan.flexible
    assert plan.workers == {}
    assert plan.resources_of(WorkerId("b")) == ONE_SLOT
    with pytest.raises(WorkflowError, match="flexible workers two configurations"):
        replace(plan, placements={a: Placement(None, ONE_SLOT), b: Placement(None, TWO_SLOTS)})


def test_a_flexible_part_says_which_outputs_may_travel() -> None:
    plan = flexible_plan({"a": "", "b": "a", "c": "b", "d": "b", "e": "cd"})
    assert plan.parts() == []
    part = plan.common_part()
    assert [task for task in part.tasks if part.travels(task)] == [b, c, d, e]
    assert part.downstream == {a: (b,), b: (c, d), c: (e,), d: (e,)}
    assert [task for task in part.tasks if part.fan_in(task)] == [e]
    assert part.producers(e) == (c, d)
    assert part.roots == [a]


def test_a_flexible_worker_is_rooted_if_its_first_task_waits_for_nothing() -> None:
    part = flexible_plan({"a": "", "b": "a"}).common_part()
    assert part.begun_with(a).rooted
    assert not part.begun_with(b).rooted


# Simulated runs.


def flexible(scenario: Scenario, resources: Resources, chosen: Policies | None = None) -> Scenario:
    return replace(scenario, plan=made_flexible(scenario.plan, resources, chosen))


flexible_scenarios = st.builds(
    flexible, scenarios(), st.sampled_from(CONFIGURATIONS), st.none() | policies
)


@pytest.fixture(autouse=True, scope="module")
def checked_machines() -> Iterator[None]:
    """Let every machine check its invariants after each event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "FlexibleMachine", CheckedFlexible)
        yield


def assert_right(scenario: Scenario, outcome: Outcome) -> None:
    """Assert that every task ran once, the results are right, and nothing is left."""
    simulation, workflow = outcome.simulation, scenario.plan.workflow
    performed = Counter(task for task, _ in simulation.performed)
    assert performed == dict.fromkeys(workflow.calls, 1)
    values = scenario.sequential()
    assert simulation.results == {sink: values[sink] for sink in workflow.sinks}
    for worker in simulation._workers.values():
        assert isinstance(worker.machine, CheckedFlexible)
        assert worker.machine.finished
        assert worker.values == {}
    assert outcome.pool.busy == 0


@many
@given(flexible_scenarios)
def test_every_task_runs_once_with_the_right_result_and_every_worker_ends(
    scenario: Scenario,
) -> None:
    assert_right(scenario, scenario.run())


@many
@given(flexible_scenarios)
def test_runs_are_right_even_if_nothing_may_travel_with_invocations(scenario: Scenario) -> None:
    """A worker that gives a task away saves the small outputs of others that it holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flexible_module, "INVOKED_NBYTES", -1)
        assert_right(scenario, scenario.run())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_large_workflows_are_right_too(seed: int) -> None:
    scenario = flexible(large_scenario(seed, 300), CONFIGURATIONS[seed % 3])
    assert_right(scenario, scenario.run())


@many
@given(flexible_scenarios)
def test_workers_begin_with_the_task_they_are_named_after(scenario: Scenario) -> None:
    outcome = scenario.run()
    first: dict[WorkerId, TaskId] = {}
    for task, worker in outcome.simulation.performed:
        first.setdefault(worker, task)
    assert all(worker == task for worker, task in first.items())
    assert set(outcome.timeline.workers) == first.keys()
    starts = outcome.timeline.of_kind("cold start", "warm start")
    assert Counter(span.worker for span in starts) == Counter(first.keys())


@many
@given(flexible_scenarios)
def test_a_worker_never_runs_more_tasks_than_it_has_slots(scenario: Scenario) -> None:
    """A worker without a free slot invokes another instead of letting a ready task wait."""
    timeline = scenario.run().timeline
    for worker in timeline.workers:
        spans = [s for s in timeline.of_kind("execute") if s.worker == worker]
        for span in spans:
            beside = [s for s in spans if s.start <= span.start < s.end]
            assert len(beside) <= scenario.plan.placements[TaskId(worker)].resources.slots


@many
@given(flexible_scenarios)
def test_no_more_flexible_workers_run_than_allowed(scenario: Scenario) -> None:
    most = scenario.run().pool.most_at_work
    assert 1 <= most <= (scenario.workers or scenario.capacity)


def test_a_fan_out_takes_turns_on_the_allowed_workers() -> None:
    plan = flexible_plan({"root": [], **{f"leaf-{n}": ["root"] for n in range(12)}})
    costs = DrawnCosts([1.0], [1])
    bounded = simulate(plan, costs, WarmPool(12), workers=2)
    ends = sorted(span.end for span in bounded.of_kind("leave"))
    starts = sorted(span.start for span in bounded.of_kind("cold start", "warm start"))
    assert len(starts) == 12
    assert all(start >= end for start, end in zip(starts[2:], ends, strict=False))


def tree(leaves: int) -> dict[str, list[str]]:
    """Build a binary reduction."""
    wiring: dict[str, list[str]] = {f"0-{number}": [] for number in range(leaves)}
    level = list(wiring)
    while len(level) > 1:
        depth = int(level[0].partition("-")[0]) + 1
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        wiring |= {f"{depth}-{number}": pair for number, pair in enumerate(pairs)}
        level = [f"{depth}-{number}" for number in range(len(pairs))]
    return wiring


def test_a_tree_reduction_has_a_worker_for_each_leaf_and_one_result() -> None:
    plan = flexible_plan(tree(64))
    simulation = Simulation(plan, DrawnCosts([0.125, 0.5], [1]), WarmPool(4))
    timeline = simulation.run()
    assert len(timeline.workers) == 64
    assert len(timeline.of_kind("execute")) == 127
    assert not timeline.of_kind("fetch", "save")
    assert timeline.makespan > 0


def test_large_outputs_are_fetched_once_by_the_worker_that_continues() -> None:
    plan = flexible_plan(tree(8))
    timeline = Simulation(plan, DrawnCosts([0.125, 0.5], [LARGE]), WarmPool()).run()
    assert len(timeline.of_kind("save")) == 15
    assert len(timeline.of_kind("fetch")) == 7


def test_the_answer_to_the_last_mark_is_part_of_the_timeline() -> None:
    timeline = simulate(flexible_plan(tree(8)), DrawnCosts([0.5], [1]))
    assert [span.seconds for span in timeline.of_kind("deliver")] == [0.5] * 7


def test_lost_inputs_of_an_invoked_worker_are_saved_again() -> None:
    """The output of `a` was in the shared memory of a lost machine, and `c` waits for it."""
    machine = flexible_machine({"a": "", "b": "a", "c": "a"}, "a")
    machine.handle(Started(recovered=Recovered(started=frozenset({WorkerId("a"), WorkerId("c")}))))
    assert machine.handle(Arrived(a)) == [Execute(a)]
    assert machine.handle(Executed(a, LARGE)) == [Save(a), Execute(b)]
    assert machine.handle(Saved(a)) == []
    assert machine.handle(Executed(b, 1)) == [HandIn(b, saved=False), Forget((b, a)), Finish()]


def test_small_inputs_of_an_invoked_worker_travel_with_the_invocation() -> None:
    machine = flexible_machine({"a": "", "b": "a", "c": "a"}, "a")
    machine.handle(Started(recovered=Recovered(started=frozenset({WorkerId("a"), WorkerId("c")}))))
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, 1)) == [Execute(b)]
