"""AutoPlanner finds the plan for a goal: fastest without waste, in time, within a budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
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

from shoal import (
    AutoPlanner,
    NonUniformPlanner,
    PreLoadOptimization,
    Resources,
    UniformPlanner,
    task,
)
from shoal.errors import UsageError
from shoal.execution.costs import Costs
from shoal.execution.plan import Plan
from shoal.planning.base import Conditions
from shoal.planning.preview import Preview
from shoal.types import TaskId
from shoal.workflow import Workflow


def test_tiny_tasks_stay_together() -> None:
    costs = Table(0.00001, start=0.02, coordination=0.0005)
    plan = AutoPlanner(seconds=60).plan(workflow(tree(64)), conditions(costs))
    assert len(plan.workers) == 1


def test_long_tasks_are_spread() -> None:
    costs = Table(1.0, start=0.02, coordination=0.0005)
    plan = AutoPlanner(seconds=60).plan(workflow(fan(8)), conditions(costs))
    assert len(plan.workers) == 4
    assert conditions(costs).simulate(plan, costs).makespan < 4.1


def test_a_task_with_a_large_output_is_followed_where_moving_it_takes_longer() -> None:
    """Fetching the first task's output takes longer than to run everything behind it."""
    costs = Table(0.1, {"step#0": 10**9})
    plan = AutoPlanner(seconds=60).plan(workflow(fan(4)), conditions(costs))
    assert len(plan.workers) == 1


def test_a_chain_needs_one_worker() -> None:
    plan = AutoPlanner(seconds=60).plan(workflow(chain(9)), conditions(Table()))
    assert len(plan.workers) == 1


def test_of_equally_fast_plans_the_cheapest_is_taken() -> None:
    plan = AutoPlanner([SMALL, MIDDLE, LARGE], seconds=60).plan(
        workflow(chain(5)), conditions(Table())
    )
    assert set(plan.workers.values()) == {SMALL}


@settings(max_examples=12)
@given(cases(), st.sampled_from([None, (SMALL, LARGE)]))
def test_no_plan_is_slower_than_the_better_one_of_the_papers(
    case: tuple[Workflow, Table, int], resources: tuple[Resources, ...] | None
) -> None:
    flow, costs, workers = case
    under = conditions(costs, workers)
    found = AutoPlanner(resources, seconds=30).plan(flow, under)
    makespan = under.simulate(found, costs).makespan
    for planner in (UniformPlanner(), NonUniformPlanner(resources or [SMALL])):
        known = under.simulate(planner.plan(flow, under), costs).makespan
        assert makespan <= known * (1 + 1e-6)
    assert len(found.workers) <= workers


def test_the_cheapest_plan_in_time_is_taken() -> None:
    """Eight seconds of work: on one worker it costs least, on four it takes two seconds."""
    costs, flow = Table(1.0, start=0.2), workflow(fan(8))
    under = conditions(costs)
    hasty = AutoPlanner(deadline=4.9, seconds=60).plan(flow, under)
    easy = AutoPlanner(deadline=30, seconds=60).plan(flow, under)
    assert Preview(hasty, under).makespan <= 4.9
    assert len(easy.workers) == 1
    assert Preview(easy, under).cost.price <= Preview(hasty, under).cost.price
    assert hasty.notes == easy.notes == ()
    assert hasty.unmet == easy.unmet == ""


def test_a_deadline_that_no_plan_meets_is_said() -> None:
    plan = AutoPlanner(deadline=0.5, seconds=60).plan(workflow(fan(8)), conditions(Table()))
    assert "no plan was found that meets the deadline of 0.5 s" in plan.notes[0]
    assert plan.unmet == plan.notes[0]


def test_the_fastest_plan_that_is_too_late_is_told_as_late_as_it_is_promised() -> None:
    class Late(Table):
        def sampled(self, seed: int) -> Costs:
            return Table(3.0)

    note = AutoPlanner(deadline=2.0).plan(workflow(step()), conditions(Late())).notes[0]
    assert "the fastest, 3 s" in note


def test_the_fastest_plan_within_a_budget_is_taken() -> None:
    costs, flow = Table(1.0, start=0.5), workflow(fan(8))
    under = conditions(costs)
    cheapest = AutoPlanner(deadline=1000, seconds=60).plan(flow, under)
    fastest = AutoPlanner(seconds=60).plan(flow, under)
    low, high = (Preview(p, under).cost.price for p in (cheapest, fastest))
    plan = AutoPlanner(budget=(low + high) / 2, seconds=60).plan(flow, under)
    found = Preview(plan, under)
    assert found.cost.price <= (low + high) / 2
    assert found.makespan <= Preview(cheapest, under).makespan


def test_a_budget_that_no_plan_keeps_is_said() -> None:
    plan = AutoPlanner(budget=1e-12, seconds=60).plan(workflow(fan(3)), conditions(Table()))
    assert "no plan was found within the budget" in plan.notes[0]
    assert plan.unmet == plan.notes[0]


@pytest.mark.parametrize("wrong", [{"deadline": 0}, {"budget": -1}, {"seconds": 0}])
def test_a_goal_is_a_positive_number(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="greater than 0"):
        AutoPlanner(**wrong)


def test_a_deadline_and_a_budget_are_not_both_goals() -> None:
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
def test_a_goal_that_a_plan_was_not_held_against_is_said(basis: str) -> None:
    """There is no history, or no time to simulate."""
    under = conditions(Table(basis=basis), seconds=1e-6)
    for goal in ({"deadline": 10.0}, {"budget": 0.01}):
        plan = AutoPlanner(**goal).plan(workflow(tree(64)), under)
        (note,) = plan.notes
        assert "nobody knows whether it keeps to" in note
        assert not plan.unmet
    assert not AutoPlanner().plan(workflow(tree(64)), under).notes


@pytest.mark.parametrize("basis", ["5 runs", "no history"])
def test_a_goal_that_no_run_reaches_is_said_without_a_simulation(basis: str) -> None:
    class Slow(Table):
        def launch(self) -> float:
            return 0.1

    under = conditions(Slow(basis=basis), seconds=1e-6)
    for goal, said in (
        ({"deadline": 0.001}, "no plan meets the deadline of 0.001 s: without any task a run"),
        ({"budget": 1e-12}, "no plan is within the budget of $1e-12: one worker costs $2e-07"),
    ):
        plan = AutoPlanner(**goal).plan(workflow(tree(64)), under)
        assert plan.unmet.startswith(said)
        assert plan.notes == (plan.unmet,)


def test_what_is_assumed_without_history_rules_no_goal_out() -> None:
    under = conditions(Table(1.0, basis="no history"))
    planner = AutoPlanner([SMALL], deadline=0.5, seconds=60)
    assert not planner.plan(workflow(fan(8)), under).unmet


def test_without_time_to_simulate_workers_have_what_is_allowed() -> None:
    plan = AutoPlanner([LARGE]).plan(workflow(tree(64)), conditions(Table(), seconds=1e-6))
    assert set(plan.workers.values()) == {LARGE}


def test_so_many_workers_that_lists_would_take_too_long_are_planned_in_time() -> None:
    under = conditions(Table(), workers=1000, seconds=0.5)
    plan = AutoPlanner().plan(workflow(fan(500)), under)
    assert plan.planner != "auto (list)"


def test_what_a_task_insists_on_is_planned_by_every_planner() -> None:
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
    AutoPlanner(seconds=1, optimizations=[Watched()]).plan(workflow(tree(16)), conditions(costs))
    assert tried
