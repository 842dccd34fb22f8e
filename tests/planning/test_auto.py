"""AutoPlanner finds the plan for a goal: fastest without waste, within a deadline or a budget."""

from __future__ import annotations

import time
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_examples import (
    LARGE,
    MIDDLE,
    SMALL,
    Table,
    chain,
    conditions,
    fan,
    step,
    tree,
    workflow,
)
from planning_strategies import cases

from examples_drawn import examples
from shoal import (
    AutoPlanner,
    NonUniformPlanner,
    PreLoadOptimization,
    Resources,
    UniformPlanner,
    WukongPlanner,
    task,
)
from shoal.errors import UsageError
from shoal.execution.costs import Costs
from shoal.execution.plan import Plan
from shoal.planning.base import Conditions
from shoal.planning.preview import Preview
from shoal.planning.spread import SpreadPlanner
from shoal.types import TaskId
from shoal.workflow import Workflow


@pytest.mark.slow
def test_tiny_tasks_stay_together() -> None:
    costs = Table(0.00001, start=0.02, coordination=0.0005)
    plan = AutoPlanner(seconds=60).plan(workflow(tree(64)), conditions(costs))
    assert len(plan.workers) == 1


def test_long_tasks_are_spread() -> None:
    costs = Table(1.0, start=0.02, coordination=0.0005)
    plan = AutoPlanner(seconds=60).plan(workflow(fan(8)), conditions(costs))
    assert len(plan.workers) == 4
    assert conditions(costs).simulate(plan, costs).makespan < 4.1


def test_tasks_follow_a_large_output_if_moving_it_takes_longer() -> None:
    """Fetching the first task's output takes longer than running everything after it."""
    costs = Table(0.1, {"step#0": 10**9})
    plan = AutoPlanner(seconds=60).plan(workflow(fan(4)), conditions(costs))
    assert len(plan.workers) == 1


def test_a_chain_needs_one_worker() -> None:
    plan = AutoPlanner(seconds=60).plan(workflow(chain(9)), conditions(Table()))
    assert len(plan.workers) == 1


def test_among_equally_fast_plans_the_cheapest_wins() -> None:
    plan = AutoPlanner([SMALL, MIDDLE, LARGE], seconds=60).plan(
        workflow(chain(5)), conditions(Table())
    )
    assert set(plan.workers.values()) == {SMALL}


@pytest.mark.slow
@examples(12)
@given(cases(), st.sampled_from([None, (SMALL, LARGE)]))
def test_the_plan_is_never_slower_than_those_of_other_planners(
    case: tuple[Workflow, Table, int], resources: tuple[Resources, ...] | None
) -> None:
    flow, costs, workers = case
    under = conditions(costs, workers)
    found = AutoPlanner(resources, seconds=30).plan(flow, under)
    makespan = under.simulate(found, costs).makespan
    others = (
        UniformPlanner(),
        NonUniformPlanner(resources or [SMALL]),
        WukongPlanner(),
        SpreadPlanner(),
    )
    for planner in others:
        known = under.simulate(planner.plan(flow, under), costs).makespan
        assert makespan <= known * (1 + 1e-6)
    assert len(found.workers) <= workers


@pytest.mark.slow
def test_the_cheapest_plan_within_the_deadline_wins() -> None:
    """Eight seconds of work cost least on one worker and take two seconds on four."""
    costs, flow = Table(1.0, start=0.2), workflow(fan(8))
    under = conditions(costs)
    hasty = AutoPlanner(deadline=4.9, seconds=60).plan(flow, under)
    easy = AutoPlanner(deadline=30, seconds=60).plan(flow, under)
    assert Preview(hasty, under).makespan <= 4.9
    assert len(easy.workers) == 1
    assert Preview(easy, under).cost.price <= Preview(hasty, under).cost.price
    assert hasty.notes == easy.notes == ()
    assert hasty.unmet == easy.unmet == ""


def test_a_deadline_that_no_plan_meets_is_noted() -> None:
    plan = AutoPlanner(deadline=0.5, seconds=60).plan(workflow(fan(8)), conditions(Table()))
    assert "no plan was found that meets the deadline of 0.5 s" in plan.notes[0]
    assert plan.unmet == plan.notes[0]


def test_the_note_on_a_missed_deadline_gives_the_promised_makespan() -> None:
    class Late(Table):
        def sampled(self, seed: int) -> Costs:
            return Table(3.0)

    note = AutoPlanner(deadline=2.0).plan(workflow(step()), conditions(Late())).notes[0]
    assert "the fastest, at 3 s" in note


@pytest.mark.slow
def test_the_fastest_plan_within_a_budget_wins() -> None:
    costs, flow = Table(1.0, start=0.5), workflow(fan(8))
    under = conditions(costs)
    cheapest = AutoPlanner(deadline=1000, seconds=60).plan(flow, under)
    fastest = AutoPlanner(seconds=60).plan(flow, under)
    low, high = (Preview(p, under).cost.price for p in (cheapest, fastest))
    plan = AutoPlanner(budget=(low + high) / 2, seconds=60).plan(flow, under)
    found = Preview(plan, under)
    assert found.cost.price <= (low + high) / 2
    assert found.makespan <= Preview(cheapest, under).makespan


