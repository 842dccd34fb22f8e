"""Pre-loading, pre-warming and duplication: where planned, where dropped, where forced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain as chained
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_examples import LARGE, SMALL, Table, conditions, fan, step, workflow
from planning_strategies import cases

from examples_drawn import examples
from shoal import (
    AutoPlanner,
    NonUniformPlanner,
    PreLoadOptimization,
    Preview,
    PreWarmOptimization,
    Resources,
    TaskDupOptimization,
    UniformPlanner,
    task,
)
from shoal.errors import PlanError, UsageError
from shoal.execution.costs import Costs
from shoal.execution.plan import Placement, Plan, Prewarm
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import Simulation
from shoal.execution.timeline import Timeline
from shoal.planning.base import Conditions, validated
from shoal.planning.choice import planned
from shoal.planning.optimizations import forced, optimized
from shoal.planning.spread import SpreadPlanner
from shoal.types import TaskId, WorkerId
from shoal.workflow import Output, Workflow

ALL = (PreLoadOptimization, PreWarmOptimization, TaskDupOptimization)
FAR = 10**8
"""Bytes whose transfer takes a second in each direction."""


def placed(output: Output[Any], assignment: str, kinds: dict[str, Resources] | None = None) -> Plan:
    """Build a plan from the number of each task's worker, as in `"0011"`."""
    flow = workflow(output)
    placements = {}
    for name, owner in zip(flow.calls, assignment, strict=True):
        resources = (kinds or {}).get(owner, SMALL)
        placements[name] = Placement(WorkerId(f"w{owner}"), resources)
    return Plan(flow, placements)


def helped(plan: Plan, what: str) -> list[str]:
    """Return the numbers of the tasks whose placement has something set."""
    return [
        name.partition("#")[2]
        for name, placement in plan.placements.items()
        if getattr(placement, what)
    ]


class Charged(Conditions):
    """Conditions in which an optimized plan takes two seconds longer."""

    def simulate(self, plan: Plan, costs: Costs) -> Timeline:
        timeline = super().simulate(plan, costs)
        extra = any(p.preload or p.prewarm or p.duplicable for p in plan.placements.values())
        return replace(timeline, makespan=timeline.makespan + 2 * extra)


def charged(costs: Table) -> Conditions:
    return Charged(costs, 4, SMALL, lambda: WarmPool(64, 7.0))


def test_tasks_with_two_inputs_from_other_workers_are_preloaded() -> None:
    first, second, third = step(), step(), step()
    both, one = step(first, second), step(second, third)
    plan = placed(step(both, one), "012222")
    found = PreLoadOptimization(iterations=0).apply(plan, conditions(Table()), Table())
    assert helped(found, "preload") == ["2"]
    found = PreLoadOptimization(threshold=1, iterations=0).apply(plan, conditions(Table()), Table())
    assert helped(found, "preload") == ["2", "4"]


def waiting(*seconds: float) -> tuple[Plan, Table]:
    """Build a join of a remote input and a local task for each duration, and a sink.

    Without pre-loading, a join's worker fetches the remote input when its own task has ended.
    """
    joins, assignment = [], ""
    times, sizes = {}, {}
    for i, own in enumerate(seconds):
        joins.append(step(step(), step()))
        times[f"step#{3 * i + 1}"] = own
        sizes[f"step#{3 * i}"] = FAR
        assignment += f"{2 * i}{2 * i + 1}{2 * i + 1}"
    return placed(step(*joins), assignment + "1"), Table(times, sizes)


def test_a_task_of_the_critical_path_is_preloaded_if_that_shortens_the_plan() -> None:
    plan, costs = waiting(5.0)
    under = conditions(costs)
    found = PreLoadOptimization().apply(plan, under, costs)
    assert helped(found, "preload") == ["2"]
    before, after = (under.simulate(p, costs).makespan for p in (plan, found))
    assert before - after == pytest.approx(1.0)


