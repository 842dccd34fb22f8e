"""Compute a lower bound of the makespan."""

from collections.abc import Sequence
from itertools import accumulate, islice, product

from quality.costs import FixedCosts
from shoal.types import Resources, TaskId
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


def shared_bound(
    workflow: Workflow, costs: FixedCosts, workers: int, resources: Resources
) -> float:
    """Return a lower bound for workers with one slot: their work, and how long they must be idle.

    All inputs of a worker's first task come from elsewhere, and the output of its last one leaves.
    Of tasks that have a long way before and behind them, each worker has a first and a last one.
    """
    calls, upstream = workflow.calls, workflow.upstream
    seconds = {task: costs.execution(task, 0, resources) for task in calls}
    moving = {task: costs.transfer("save", costs.nbytes[task], resources) for task in calls}
    before: dict[TaskId, float] = {}
    behind: dict[TaskId, float] = {}
    for task in calls:
        before[task] = max((before[s] + seconds[s] for s in upstream[task]), default=0.0)
    for task in reversed(list(calls)):
        takers = workflow.downstream(task)
        behind[task] = max((behind[t] + seconds[t] for t in takers), default=0.0)
    first = [
        max((before[s] + seconds[s] + 2 * moving[s] for s in upstream[task]), default=0.0)
        for task in calls
    ]
    last = [behind[task] + 2 * moving[task] * bool(behind[task]) for task in calls]
    found = [_shared(first, list(seconds.values()), last, workers)]
    for head, tail in product(set(before.values()), set(behind.values())):
        inner = [task for task in calls if before[task] >= head and behind[task] >= tail]
        head_of, work_of, tail_of = (
            [length[task] for task in inner] for length in (before, seconds, behind)
        )
        found.append(_shared(head_of, work_of, tail_of, workers))
    return max(found)


def _shared(
    before: Sequence[float], work: Sequence[float], behind: Sequence[float], workers: int
) -> float:
    """Return the least time of so many workers or fewer for tasks with idle times around them."""
    idle = zip(accumulate(sorted(before)), accumulate(sorted(behind)), strict=True)
    total = sum(work)
    times = [
        (head + total + tail) / count
        for count, (head, tail) in enumerate(islice(idle, workers), start=1)
    ]
    return min(times, default=0.0)