def test_a_budget_that_no_plan_keeps_is_noted() -> None:
    plan = AutoPlanner(budget=1e-12, seconds=60).plan(workflow(fan(3)), conditions(Table()))
    assert "no plan was found within the budget" in plan.notes[0]
    assert plan.unmet == plan.notes[0]


@pytest.mark.parametrize("wrong", [{"deadline": 0}, {"budget": -1}, {"seconds": 0}])
def test_a_goal_is_a_positive_number(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="greater than 0"):
        AutoPlanner(**wrong)


def test_a_deadline_and_a_budget_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="not both"):
        AutoPlanner(deadline=1, budget=1)


def test_without_history_tasks_are_spread() -> None:
    costs = Table(basis="no history")
    plan = AutoPlanner().plan(workflow(tree(16)), conditions(costs))
    assert plan.planner == "spread"
    assert len(plan.workers) == 4


def test_without_time_to_simulate_tiny_tasks_still_stay_together() -> None:
    costs = Table(1e-6, start=0.05)
    plan = AutoPlanner(seconds=1e-6).plan(workflow(tree(64)), conditions(costs))
    assert len(plan.workers) == 1
    plan = AutoPlanner(seconds=1e-6).plan(workflow(tree(64)), conditions(Table(1.0)))
    assert len(plan.workers) == 4


@pytest.mark.parametrize("basis", ["5 runs", "no history"])
def test_an_unchecked_goal_is_noted(basis: str) -> None:
    """There is no history, or no time to simulate."""
    under = conditions(Table(basis=basis), seconds=1e-6)
    for goal in ({"deadline": 10.0}, {"budget": 0.01}):
        plan = AutoPlanner(**goal).plan(workflow(tree(64)), under)
        (note,) = plan.notes
        assert "not checked against the goal of" in note
        assert not plan.unmet
    assert not AutoPlanner().plan(workflow(tree(64)), under).notes


@pytest.mark.parametrize("basis", ["5 runs", "no history"])
def test_an_unreachable_goal_is_noted_without_a_simulation(basis: str) -> None:
    class Slow(Table):
        def launch(self) -> float:
            return 0.1

    under = conditions(Slow(basis=basis), seconds=1e-6)
    for goal, said in (
        ({"deadline": 0.001}, "no plan meets the deadline of 0.001 s: even an empty run"),
        ({"budget": 1e-12}, "no plan is within the budget of $1e-12: one worker costs $2e-07"),
    ):
        plan = AutoPlanner(**goal).plan(workflow(tree(64)), under)
        assert plan.unmet.startswith(said)
        assert plan.notes == (plan.unmet,)


def test_defaults_without_history_rule_no_goal_out() -> None:
    under = conditions(Table(1.0, basis="no history"))
    planner = AutoPlanner([SMALL], deadline=0.5, seconds=60)
    assert not planner.plan(workflow(fan(8)), under).unmet


def test_without_time_to_simulate_workers_get_the_allowed_configuration() -> None:
    plan = AutoPlanner([LARGE]).plan(workflow(tree(64)), conditions(Table(), seconds=1e-6))
    assert set(plan.workers.values()) == {LARGE}


def test_plans_for_very_many_workers_are_made_in_time() -> None:
    under = conditions(Table(), workers=1000, seconds=0.5)
    plan = AutoPlanner().plan(workflow(fan(500)), under)
    assert plan.planner != "auto (list)"


def test_every_planner_honours_forced_optimizations() -> None:
    @task(forced_optimizations=[PreLoadOptimization()])
    def insisting(*_: object) -> None: ...

    flow = workflow(insisting(step(), step()))
    for planner in (AutoPlanner(seconds=0.2), UniformPlanner(), NonUniformPlanner()):
        for costs in (Table(), Table(basis="no history")):
            plan = planner.plan(flow, conditions(costs))
            assert plan.placements[TaskId("insisting#0")].preload, planner
            assert not plan.placements[TaskId("step#0")].preload


def test_optimizations_are_tried_however_long_the_search_took() -> None:
    tried = []

    class Watched:
        def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
            tried.append(plan)
            return plan

        def force(self, *_: object) -> Plan: ...  # type: ignore[empty-body]

    costs = Table({f"step#{i}": 1.0 + i % 5 for i in range(40)}, 10**7)
    AutoPlanner(seconds=0.1, optimizations=[Watched()]).plan(workflow(tree(16)), conditions(costs))
    assert tried


def test_a_busy_machine_makes_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the search takes counts by its steps, so it ends at the same one if all clocks race."""
    costs = Table({f"step#{i}": 1.0 + i % 5 for i in range(90)}, 10**7)
    flow = workflow(tree(40))
    quiet = AutoPlanner(seconds=0.2).plan(flow, conditions(costs))
    for clock in ("monotonic", "perf_counter", "process_time", "thread_time", "time"):
        ticks = count()
        monkeypatch.setattr(time, clock, lambda ticks=ticks: 10.0 * next(ticks))
    assert AutoPlanner(seconds=0.2).plan(flow, conditions(costs)) == quiet


def test_a_search_stops_at_its_limit() -> None:
    for seconds in (0.1, 0.4):
        under = conditions(Table({f"step#{i}": 1.0 + i % 5 for i in range(90)}, 10**7))
        AutoPlanner(seconds=seconds).plan(workflow(tree(40)), under)
        assert 0.5 * seconds < under.effort.seconds < 1.1 * seconds