def test_critical_paths_are_handled_one_after_another() -> None:
    """The second join becomes critical only when the first one is pre-loaded."""
    plan, costs = waiting(5.0, 4.5)
    under = conditions(costs)
    once = PreLoadOptimization(threshold=9, iterations=1).apply(plan, under, costs)
    assert "5" not in helped(once, "preload")
    more = PreLoadOptimization(threshold=9).apply(plan, under, costs)
    assert {"2", "5"} <= set(helped(more, "preload"))
    assert under.simulate(more, costs).makespan < under.simulate(once, costs).makespan


def test_preloading_that_shortens_nothing_is_not_planned() -> None:
    plan, costs = placed(step(step()), "01"), Table(sizes=FAR)
    assert PreLoadOptimization().apply(plan, conditions(costs), costs) == plan
    plan, costs = waiting(5.0)
    assert PreLoadOptimization().apply(plan, charged(costs), costs) == plan
    assert PreLoadOptimization(threshold=1).apply(plan, charged(costs), costs) == plan


def late(first: float = 10.0, *, idle: float = 7.0, **options: Any) -> tuple[Plan, Conditions]:
    """Build two tasks, the second on a worker with other resources that starts cold."""
    costs = Table({"step#0": first}, start=1.0, **options)
    plan = placed(step(step()), "01", {"1": LARGE})
    return plan, conditions(costs, pool=lambda: WarmPool(64, idle))


def warmed(plan: Plan, under: Conditions) -> dict[str, tuple[Prewarm, ...]]:
    found = PreWarmOptimization().apply(plan, under, under.predictions.at("median"))
    return {
        name.partition("#")[2]: placement.prewarm
        for name, placement in found.placements.items()
        if placement.prewarm
    }


def test_without_time_no_warm_up_is_planned() -> None:
    plan, under = late()
    assert warmed(plan, under)
    assert not warmed(plan, replace(under, seconds=1e-9))


@pytest.mark.parametrize(
    ("idle", "delay"),
    [(7.0, 7.5), (2.0, 8.75), (99.0, 6.5)],
)
def test_the_aim_is_three_quarters_into_the_window(idle: float, delay: float) -> None:
    """The first task runs from 1 to 11: the window ends at 10 and begins at 11 - `idle`, or 0."""
    plan, under = late(idle=idle)
    (found,) = warmed(plan, under)["0"]
    assert found == Prewarm(LARGE, pytest.approx(delay))


def test_a_warm_up_hides_a_cold_start() -> None:
    plan, under = late(coordination=0.5)
    costs = under.predictions.at("median")
    found = PreWarmOptimization().apply(plan, under, costs)
    assert found.placements[TaskId("step#0")].prewarm == (Prewarm(LARGE, pytest.approx(7.5)),)
    before, after = under.simulate(plan, costs), under.simulate(found, costs)
    assert len(before.of_kind("cold start")) == 2
    assert len(after.of_kind("cold start")) == 1
    assert before.makespan - after.makespan == pytest.approx(1.0)


def test_the_task_nearest_to_the_aim_warms() -> None:
    costs = Table({"step#0": 4.0, "step#1": 6.0}, start=1.0)
    plan = placed(step(step(step())), "001", {"1": LARGE})
    found = warmed(plan, conditions(costs))
    assert found == {"1": (Prewarm(LARGE, pytest.approx(3.5)),)}


