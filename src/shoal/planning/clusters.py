"""Assign workers as the papers do (Algorithm 1): few workers, and data stays where it is made.

1. The first tasks, and the tasks after a fan-out, are grouped. The shorter half of them join the
   upstream worker and the longer tasks, at most `max_clustering` together.
2. A task that is the only consumer of a single task runs on that task's worker.
3. A fan-in runs where most of its input, in bytes, is made.

Differences to the papers: there are no more workers than may run concurrently, and further groups
join the least loaded worker; a fan-in after a fan-out is placed as a fan-in; a task that requests
resources gets a worker that has them (see `grouping`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from shoal.execution.plan import Placement
from shoal.planning.estimates import Estimates
from shoal.planning.grouping import placed
from shoal.types import Resources, TaskId

MAX_CLUSTERING = 3


def clustered(
    estimates: Estimates,
    resources: Callable[[TaskId], Resources],
    workers: int,
    max_clustering: int = MAX_CLUSTERING,
) -> dict[TaskId, Placement]:
    """Place each task.

    Args:
        estimates: The predicted costs of the tasks.
        resources: The resources of a task's worker.
        workers: How many workers there may be.
        max_clustering: How many short tasks to place together.
    """
    return _Clusters(estimates, resources, workers, max_clustering).placements()


class _Clusters:
    def __init__(
        self,
        estimates: Estimates,
        resources: Callable[[TaskId], Resources],
        workers: int,
        most: int,
    ) -> None:
        self.estimates = estimates
        self.workflow = estimates.workflow
        self.resources = {task: resources(task) for task in self.workflow.calls}
        self.workers = workers
        self.most = most
        self.home: dict[TaskId, int] = {}
        self.load: list[float] = []

    def placements(self) -> dict[TaskId, Placement]:
        workflow = self.workflow
        for task, sources in workflow.upstream.items():
            if task in self.home:
                continue
            if not sources:
                roots = [t for t, s in workflow.upstream.items() if not s and t not in self.home]
                self._group(None, roots)
            elif len(sources) == 1:
                self._follow(task, sources[0])
            else:
                self._fan_in(task, sources)
        homes = {task: self.home[task] for task in workflow.calls}
        return placed(homes, self.resources, self.workers)

    def _seconds(self, task: TaskId) -> float:
        return self.estimates.seconds(self.resources[task])[task]

    def _assign(self, tasks: Sequence[TaskId], home: int) -> None:
        for task in tasks:
            self.home[task] = home
            self.load[home] += self._seconds(task)

    def _new(self) -> int:
        if len(self.load) < self.workers:
            self.load.append(0.0)
            return len(self.load) - 1
        return min(range(len(self.load)), key=lambda home: (self.load[home], home))

    def _follow(self, task: TaskId, source: TaskId) -> None:
        takers = self.workflow.downstream(source)
        if len(takers) == 1:
            self._assign([task], self.home[source])
            return
        behind = [t for t in takers if t not in self.home and len(self.workflow.upstream[t]) == 1]
        self._group(self.home[source], behind)

    def _fan_in(self, task: TaskId, sources: Sequence[TaskId]) -> None:
        nbytes: dict[int, int] = {}
        for source in sources:
            home = self.home[source]
            nbytes[home] = nbytes.get(home, 0) + self.estimates.output_nbytes[source]
        self._assign([task], max(nbytes, key=lambda home: (nbytes[home], -home)))

    def _group(self, upstream: int | None, tasks: Sequence[TaskId]) -> None:
        seconds = {task: self._seconds(task) for task in tasks}
        middle = median(seconds.values())
        longs = [task for task in tasks if seconds[task] > middle]
        shorts = [task for task in tasks if seconds[task] <= middle]
        shorts.sort(key=lambda task: -self.estimates.output_nbytes[task])
        most = self.most
        if upstream is not None and shorts:
            self._assign(shorts[:most], upstream)
            shorts = shorts[most:]
        beside = max(1, most - 1)
        pairs = min(len(longs), -(-len(shorts) // beside))
        for i in range(pairs):
            self._assign([longs[i], *shorts[i * beside : (i + 1) * beside]], self._new())
        longs, shorts = longs[pairs:], shorts[pairs * beside :]
        for i in range(0, len(shorts), most):
            self._assign(shorts[i : i + most], self._new())
        half = max(1, most // 2)
        for i in range(0, len(longs), half):
            self._assign(longs[i : i + half], self._new())
