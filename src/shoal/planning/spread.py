"""`SpreadPlanner`: without predictions, spread connected groups of tasks evenly over workers.

1. Tasks of one name are taken to cost the same: each worker gets an equal share of them.
2. Tasks without upstream tasks are dealt out in blocks of neighbours, so that trees stay whole.
3. Every other task goes where most of its inputs are, as long as that worker's share isn't full.
4. A task that alone takes the output of a single task follows it: chains are never cut.
5. A task that asks for resources gets a worker that has them; one worker has one configuration.
"""

from collections import Counter

from shoal.execution.plan import Placement, Plan
from shoal.types import Resources, TaskId, WorkerId
from shoal.workflow import Workflow


class SpreadPlanner:
    """Spreads connected groups of tasks over as many workers as may be used."""

    def plan(self, workflow: Workflow, *, workers: int, resources: Resources) -> Plan:
        """A plan for a workflow, in time linear in its tasks and edges."""
        return Plan(workflow, _Spread(workflow, workers, resources).placements(), planner="spread")


class _Spread:
    def __init__(self, workflow: Workflow, workers: int, resources: Resources) -> None:
        self.workflow = workflow
        self.workers = workers
        self.resources = resources
        self.kinds = Counter(self._kind(task) for task in workflow.calls)
        self.dealt: Counter[tuple[str, Resources]] = Counter()
        """How many tasks without upstream tasks of each kind have a place."""
        self.roots = Counter(
            self._kind(task) for task in workflow.calls if not workflow.upstream[task]
        )
        self.share: Counter[tuple[str, Resources, int]] = Counter()
        """How many tasks of each kind each worker has."""
        self.load = [0] * workers
        self.home: dict[TaskId, int] = {}

    def placements(self) -> dict[TaskId, Placement]:
        placements: dict[TaskId, Placement] = {}
        made: dict[tuple[int, Resources], Placement] = {}
        for task in self.workflow.calls:
            kind = self._kind(task)
            home = self._choose(task, kind)
            self.home[task] = home
            self.share[(*kind, home)] += 1
            self.load[home] += 1
            key = (home, kind[1])
            if key not in made:
                made[key] = Placement(WorkerId(f"w{len(made)}"), kind[1])
            placements[task] = made[key]
        return placements

    def _kind(self, task: TaskId) -> tuple[str, Resources]:
        call = self.workflow.calls[task].task
        return call.name, call.resources or self.resources

    def _choose(self, task: TaskId, kind: tuple[str, Resources]) -> int:
        sources = self.workflow.upstream[task]
        if not sources:
            position = self.dealt[kind]
            self.dealt[kind] += 1
            return position * self.workers // self.roots[kind]
        if len(sources) == 1 and len(self.workflow.downstream(sources[0])) == 1:
            return self.home[sources[0]]
        full = -(-self.kinds[kind] // self.workers)
        near = Counter(self.home[source] for source in sources)
        best = max(
            near, key=lambda home: (self._room(kind, home, full), near[home], -self.load[home])
        )
        if self._room(kind, best, full):
            return best
        return min(
            range(self.workers), key=lambda home: (self.share[(*kind, home)], self.load[home])
        )

    def _room(self, kind: tuple[str, Resources], home: int, full: int) -> bool:
        return self.share[(*kind, home)] < full