def test_workers_that_start_together_have_a_sandbox_each() -> None:
    """An idle sandbox that was warmed for another worker doesn't count."""
    first = step()
    plan = placed(step(*[step(first) for _ in range(3)]), "01230", dict.fromkeys("123", LARGE))
    costs = Table({"step#0": 10.0}, start=1.0)
    under = conditions(costs)
    found = PreWarmOptimization().apply(plan, under, costs)
    assert found.placements[TaskId("step#0")].prewarm == (Prewarm(LARGE, pytest.approx(7.5), 3),)
    before, after = under.simulate(plan, costs), under.simulate(found, costs)
    assert len(before.of_kind("cold start")) == 4
    assert len(after.of_kind("cold start")) == 1
    assert before.makespan - after.makespan == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "delay", "saved"),
    [({"first": 0.5}, 0.0, 0.5), ({"idle": 0.5}, 9.625, 0.375)],
    ids=["the task is too short", "an idle sandbox is gone too soon"],
)
def test_a_start_that_is_too_long_to_hide_is_hidden_in_part(
    options: dict[str, float], delay: float, saved: float
) -> None:
    """The request is made when the task begins, or a quarter of the way to the start."""
    plan, under = late(**options)
    costs = under.predictions.at("median")
    found = PreWarmOptimization().apply(plan, under, costs)
    assert found.placements[TaskId("step#0")].prewarm == (Prewarm(LARGE, pytest.approx(delay)),)
    before, after = under.simulate(plan, costs), under.simulate(found, costs)
    assert before.makespan - after.makespan == pytest.approx(saved)


def test_starts_by_the_client_are_left_alone() -> None:
    costs = Table({"step#1": 5.0}, start=1.0)
    plan = placed(step(step(), step()), "010", {"1": LARGE})
    assert warmed(plan, conditions(costs)) == {}


def test_a_worker_that_has_parked_is_warmed_before_it_starts_again() -> None:
    costs = Table({"step#0": 20.0}, start=1.0)
    plan = placed(step(step(), step()), "011", {"1": LARGE})
    under = conditions(costs)
    assert len(under.simulate(plan, costs).of_kind("cold start")) == 3
    assert warmed(plan, under) == {"0": (Prewarm(LARGE, pytest.approx(17.5)),)}


class Crowded(Conditions):
    """Conditions in which a plan takes a second longer if it warms only some of three workers."""

    simulated = 0

    def simulate(self, plan: Plan, costs: Costs) -> Timeline:
        type(self).simulated += 1
        timeline = super().simulate(plan, costs)
        colds = len(timeline.of_kind("cold start"))
        return replace(timeline, makespan=timeline.makespan + (1 < colds < 4))


def crowd(*, gap: float = 0.0) -> tuple[Plan, Conditions]:
    """Build three workers that start cold after a long task, each a gap after the one before."""
    first = step()
    second = step(first)
    third = step(second)
    flow = step(step(first), step(second), step(third))
    plan = placed(flow, "0102030", dict.fromkeys("123", LARGE))
    costs = Table({"step#0": 10.0, "step#2": gap, "step#4": gap}, start=1.0)
    Crowded.simulated = 0
    return plan, Crowded(costs, 4, SMALL, lambda: WarmPool(64, 7.0))


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_workers_are_warmed_together_if_one_alone_gains_nothing(gap: float) -> None:
    plan, under = crowd(gap=gap)
    costs = under.predictions.at("median")
    found = PreWarmOptimization().apply(plan, under, costs)
    assert len(under.simulate(found, costs).of_kind("cold start")) == 1
    (prewarm,) = found.placements[TaskId("step#0")].prewarm
    assert prewarm.count == 3


def test_groups_that_start_far_apart_are_warmed_one_after_the_other() -> None:
    """The second group is looked for in the timeline that the first one's warm-up leads to."""
    long = step()
    early = [step(long), step(long)]
    joined = step(*early)
    late = [step(joined), step(joined)]
    plan = placed(step(*late), "0120340", dict.fromkeys("1234", LARGE))
    costs = Table({"step#0": 10.0, "step#3": 10.0}, start=1.0)
    under = conditions(costs)
    found = warmed(plan, under)
    assert {name: sum(p.count for p in prewarms) for name, prewarms in found.items()} == {
        "0": 2,
        "3": 2,
    }


def test_the_search_for_warm_ups_is_bounded_in_plans_that_it_simulates() -> None:
    plan, under = crowd()
    costs = under.predictions.at("median")
    assert PreWarmOptimization(iterations=0).apply(plan, under, costs) == plan
    _, under = crowd()
    PreWarmOptimization(iterations=2).apply(plan, under, costs)
    assert Crowded.simulated == 3


