"""Compute a lower bound of the makespan, and the cost of a plan."""

from quality.costs import FixedCosts
from shoal.execution.plan import Plan
from shoal.execution.timeline import Timeline
from shoal.types import Resources
from shoal.workflow import Workflow


def lower_bound(workflow: Workflow, costs: FixedCosts, workers: int, resources: Resources) -> float:
    """Return a lower bound: the longest path with free transfers, or the work divided evenly."""
    finish: dict[str, float] = {}
    work = 0.0
    for task, sources in workflow.upstream.items():
        seconds = costs.execution(task, 0, resources)
        finish[task] = seconds + max((finish[source] for source in sources), default=0.0)
        work += seconds
    return max(*finish.values(), work / (workers * resources.slots))


def gb_seconds(plan: Plan, timeline: Timeline) -> float:
    """Return the GB-seconds that a platform bills: each worker's memory while it runs."""
    return sum(
        plan.workers[worker].memory_mb / 1024 * (end - begin)
        for worker, lives in timeline.lives.items()
        for begin, end in lives
    )
