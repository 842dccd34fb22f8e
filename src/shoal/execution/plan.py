"""`Plan`: which worker runs which task, and with what; `Part`: what one worker needs of it.

A plan is data only. A part is all that travels to a worker: its own tasks, and of its neighbours
just enough to mark what they wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shoal.errors import WorkflowError
from shoal.types import Resources, TaskId, WorkerId
from shoal.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Prewarm:
    """Have a sandbox ready, some seconds after a task began."""

    resources: Resources
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a task runs, and how."""

    worker: WorkerId
    resources: Resources
    preload: bool = False
    """Its inputs are fetched one by one as they are saved, not when all are."""
    prewarm: tuple[Prewarm, ...] = ()
    """Sandboxes that are to be warmed while it runs."""
    duplicable: bool = False
    """Workers that wait for its output may run it too."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker needs of a plan."""

    worker: WorkerId
    resources: Resources
    tasks: tuple[TaskId, ...]
    """The worker's own, in the workflow's order."""
    numbers: tuple[int, ...]
    """Each one's place in the workflow: the short name that timelines use."""
    upstream: tuple[tuple[TaskId, ...], ...]
    """Each one's upstream tasks, wherever they run."""
    shared: Mapping[TaskId, tuple[WorkerId, ...]]
    """Tasks that wait for more than one worker or for another one, and the workers they wait for.
    A task here becomes ready by marks in the store, one for each of those workers."""
    owners: Mapping[TaskId, WorkerId]
    """Who runs each task in `shared`."""
    neighbours: Mapping[WorkerId, Resources]
    """The owners that this worker may have to start, and what each needs."""
    feeds: Mapping[TaskId, tuple[TaskId, ...]]
    """Own outputs that tasks elsewhere take, and those tasks."""
    sinks: frozenset[TaskId] = frozenset()
    """Own outputs that the client takes."""
    constants: Mapping[TaskId, tuple[TaskId, ...]] = field(default_factory=dict)
    """Large constant arguments of own tasks, by the names they were saved under, each once."""
    retries: Mapping[TaskId, int] = field(default_factory=dict)
    """How often own tasks may be tried again."""
    linger: float | None = None
    """How long to wait with nothing to do before parking; None: for ever."""
    ranks: tuple[int, ...] = ()
    """Each own task's rank: of the ready ones the lowest runs first; empty: those that others wait
    for, then in the workflow's order."""

    @property
    def rooted(self) -> bool:
        """Whether the worker has something to do before anyone else has done anything."""
        return any(not sources for sources in self.upstream)


@dataclass(frozen=True)
class Plan:
    """A placement for each task of a workflow."""

    workflow: Workflow
    placements: Mapping[TaskId, Placement]
    linger: float | None = 0.5
    """How long a worker with nothing to do waits before it parks."""
    planner: str = ""
    """Who made it."""
    ranks: Mapping[TaskId, int] | None = None
    """Of a worker's ready tasks the one with the lowest rank runs first; None: those that others
    wait for, then in the workflow's order."""
    expected: Mapping[TaskId, tuple[float, float]] = field(default_factory=dict)
    """Of duplicable tasks: how long they take, and when their outputs are expected elsewhere, in
    seconds since the start of the run."""
    duplication_gain: float = 0.5
    """Seconds that a duplicate must save."""
    notes: tuple[str, ...] = ()
    """What its planner wants to be known, such as a goal that it could not reach."""

    def __post_init__(self) -> None:
        missing = self.workflow.calls.keys() - self.placements.keys()
        if missing:
            raise WorkflowError(
                f"The plan has no placement for {len(missing)} tasks, {min(missing)!r} among them."
            )
        for task in self.workflow.calls:
            placement = self.placements[task]
            known = self.workers.setdefault(placement.worker, placement.resources)
            if known != placement.resources:
                raise WorkflowError(
                    f"The plan gives worker {placement.worker} two configurations: {known} and, "
                    f"for task {task!r}, {placement.resources}."
                )

    @cached_property
    def workers(self) -> dict[WorkerId, Resources]:
        """Every worker and what it has, in the order of their first tasks."""
        return {}

    def parts(self, constants: Mapping[TaskId, tuple[TaskId, ...]] | None = None) -> list[Part]:
        """What each worker needs, in the order of `workers`."""
        return _Cut(self, constants or {}).parts()


class _Cut:
    """Cuts a plan into parts, in time linear in tasks and edges."""

    def __init__(self, plan: Plan, constants: Mapping[TaskId, tuple[TaskId, ...]]) -> None:
        self.plan = plan
        self.constants = constants
        self.home = {task: placement.worker for task, placement in plan.placements.items()}
        workers = plan.workers
        self.tasks: dict[WorkerId, list[TaskId]] = {worker: [] for worker in workers}
        self.numbers: dict[WorkerId, list[int]] = {worker: [] for worker in workers}
        self.shared: dict[WorkerId, dict[TaskId, tuple[WorkerId, ...]]] = {w: {} for w in workers}
        self.feeds: dict[WorkerId, dict[TaskId, list[TaskId]]] = {w: {} for w in workers}
        self._walk()

    def _walk(self) -> None:
        home, upstream = self.home, self.plan.workflow.upstream
        for number, task in enumerate(self.plan.workflow.calls):
            me = home[task]
            self.tasks[me].append(task)
            self.numbers[me].append(number)
            sources = upstream[task]
            if all([home[source] == me for source in sources]):
                continue
            producers = tuple(dict.fromkeys([home[source] for source in sources]))
            for worker in {me, *producers}:
                self.shared[worker][task] = producers
            for source in sources:
                if home[source] != me:
                    self.feeds[home[source]].setdefault(source, []).append(task)

    def parts(self) -> list[Part]:
        return [self._part(worker) for worker in self.plan.workers]

    def _part(self, worker: WorkerId) -> Part:
        plan, workflow = self.plan, self.plan.workflow
        tasks = self.tasks[worker]
        owners = {task: self.home[task] for task in self.shared[worker]}
        return Part(
            worker=worker,
            resources=plan.workers[worker],
            tasks=tuple(tasks),
            numbers=tuple(self.numbers[worker]),
            upstream=tuple([workflow.upstream[task] for task in tasks]),
            shared=self.shared[worker],
            owners=owners,
            neighbours={owner: plan.workers[owner] for owner in owners.values()},
            feeds={source: tuple(takers) for source, takers in self.feeds[worker].items()},
            sinks=frozenset(sink for sink in workflow.sinks if self.home[sink] == worker),
            constants={
                task: tuple(dict.fromkeys(self.constants[task]))
                for task in tasks
                if task in self.constants
            },
            retries={
                t: workflow.calls[t].task.retries for t in tasks if workflow.calls[t].task.retries
            },
            linger=plan.linger,
            ranks=tuple([plan.ranks[task] for task in tasks]) if plan.ranks else (),
        )