def test_a_warm_up_that_saves_no_cold_start_is_not_planned() -> None:
    plan, under = late()
    assert warmed(plan, replace(under, pool=lambda: WarmPool(1))) == {}


def test_a_warm_up_that_lengthens_the_plan_is_not_planned() -> None:
    plan, under = late()
    assert warmed(plan, charged(under.predictions)) == {}  # type: ignore[arg-type]


def test_warm_workers_need_no_warm_up() -> None:
    plan, under = late()

    def pool() -> WarmPool[Resources]:
        made: WarmPool[Resources] = WarmPool(64, 99.0)
        made.release(made.acquire(LARGE, 0.0).sandbox, 0.0)  # type: ignore[union-attr]
        return made

    assert warmed(plan, replace(under, pool=pool)) == {}


def test_only_short_tasks_with_small_inputs_and_remote_consumers_may_be_duplicated() -> None:
    """No copy would gain enough to be run."""
    long, short, fed = step(), step(), step(step())
    flow = step(long, short, step(fed))
    costs = Table({"step#0": 2.1}, {"step#2": 5 * 1024 * 1024 + 1})
    under = conditions(costs)

    def duplicable(assignment: str, **limits: Any) -> list[str]:
        plan = placed(flow, assignment)
        return helped(
            TaskDupOptimization(gain=99.0, **limits).apply(plan, under, costs), "duplicable"
        )

    assert duplicable("000112") == ["1", "2", "4"]
    assert duplicable("000122") == ["1", "2"]
    assert duplicable("000122", nbytes=10**8) == ["1", "2", "3"]
    assert duplicable("000112", seconds=3.0) == ["0", "1", "2", "4"]
    assert duplicable("000112", seconds=0.5) == []
    assert duplicable("000000") == []


def test_a_plan_says_how_long_a_copy_takes_and_when_the_output_is_expected() -> None:
    """It takes 1.5 s, plus 0.1 s each to save and fetch it; a small one needs a message."""
    small, large = step(), step()
    costs = Table({"step#1": 1.5}, {"step#1": 10**7}, coordination=0.01)
    plan = placed(step(small, large), "012")
    found = TaskDupOptimization(gain=0.25).apply(plan, conditions(costs), costs)
    assert found.expected == {
        "step#0": (1.0, pytest.approx(1.01)),
        "step#1": (1.5, pytest.approx(1.71)),
    }
    assert found.duplication_gain == 0.25
    copies = {part.worker: part.copies for part in found.parts()}
    assert {name: list(copied) for name, copied in copies.items()} == {
        "w0": [],
        "w1": [],
        "w2": ["step#0", "step#1"],
    }


def test_copies_that_lengthen_the_plan_are_not_planned() -> None:
    plan, costs = placed(step(step(), step()), "012"), Table()
    assert TaskDupOptimization().apply(plan, charged(costs), costs) == plan


@dataclass
class Named:
    """Adds its name to the plan's notes; unhashable."""

    name: str = "class"

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        return replace(plan, notes=(*plan.notes, self.name))


def test_optimizations_are_applied_in_their_order_as_objects_or_classes() -> None:
    plan, costs = placed(step(), "0"), Table()
    found = optimized(plan, conditions(costs), costs, [Named("a"), Named, Named("b")])
    assert found.notes == ("a", "class", "b")


def insisting(*optimizations: object) -> Output[Any]:
    """Build a task with forced optimizations among others; it is too long to be duplicated."""

    @task(forced_optimizations=optimizations)
    def picky(*_: Any) -> None: ...

    return step(picky(step(), step()), step())


