"""Define `SpreadPlanner`, which needs no predictions: it spreads groups of tasks over workers.

1. Tasks of one name are assumed to cost the same: each worker gets an equal share of them.
2. Tasks without upstream tasks are assigned in blocks of neighbours, so that trees stay whole.
   Names with fewer such tasks than there are workers are assigned together.
3. Every other task runs where most of its inputs are, until that worker's share is full. Then they
   too are assigned in blocks of neighbours.
4. A task that is the only consumer of a single task runs on that task's worker, so chains are never
   split.
5. A task that requests resources, or turned out to need more memory, gets a worker that has them
   (see `grouping`).
"""

from collections import Counter
from heapq import heapreplace

from shoal.execution.plan import Placement, Plan
from shoal.planning.arguments import check_sla
from shoal.planning.base import Conditions
from shoal.planning.grouping import placed
from shoal.types import SLA, Resources, TaskId
from shoal.workflow import Workflow

Kind = tuple[str, Resources]
"""A task's name and the resources of its worker."""


class SpreadPlanner:
    """Spreads connected groups of tasks over all available workers."""

    def __init__(self, *, sla: SLA = "median") -> None:
        """Create the planner; `sla` is the level at which makespans are predicted."""
        check_sla(sla, f"SpreadPlanner(sla={sla!r})")
        self.sla = sla

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Plan a workflow in time linear in its tasks and edges."""
        plan = spread(workflow, conditions.workers, conditions.resources)
        if not any(call.task.forced_optimizations for call in workflow.calls.values()):
            return plan
        from shoal.planning.optimizations import forced

        return forced(plan, conditions, conditions.predictions.at(self.sla))


def spread(workflow: Workflow, workers: int, resources: Resources) -> Plan:
    """Return a plan without any optimization."""
    return Plan(workflow, _EvenPlan(workflow, workers, resources).placements(), planner="spread")


class _EvenPlan:
    def __init__(self, workflow: Workflow, workers: int, resources: Resources) -> None:
        self.workflow = workflow
        self.workers = workers
        self.resources = resources
        upstream = workflow.upstream
        self.takers = Counter(source for sources in upstream.values() for source in sources)
        self.kinds = Counter(self._kind(task) for task in workflow.calls)
        roots = Counter(self._kind(task) for task in workflow.calls if not upstream[task])
        self.pile = {kind: kind if n >= workers else ("", kind[1]) for kind, n in roots.items()}
        """Which tasks without upstream tasks are assigned together."""
        self.piled: Counter[Kind] = Counter()
        for kind, count in roots.items():
            self.piled[self.pile[kind]] += count
        self.dealt: Counter[Kind] = Counter()
        """How many tasks of each pile are assigned."""
        self.seen: Counter[Kind] = Counter()
        """How many tasks of each kind are assigned."""
        self.share: Counter[tuple[str, Resources, int]] = Counter()
        """How many tasks of each kind each worker has."""
        self.load = [0] * workers
        self.heaps: dict[Kind, list[tuple[int, int, int]]] = {}
        """For each kind: how many tasks of it, and in total, each worker had at the last check."""
        self.home: dict[TaskId, int] = {}

    def placements(self) -> dict[TaskId, Placement]:
        resources: dict[TaskId, Resources] = {}
        for task in self.workflow.calls:
            kind = self._kind(task)
            home = self._choose(task, kind)
            self.home[task], resources[task] = home, kind[1]
            self.seen[kind] += 1
            self.share[(*kind, home)] += 1
            self.load[home] += 1
        return placed(self.home, resources, self.workers)

    def _kind(self, task: TaskId) -> Kind:
        name = self.workflow.calls[task].task.name
        return name, self.workflow.resources(task) or self.resources

    def _choose(self, task: TaskId, kind: Kind) -> int:
        sources = self.workflow.upstream[task]
        if not sources:
            return self._deal(self.pile[kind])
        if len(sources) == 1 and self.takers[sources[0]] == 1:
            return self.home[sources[0]]
        full = -(-self.kinds[kind] // self.workers)
        near = Counter(self.home[source] for source in sources)
        best = max(
            near, key=lambda home: (self._room(kind, home, full), near[home], -self.load[home])
        )
        if self._room(kind, best, full):
            return best
        block = self.seen[kind] * self.workers // self.kinds[kind]
        if self._room(kind, block, full):
            return block
        return self._least(kind)

    def _least(self, kind: Kind) -> int:
        """Return the worker with the fewest tasks of a kind; ties go to the fewest in total.

        Both counts only grow, so the heap never overestimates them.
        """
        if kind not in self.heaps:
            self.heaps[kind] = [(0, 0, home) for home in range(self.workers)]
        heap = self.heaps[kind]
        while True:
            home = heap[0][2]
            now = (self.share[(*kind, home)], self.load[home], home)
            if now == heap[0]:
                return home
            heapreplace(heap, now)

    def _deal(self, pile: Kind) -> int:
        position = self.dealt[pile]
        self.dealt[pile] += 1
        return position * self.workers // self.piled[pile]

    def _room(self, kind: Kind, home: int, full: int) -> bool:
        return self.share[(*kind, home)] < full
