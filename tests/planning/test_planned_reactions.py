"""Reactions in plans: simulated, previewed, checked, forced, and dropped where nobody reacts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from planning_examples import SMALL, Table, chain, conditions, fan, step, workflow

import shoal.reactions
from shoal import Conditions, Costs, Plan, Prewarm, UniformPlanner, WukongPlanner, task
from shoal.errors import PlanError, ReactionError
from shoal.execution.plan import Placement
from shoal.planning.base import validated
from shoal.planning.choice import planned
from shoal.planning.optimizations import forced
from shoal.reactions import Event, Executed, Order, Preload, RunAfter, Started, WorkerView
from shoal.types import MB_PER_CPU, Resources, TaskId, WorkerId
from shoal.workflow import Workflow

UNDER = conditions(Table())
TWO_SLOTS = Resources(memory_mb=2 * MB_PER_CPU)


@dataclass(frozen=True)
class OneAtATime:
    """Lets a worker run one task at a time, whatever its slots."""

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """Have the workers of the plan react."""
        return replace(plan, reactions=(*plan.reactions, self))

    def react(self, event: Event, worker: WorkerView) -> list[Order]:
        """Let ready tasks wait for the one that runs, or for the first of them."""
        first, *others = [*worker.running, *worker.ready] or ["none"]
        return [RunAfter(task, first) for task in others]


@dataclass(frozen=True)
class Broken(OneAtATime):
    """Raises when a task is executed."""

    def react(self, event: Event, worker: WorkerView) -> list[Order]:
        """Give no orders."""
        if isinstance(event, Executed):
            raise ValueError("what now?")
        return []


@dataclass(frozen=True)
class Warm(OneAtATime):
    """Warms up a sandbox when the run begins."""

    def react(self, event: Event, worker: WorkerView) -> list[Order]:
        """Order a sandbox."""
        return [Prewarm(SMALL)] if isinstance(event, Started) else []


def on(flow: Workflow, *owners: str, **fields: Any) -> Plan:
    """A plan with the tasks on these workers in turn."""
    names = [owners[number % len(owners)] for number in range(len(flow))]
    resources = fields.pop("resources", SMALL)
    placements = {
        name: Placement(WorkerId(owner), resources)
        for name, owner in zip(flow.calls, names, strict=True)
    }
    return Plan(flow, placements, **fields)


def test_simulated_workers_react() -> None:
    plan = on(workflow(fan(4)), "w0", resources=TWO_SLOTS)
    spans = [
        UNDER.simulate(each, Table()).of_kind("execute")
        for each in (plan, replace(plan, reactions=(OneAtATime(),)))
    ]
    overlaps = [sum(one.end > other.start for one, other in pairwise(found)) for found in spans]
    assert overlaps[0] > 0
    assert overlaps[1] == 0


def test_an_order_warms_up_sandboxes_in_simulation() -> None:
    plan = on(workflow(chain(2)), "w0", "w1")
    for reactions, expected in (((), 2), ((Warm(),), 1)):
        timeline = UNDER.simulate(replace(plan, reactions=reactions), Table())
        assert len(timeline.of_kind("cold start")) == expected


@dataclass(frozen=True)
class PreloadLarge(OneAtATime):
    """Preloads a task once one of its inputs turns out to be large."""

    task: TaskId
    inputs: tuple[TaskId, ...]

    def react(self, event: Event, worker: WorkerView) -> list[Order]:
        """Order that its worker fetches the input while it still runs another task."""
        large = isinstance(event, Executed) and event.nbytes > 10**6
        return [Preload(self.task)] if large and event.task in self.inputs else []


def test_an_order_does_what_the_plan_could_have_done_beforehand() -> None:
    """The join's worker is busy for 5 s, and a transfer in each direction takes a second."""
    flow = workflow(step(step(), step()))
    early, busy, join = flow.calls
    costs = Table({busy: 5.0}, {early: 10**8})
    plan = on(flow, "w0", "w1", "w1")
    planned_so = {**plan.placements, join: replace(plan.placements[join], preload=True)}
    plain, beforehand, ordered = (
        UNDER.simulate(each, costs)
        for each in (
            plan,
            replace(plan, placements=planned_so),
            replace(plan, reactions=(PreloadLarge(join, (early, busy)),)),
        )
    )
    assert ordered == beforehand
    assert plain.makespan - ordered.makespan == pytest.approx(1.0)


def test_two_previews_of_a_plan_with_reactions_are_the_same() -> None:
    plan = on(workflow(fan(6)), "w0", "w1", resources=TWO_SLOTS, reactions=(OneAtATime(),))
    assert UNDER.simulate(plan, Table()) == UNDER.simulate(plan, Table())


def test_a_preview_names_the_reactions() -> None:
    planner = UniformPlanner(SMALL, optimizations=[OneAtATime, Warm])
    preview = planned(workflow(fan(4)), UNDER, planner)
    assert "reactions  OneAtATime, Warm" in str(preview)
    assert "reactions" not in str(planned(workflow(fan(4)), UNDER, UniformPlanner(SMALL)))


def test_a_broken_reaction_is_an_error_of_the_preview() -> None:
    preview = planned(workflow(fan(4)), UNDER, UniformPlanner(SMALL, optimizations=[Broken]))
    expected = r"The optimization Broken is broken: after Executed\(task='.* on worker w"
    with pytest.raises(ReactionError, match=f"{expected}.*raised ValueError: what now"):
        str(preview)


@pytest.mark.parametrize(
    ("reactions", "said"),
    [
        (OneAtATime(), "`reactions` is a tuple, but it is OneAtATime()"),
        ([OneAtATime()], "`reactions` is a tuple, but it is [OneAtATime()]"),
        ((OneAtATime,), "with a method `react(event, worker)`, but there is <class"),
        ((len,), "with a method `react(event, worker)`, but there is <built-in function len>"),
    ],
)
def test_a_plan_has_reactions_that_can_be_asked(reactions: Any, said: str) -> None:
    flow = workflow(chain(2))
    with pytest.raises(PlanError, match=re.escape(said)):
        validated(on(flow, "w0", reactions=reactions), flow, UNDER)


def test_a_flexible_plan_has_no_reactions() -> None:
    flow = workflow(chain(2))
    plan = replace(WukongPlanner().plan(flow, UNDER), reactions=(Warm(),))
    with pytest.raises(PlanError, match="only workers with tasks of their own have reactions"):
        validated(plan, flow, UNDER)


def test_a_flexible_planner_skips_an_optimization_with_a_reaction_and_says_so() -> None:
    @task(forced_optimizations=[OneAtATime])
    def picky() -> None: ...

    plan = planned(workflow(picky()), UNDER, WukongPlanner()).plan
    assert not plan.reactions
    assert "OneAtATime is skipped: workers are not known in advance." in plan.notes


def test_a_task_can_insist_on_an_optimization_with_a_reaction() -> None:
    @task(forced_optimizations=[OneAtATime()])
    def picky() -> None: ...

    plan = forced(on(workflow(picky()), "w0"), UNDER, Table())
    assert plan.reactions == (OneAtATime(),)


def test_everything_that_an_author_needs_has_a_public_name() -> None:
    names = shoal.reactions.__all__
    assert names == sorted(names)
    assert all(hasattr(shoal.reactions, name) for name in names)
    kinds = (*Order.__args__, *Event.__args__)
    missing = {kind.__name__ for kind in kinds} - set(names)
    assert missing == {"Marked", "Stopped"}, "flexible workers, and the end of a run"