@pytest.mark.parametrize("as_class", [True, False], ids=["class", "object"])
@pytest.mark.parametrize(
    ("kind", "what"),
    [*zip(ALL, ("preload", "prewarm", "duplicable"), strict=True)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_only_the_task_that_forces_an_optimization_gets_it(
    kind: type[Any], what: str, as_class: bool
) -> None:
    plan = placed(insisting(kind if as_class else kind()), "01231")
    costs = Table({"picky#0": 60.0})
    found = forced(plan, conditions(costs), costs)
    assert [name for name, p in found.placements.items() if getattr(p, what)] == ["picky#0"]
    assert forced(found, conditions(costs), costs) == found
    assert conditions(costs).simulate(found, costs)


def test_a_task_that_forces_warm_ups_warms_a_sandbox_for_each_worker_after_it() -> None:
    first = step()
    flow = step(*[step(first) for _ in range(4)])
    plan = placed(flow, "011230", {"1": LARGE})
    first = [TaskId("step#0")]
    found = PreWarmOptimization().force(plan, first, conditions(Table()), Table())
    warmed = (Prewarm(LARGE), Prewarm(SMALL, count=2))
    assert found.placements[first[0]].prewarm == warmed
    assert PreWarmOptimization().force(found, first, conditions(Table()), Table()) == found


def test_a_forced_copy_is_expected_at_the_predicted_time() -> None:
    plan = placed(insisting(TaskDupOptimization(gain=0.1)), "00011")
    found = forced(plan, conditions(Table()), Table({"picky#0": 60.0}))
    assert found.expected == {"picky#0": (60.0, pytest.approx(62.0))}
    assert found.duplication_gain == 0.1


@pytest.mark.parametrize("planner", [SpreadPlanner(), UniformPlanner(), NonUniformPlanner(),
                                     AutoPlanner(seconds=0.2)],
                         ids=lambda p: type(p).__name__)  # fmt: skip
def test_every_planner_applies_forced_optimizations_once(planner: Any) -> None:
    flow = workflow(insisting(PreLoadOptimization, PreWarmOptimization(), Named("mine")))
    plan = planner.plan(flow, conditions(Table({"picky#0": 9.0, "step#2": 9.0}, start=0.1)))
    picky = plan.placements[TaskId("picky#0")]
    away = plan.placements[TaskId("step#3")].worker != picky.worker
    assert picky.preload
    assert len(picky.prewarm) == away
    assert "mine" in plan.notes


def test_a_custom_optimization_needs_only_apply() -> None:
    """Without `force` it is applied to the whole plan, once for all tasks that force it."""
    mine = Named("mine")

    @task(forced_optimizations=[mine])
    def picky(*_: Any) -> None: ...

    plan = placed(picky(picky(), picky()), "000")
    assert forced(plan, conditions(Table()), Table()).notes == ("mine",)


@pytest.mark.parametrize("wrong", ["preload", 3, object, Resources(128)])
def test_a_wrong_optimization_is_an_error_that_explains(wrong: object) -> None:
    plan = placed(insisting(wrong), "00000")
    said = r"is not an optimization\. It must have a method `apply\(plan, conditions, costs\)`"
    with pytest.raises(UsageError, match=f"forced_optimizations of task 'picky#0'.*{said}"):
        forced(plan, conditions(Table()), Table())
    plan = placed(step(), "0")
    for planner in (
        UniformPlanner(optimizations=[wrong]),  # type: ignore[list-item]
        AutoPlanner(seconds=1, optimizations=[wrong]),  # type: ignore[list-item]
    ):
        with pytest.raises(UsageError, match=f"optimizations=.*{said}"):
            planner.plan(workflow(fan(4)), conditions(Table()))


class Forgetful:
    """Returns no plan."""

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Any: ...


class Insistent:
    """Returns something other than a plan when forced."""

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        return plan

    def force(self, plan: Plan, tasks: Any, conditions: Conditions, costs: Costs) -> Any:
        return plan.placements


@pytest.mark.parametrize(
    "planner",
    [
        UniformPlanner(optimizations=[Forgetful]),  # type: ignore[list-item]
        NonUniformPlanner(optimizations=[Forgetful()]),  # type: ignore[list-item]
        AutoPlanner(seconds=60, optimizations=[Forgetful]),  # type: ignore[list-item]
    ],
    ids=lambda planner: type(planner).__name__,
)
def test_an_optimization_that_returns_no_plan_is_named(planner: Any) -> None:
    said = "an optimization returns a Plan, but Forgetful returned NoneType"
    with pytest.raises(PlanError, match=said):
        planner.plan(workflow(fan(4)), conditions(Table()))


@pytest.mark.parametrize(("kind", "returned"), [(Forgetful, "NoneType"), (Insistent, "dict")])
def test_a_forced_optimization_must_return_a_plan(kind: Any, returned: str) -> None:
    plan = placed(insisting(kind), "00000")
    with pytest.raises(PlanError, match=f"{kind.__name__} returned {returned}"):
        forced(plan, conditions(Table()), Table())


class Spreading:
    """A custom planner that ignores forced optimizations."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        assignment = {t: WorkerId(f"w{number}") for number, t in enumerate(workflow.calls)}
        return Plan(workflow, {t: Placement(owner, SMALL) for t, owner in assignment.items()})


class Delegating:
    """A custom planner that delegates to another one."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        return replace(UniformPlanner().plan(workflow, conditions), planner="delegating")


@pytest.mark.parametrize("planner", [Spreading(), Delegating(), UniformPlanner(), SpreadPlanner()],
                         ids=lambda p: type(p).__name__)  # fmt: skip
def test_forced_optimizations_are_applied_once_with_custom_planners_too(planner: Any) -> None:
    flow = workflow(insisting(*ALL, Named("mine")))
    plan = planned(flow, conditions(Table()), planner).plan
    assert plan.placements[TaskId("picky#0")].preload
    assert plan.placements[TaskId("picky#0")].duplicable
    assert plan.notes == ("mine",)


def test_a_plan_with_forced_optimizations_is_validated() -> None:
    class Wasteful:
        def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
            return replace(plan, linger=-1.0)

    flow = workflow(insisting(Wasteful))
    with pytest.raises(PlanError, match="lingers for 0 s or more"):
        planned(flow, conditions(Table()), Spreading())


SUBSETS = [*chained.from_iterable(combinations(ALL, n) for n in range(4))]


@examples(30)
@given(cases(), st.sampled_from(SUBSETS), st.booleans())
def test_the_result_does_not_depend_on_optimizations(
    case: tuple[Workflow, Table, int], chosen: tuple[type[Any], ...], uniform: bool
) -> None:
    flow, costs, workers = case
    under = conditions(costs, workers)
    planner = UniformPlanner if uniform else NonUniformPlanner
    plan = planner(optimizations=chosen).plan(flow, under)  # type: ignore[arg-type]
    validated(plan, flow, under)

    def perform(name: TaskId, inputs: Any) -> Any:
        return hash((name, *[inputs[source] for source in flow.upstream[name]]))

    sequential: dict[TaskId, Any] = {}
    for name in flow.calls:
        sequential[name] = perform(name, sequential)
    simulation = Simulation(plan, costs, under.pool(), perform=perform)
    simulation.run()
    assert simulation.results == {sink: sequential[sink] for sink in flow.sinks}
    owners = {name: placement.worker for name, placement in plan.placements.items()}
    ran = [name for name, worker in simulation.performed if worker == owners[name]]
    if TaskDupOptimization in chosen:
        assert len(ran) == len(set(ran))
    else:
        assert sorted(ran) == sorted(flow.calls)
        assert len(simulation.performed) == len(ran)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", SUBSETS, ids=lambda c: "-".join(o.__name__ for o in c) or "no")
def test_the_auto_planner_accepts_any_optimizations(chosen: tuple[type[Any], ...]) -> None:
    costs, flow = Table(0.5, FAR, start=0.5, coordination=0.01), workflow(fan(6))
    under = conditions(costs)
    plan = AutoPlanner(seconds=0.2, optimizations=chosen).plan(flow, under)
    assert Preview(validated(plan, flow, under), under).makespan > 0
