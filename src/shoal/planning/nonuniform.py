"""Define `NonUniformPlanner`: the papers' clustering, with weaker workers off the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.execution.costs import Costs
from shoal.execution.plan import Placement, Plan
from shoal.planning.arguments import (
    check,
    check_sla,
    configurations,
    is_whole,
    optimizations_of,
)
from shoal.planning.base import Conditions, Optimization
from shoal.planning.clusters import MAX_CLUSTERING, clustered
from shoal.planning.critical_path import critical_path
from shoal.planning.effort import Allowance, simulating_seconds
from shoal.planning.estimates import Estimates
from shoal.planning.optimizations import optimized
from shoal.types import SLA, Resources, WorkerId
from shoal.workflow import Workflow

CONFIGURATIONS = (Resources(8192), Resources(4096), Resources(2048))
TOLERANCE = 1e-6
"""The relative increase up to which a makespan counts as unchanged."""


class NonUniformPlanner:
    """Clusters tasks as the papers do, then downgrades workers off the critical path.

    All workers start with the strongest configuration, whose predictions the clustering uses. Then
    each worker that runs no task of the critical path gets the weakest configuration that doesn't
    lengthen the simulated makespan (Algorithm 2 of the papers). Differences to the papers: a
    shorter makespan is accepted too; workers are tried in a fixed order, so that the same history
    gives the same plan; and planning stops at its time limit. If that is too short for a single
    simulation, every worker keeps the strongest configuration.
    """

    def __init__(
        self,
        resources: Sequence[Resources] = CONFIGURATIONS,
        *,
        sla: SLA = "median",
        optimizations: Sequence[Optimization | type[Optimization]] = (),
        max_clustering: int = MAX_CLUSTERING,
    ) -> None:
        """Create the planner.

        Args:
            resources: The configurations that workers may have, if the platform offers them.
            sla: How conservative predictions are.
            optimizations: The optimizations to apply, in this order; classes or objects.
            max_clustering: How many short tasks to place together.
        """
        check_sla(sla, f"NonUniformPlanner(sla={sla!r})")
        where = f"NonUniformPlanner(max_clustering={max_clustering!r})"
        check(is_whole(max_clustering, 1), where, "an integer of at least 1")
        self.resources = strongest_first(configurations(resources, "NonUniformPlanner"))
        self.sla = sla
        self.optimizations = optimizations_of(optimizations, "NonUniformPlanner")
        self.max_clustering = max_clustering

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Plan a workflow under these conditions."""
        allowance = conditions.allowance()
        costs = conditions.predictions.at(self.sla)
        configurations = conditions.offered(self.resources)
        strongest = configurations[0]
        placements = clustered(
            Estimates(workflow, costs),
            lambda task: workflow.resources(task) or strongest,
            conditions.workers,
            self.max_clustering,
        )
        plan = Plan(workflow, placements, planner="nonuniform")
        if conditions.seconds is not None and simulating_seconds(workflow) > conditions.seconds:
            note = "all workers have the strongest configuration: no time to simulate weaker ones"
            plan = replace(plan, notes=(note,))
        else:
            plan = downgraded(plan, conditions, costs, configurations, allowance)
        return optimized(plan, conditions, costs, self.optimizations)


def strongest_first(resources: Sequence[Resources]) -> list[Resources]:
    """Return the configurations by CPUs and memory, strongest first."""
    return sorted(set(resources), key=lambda r: (-r.cpu_share, -r.memory_mb))


def downgraded(
    plan: Plan,
    conditions: Conditions,
    costs: Costs,
    configurations: Sequence[Resources],
    allowance: Allowance,
) -> Plan:
    """Give workers weaker configurations where that doesn't lengthen the makespan."""
    timeline = conditions.simulate(plan, costs)
    critical = {plan.placements[t].worker for t in critical_path(plan.workflow, timeline)}
    fixed = {
        plan.placements[task].worker
        for task in plan.workflow.calls
        if plan.workflow.resources(task) is not None
    }
    for worker in [worker for worker in plan.workers if worker not in critical | fixed]:
        for weaker in configurations[1:]:
            if allowance.spent:
                return plan
            trial = with_resources(plan, worker, weaker)
            tried = conditions.simulate(trial, costs)
            if tried.makespan > timeline.makespan * (1 + TOLERANCE):
                break
            plan, timeline = trial, tried
    return plan


def with_resources(plan: Plan, worker: WorkerId, resources: Resources) -> Plan:
    """Return the plan with different resources for one worker."""
    made: dict[Placement, Placement] = {}
    placements = {}
    for task, placement in plan.placements.items():
        if placement.worker == worker:
            if placement not in made:
                made[placement] = replace(placement, resources=resources)
            placement = made[placement]
        placements[task] = placement
    return replace(plan, placements=placements)
