"""Define `UniformPlanner`: the papers' clustering, with one configuration for all workers."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.execution.plan import Plan
from shoal.planning.arguments import (
    check,
    check_resources,
    check_sla,
    is_whole,
    optimizations_of,
)
from shoal.planning.base import Conditions, Optimization
from shoal.planning.clusters import MAX_CLUSTERING, clustered
from shoal.planning.estimates import Estimates
from shoal.planning.optimizations import optimized
from shoal.types import SLA, Resources
from shoal.workflow import Workflow


class UniformPlanner:
    """Clusters tasks as the papers do (see `clusters`), with the same resources for all workers."""

    def __init__(
        self,
        resources: Resources | None = None,
        *,
        sla: SLA = "median",
        optimizations: Sequence[Optimization | type[Optimization]] = (),
        max_clustering: int = MAX_CLUSTERING,
    ) -> None:
        """Create the planner.

        Args:
            resources: The resources of each worker; default: those of the settings.
            sla: How conservative predictions are.
            optimizations: The optimizations to apply, in this order; classes or objects.
            max_clustering: How many short tasks to place together.
        """
        check_resources(resources, "UniformPlanner")
        check_sla(sla, f"UniformPlanner(sla={sla!r})")
        where = f"UniformPlanner(max_clustering={max_clustering!r})"
        check(is_whole(max_clustering, 1), where, "an integer of at least 1")
        self.resources = resources
        self.sla = sla
        self.optimizations = optimizations_of(optimizations, "UniformPlanner")
        self.max_clustering = max_clustering

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Plan a workflow under these conditions."""
        costs = conditions.predictions.at(self.sla)
        default = self.resources or conditions.resources
        placements = clustered(
            Estimates(workflow, costs),
            lambda task: workflow.resources(task) or default,
            conditions.workers,
            self.max_clustering,
        )
        plan = Plan(workflow, placements, planner="uniform")
        return optimized(plan, conditions, costs, self.optimizations)
