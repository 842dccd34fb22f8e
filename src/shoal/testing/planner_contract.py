"""`PlannerContract`: what a session relies on in every planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import Simulation
from shoal.planning.base import Conditions, Planner
from shoal.planning.choice import planned
from shoal.planning.optimizations import PreLoadOptimization
from shoal.testing.planner_examples import (
    LARGE,
    SHAPES,
    SMALL,
    conditions,
    drawn_costs,
    step,
    tree,
    workflow_of,
)
from shoal.testing.pytest_required import pytest
from shoal.testing.table_costs import TableCosts
from shoal.types import Resources, TaskId
from shoal.workflow import Workflow, task


@task(resources=Resources(4096))
def greedy(*sources: Any) -> None:
    """Request memory."""


@task(resources=Resources(512, cpus=3))
def busy(*sources: Any) -> None:
    """Request CPUs."""


@task(forced_optimizations=[PreLoadOptimization()])
def insisting(*sources: Any) -> None:
    """Request that its inputs are pre-loaded."""


def plan_by(planner: Planner, workflow: Workflow, under: Conditions) -> Plan:
    """Return a planner's plan as a session does: validated, with what tasks insist on."""
    plan = planned(workflow, under, planner).plan
    assert plan.workflow is workflow
    return plan


def simulated(plan: Plan, under: Conditions) -> Simulation:
    """Simulate a plan whose tasks have outputs; check the outputs."""
    upstream = plan.workflow.upstream

    def perform(name: TaskId, inputs: Mapping[TaskId, Any]) -> int:
        return hash((name, *[inputs[source] for source in upstream[name]]))

    expected: dict[TaskId, int] = {}
    for name in upstream:
        expected[name] = perform(name, expected)
    simulation = Simulation(
        plan, under.predictions.at("median"), under.pool(), perform=perform, workers=under.workers
    )
    simulation.run()
    assert simulation.results == {sink: expected[sink] for sink in plan.workflow.sinks}
    return simulation


