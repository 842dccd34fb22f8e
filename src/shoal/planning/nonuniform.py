"""`NonUniformPlanner`: the papers' clustering, with weaker workers where nothing hangs on them."""

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
from shoal.planning.base import Conditions, Optimization, Stopwatch, simulating_seconds
from shoal.planning.clusters import MAX_CLUSTERING, clustered
from shoal.planning.critical import critical_path
from shoal.planning.estimates import Estimates
from shoal.planning.optimizations import optimized
from shoal.types import SLA, Resources, WorkerId
from shoal.workflow import Workflow

CONFIGURATIONS = (Resources(8192), Resources(4096), Resources(2048))
TOLERANCE = 1e-6
"""By what share of it a makespan may grow and still count as the same."""


class NonUniformPlanner:
    """Clusters tasks as the papers do, then takes resources from workers off the critical path.

    All workers begin with the strongest configuration, and the clustering uses its predictions.
    Then each worker that runs no task of the critical path gets the weakest configuration that
    doesn't lengthen the simulated makespan (Algorithm 2 of the papers). Where ours differs: what
    shortens the makespan is accepted too, workers are taken in a fixed order so that the same
    history gives the same plan, and it stops when its time is over; if that is too short for a
    single simulation, every worker keeps the strongest.
    """

    def __init__(
        self,
        resources: Sequence[Resources] = CONFIGURATIONS,
        *,
        sla: SLA = "median",
        optimizations: Sequence[Optimization | type[Optimization]] = (),
        max_clustering: int = MAX_CLUSTERING,
    ) -> None:
        """Set it up.

        Args:
            resources: The configurations that workers may have, as far as the platform has them.
            sla: How careful the predictions are that it plans with.
            optimizations: What refines its plans, in this order; classes or objects.
            max_clustering: How many short tasks keep together.
        """
        check_sla(sla, f"NonUniformPlanner(sla={sla!r})")
        where = f"NonUniformPlanner(max_clustering={max_clustering!r})"
        check(is_whole(max_clustering, 1), where, "a whole number from 1")
        self.resources = strongest_first(configurations(resources, "NonUniformPlanner"))
        self.sla = sla
        self.optimizations = optimizations_of(optimizations, "NonUniformPlanner")
        self.max_clustering = max_clustering

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """A plan for a workflow under these conditions."""
        watch = Stopwatch(conditions.seconds)
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
            note = "all workers have the strongest configuration: no time to find out which need it"
            plan = replace(plan, notes=(note,))
        else:
            plan = downgraded(plan, conditions, costs, configurations, watch)
        return optimized(plan, conditions, costs, self.optimizations)


def strongest_first(resources: Sequence[Resources]) -> list[Resources]:
    """Configurations in the order of their CPUs and memory."""
    return sorted(set(resources), key=lambda r: (-r.cpu_share, -r.memory_mb))


def downgraded(
    plan: Plan,
    conditions: Conditions,
    costs: Costs,
    configurations: Sequence[Resources],
    watch: Stopwatch,
) -> Plan:
    """The plan with weaker workers where that doesn't lengthen it."""
    timeline = conditions.simulate(plan, costs)
    critical = {plan.placements[t].worker for t in critical_path(plan.workflow, timeline)}
    fixed = {
        plan.placements[task].worker
        for task in plan.workflow.calls
        if plan.workflow.resources(task) is not None
    }
    for worker in [worker for worker in plan.workers if worker not in critical | fixed]:
        for weaker in configurations[1:]:
            if watch.over:
                return plan
            trial = with_resources(plan, worker, weaker)
            tried = conditions.simulate(trial, costs)
            if tried.makespan > timeline.makespan * (1 + TOLERANCE):
                break
            plan, timeline = trial, tried
    return plan


def with_resources(plan: Plan, worker: WorkerId, resources: Resources) -> Plan:
    """The plan with other resources for one worker."""
    made: dict[Placement, Placement] = {}
    placements = {}
    for task, placement in plan.placements.items():
        if placement.worker == worker:
            if placement not in made:
                made[placement] = replace(placement, resources=resources)
            placement = made[placement]
        placements[task] = placement
    return replace(plan, placements=placements)