class PlannerContract:
    """Tests that a planner makes plans that workers can carry out.

    Subclass it in a test module and override the fixture `planner`. If the planner searches until
    its time is up, replace its clock by one that counts calls, so that plans don't depend on the
    machine's speed.
    """

    @pytest.fixture
    def planner(self) -> Planner:
        """Return the planner."""
        raise NotImplementedError("Override the fixture `planner` of PlannerContract.")

    @pytest.fixture(params=SHAPES)
    def workflow(self, request: pytest.FixtureRequest) -> Workflow:
        """Return workflows of all shapes, one after the other."""
        return workflow_of(request.param)

    @pytest.mark.parametrize("basis", ["5 runs", "no history"])
    def test_a_plan_follows_all_rules(
        self, planner: Planner, workflow: Workflow, basis: str
    ) -> None:
        plan = plan_by(planner, workflow, conditions(drawn_costs(workflow, basis)))
        assert set(plan.placements) == set(workflow.calls)

    def test_a_plan_can_be_previewed(self, planner: Planner) -> None:
        workflow = workflow_of("tree")
        preview = planned(workflow, conditions(drawn_costs(workflow)), planner)
        assert preview.makespan > 0
        assert f"plan of {len(workflow)} tasks" in preview.show()

    def test_a_simulated_run_has_the_outputs_of_a_sequential_one(
        self, planner: Planner, workflow: Workflow
    ) -> None:
        under = conditions(drawn_costs(workflow))
        plan = plan_by(planner, workflow, under)
        ran = [name for name, _ in simulated(plan, under).performed]
        assert set(ran) == set(workflow.calls)
        if not any(placement.duplicable for placement in plan.placements.values()):
            assert len(ran) == len(workflow)

    def test_the_same_workflow_and_conditions_give_the_same_plan(
        self, planner: Planner, workflow: Workflow
    ) -> None:
        under = conditions(drawn_costs(workflow))
        plan = plan_by(planner, workflow, under)
        between = workflow_of("tree")
        plan_by(planner, between, conditions(drawn_costs(between), workers=2))
        assert plan_by(planner, workflow, under) == plan

    def test_planning_does_not_change_the_workflow(
        self, planner: Planner, workflow: Workflow
    ) -> None:
        calls, upstream, sinks = dict(workflow.calls), dict(workflow.upstream), workflow.sinks
        under = conditions(drawn_costs(workflow))
        plan_by(planner, workflow, under)
        assert (workflow.calls, workflow.upstream, workflow.sinks) == (calls, upstream, sinks)

    @pytest.mark.parametrize("workers", [1, 3])
    def test_a_plan_gets_by_with_the_workers_that_may_run_at_once(
        self, planner: Planner, workflow: Workflow, workers: int
    ) -> None:
        """Neither the run's limit nor the platform's capacity keeps it from ending."""
        costs = drawn_costs(workflow)
        under = conditions(costs, workers, pool=lambda: WarmPool(workers, 7.0))
        plan = plan_by(planner, workflow, under)
        if plan.linger is None:
            assert len(plan.workers) <= workers
        simulated(plan, under)

    def test_no_worker_has_more_memory_than_the_platform_offers(
        self, planner: Planner, workflow: Workflow
    ) -> None:
        under = conditions(drawn_costs(workflow), memory_mb=SMALL.memory_mb)
        plan = plan_by(planner, workflow, under)
        assert all(
            placement.resources.memory_mb <= SMALL.memory_mb
            for placement in plan.placements.values()
        )

    def test_a_task_has_at_least_the_resources_that_it_requests(self, planner: Planner) -> None:
        workflow = Workflow.of(step(greedy(busy(step()), step()), busy(), greedy()))
        plan = plan_by(planner, workflow, conditions(drawn_costs(workflow)))
        for name, placement in plan.placements.items():
            asked = workflow.resources(name)
            if asked is not None:
                assert placement.resources.memory_mb >= asked.memory_mb, name
                assert placement.resources.cpu_share >= asked.cpu_share, name

    def test_a_task_that_ran_out_of_memory_has_what_it_turned_out_to_need(
        self, planner: Planner
    ) -> None:
        workflow = Workflow.of(tree(8)).needing({step.key: LARGE.memory_mb})
        plan = plan_by(planner, workflow, conditions(drawn_costs(workflow)))
        assert all(
            placement.resources.memory_mb >= LARGE.memory_mb
            for placement in plan.placements.values()
        )

    @pytest.mark.parametrize("basis", ["5 runs", "no history"])
    def test_an_optimization_that_a_task_insists_on_is_applied(
        self, planner: Planner, basis: str
    ) -> None:
        """A plan without placements can't apply it, and says so in a note."""
        workflow = Workflow.of(insisting(step(), step()))
        plan = plan_by(planner, workflow, conditions(TableCosts(basis=basis)))
        if plan.flexible:
            assert any("PreLoadOptimization" in note for note in plan.notes)
        else:
            assert plan.placements[TaskId("insisting#0")].preload

    def test_without_time_a_planner_still_makes_a_plan(self, planner: Planner) -> None:
        workflow = Workflow.of(tree(64))
        plan_by(planner, workflow, conditions(drawn_costs(workflow), seconds=1e-6))

    @pytest.mark.parametrize(
        "costs",
        [TableCosts(0.0, 0), TableCosts(1e6, 10**12), TableCosts(0.0, 10**9)],
        ids=["nothing costs", "everything costs", "only transfers cost"],
    )
    def test_extreme_costs_are_planned(
        self, planner: Planner, workflow: Workflow, costs: TableCosts
    ) -> None:
        under = conditions(costs)
        simulated(plan_by(planner, workflow, under), under)

    def test_a_plan_for_a_platform_with_a_time_limit_has_it(
        self, planner: Planner, workflow: Workflow
    ) -> None:
        under = conditions(drawn_costs(workflow), limit=900.0)
        assert plan_by(planner, workflow, under).limit == 900.0
