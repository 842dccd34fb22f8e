"""`Plan`: which worker runs which task, and with what; `Part`: what one worker needs of it.

A plan is data only. A `PlannedPart` is all that a worker needs: its own tasks, and just enough of
its neighbours to mark what they wait for. A flexible plan assigns no task to a worker: all its
workers get the same `FlexiblePart`, which has every task.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from shoal.errors import PlanError
from shoal.execution.policies import Policies
from shoal.types import Resources, TaskId, WorkerId
from shoal.workflow import Workflow

if TYPE_CHECKING:
    from shoal.execution.reactions import Reaction

DUPLICATION_GAIN = 0.5
"""Seconds that a copy of a task must be predicted to save."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """Sandboxes to have ready some seconds after a task began."""

    resources: Resources
    delay: float = 0.0
    count: int = 1
    """How many are to be idle then, including those that already are."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The worker that runs a task, and how."""

    worker: WorkerId | None
    """None: the worker through which the task becomes ready runs it, or invokes a new one."""
    resources: Resources
    preload: bool = False
    """Whether its inputs are fetched as each is saved, not when all are."""
    prewarm: tuple[Prewarm, ...] = ()
    """Sandboxes to warm up while it runs."""
    duplicable: bool = False
    """Whether workers that wait for its output may run it too."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A task of another worker that this one may run too, for its own use only."""

    worker: WorkerId
    """The worker that owns the task."""
    number: int
    """Its position in the workflow."""
    upstream: tuple[TaskId, ...]
    """Its upstream tasks; their outputs are made here, or come here anyway."""
    seconds: float
    """How long it is predicted to run here."""
    expected: float
    """When its output is predicted to come from its owner, in seconds since the run's start."""
    targets: Mapping[TaskId, tuple[TaskId, ...]]
    """The own tasks that take it, and all outputs that each takes from its owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BasePart:
    """What every worker needs, whether it has a plan or is flexible."""

    worker: WorkerId
    resources: Resources
    upstream: Mapping[TaskId, tuple[TaskId, ...]]
    """The tasks of the part in the workflow's order, each with its upstream tasks, wherever those
    run."""
    sinks: frozenset[TaskId] = frozenset()
    """Tasks of the part whose outputs the client takes."""
    constants: Mapping[TaskId, tuple[TaskId, ...]] = field(default_factory=dict)
    """The large constant arguments of tasks and copies: the names they were saved under, each
    once."""
    retries: Mapping[TaskId, int] = field(default_factory=dict)
    """How often a task may be tried again."""
    limit: float | None = None
    """How many seconds one start of the worker may take; None: any number."""

    @property
    def tasks(self) -> KeysView[TaskId]:
        """The tasks of the part, in the workflow's order."""
        return self.upstream.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPart(_BasePart):
    """What one worker needs of a plan that assigns every task to a worker."""

    numbers: tuple[int, ...]
    """The position of each own task in the workflow: the short name that timelines use."""
    shared: Mapping[TaskId, tuple[WorkerId, ...]]
    """Tasks that wait for several workers, or for one that doesn't run them, and the workers they
    wait for. Each of those marks the task in the store; the last mark makes it ready."""
    owners: Mapping[TaskId, WorkerId]
    """Who runs each task in `shared`."""
    feeds: Mapping[TaskId, tuple[TaskId, ...]]
    """Own outputs that tasks of other workers take, and those tasks."""
    linger: float | None = None
    """How long an idle worker waits before it parks; None: until the run ends."""
    ranks: tuple[int, ...] = ()
    """The rank of each own task: the ready task with the lowest rank runs first. Empty: tasks that
    other workers wait for run first, then the others in the workflow's order."""
    preloaded: frozenset[TaskId] = frozenset()
    """Tasks of other workers in `shared` whose owners learn of each output once it is saved."""
    prewarms: Mapping[TaskId, tuple[Prewarm, ...]] = field(default_factory=dict)
    """Sandboxes to warm up while own tasks run."""
    copies: Mapping[TaskId, Copy] = field(default_factory=dict)
    """Tasks of other workers that this one may run too."""
    duplication_gain: float = DUPLICATION_GAIN
    """Seconds that a copy must be predicted to save."""
    reactions: tuple[Reaction, ...] = ()
    """What the worker asks for orders after each event. They travel on their own, as users' code
    does."""

    def numbered(self) -> dict[TaskId, int]:
        """The numbers of own tasks, then of copies."""
        copies = {task: copy.number for task, copy in self.copies.items()}
        return dict(zip(self.upstream, self.numbers, strict=True)) | copies

    @property
    def rooted(self) -> bool:
        """Whether the worker has a task that waits for nothing."""
        return not all(self.upstream.values())

    @property
    def waits(self) -> bool:
        """Whether other workers tell this one, through its mailbox, that tasks are ready."""
        return not self.shared.keys().isdisjoint(self.upstream)

    def travels(self, task: TaskId) -> bool:
        """Whether an own output may have to leave the worker."""
        return task in self.feeds or task in self.sinks

    def producers(self, task: TaskId) -> tuple[WorkerId, ...]:
        """Whose marks a shared task waits for."""
        return self.shared.get(task, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexiblePart(_BasePart):
    """What every flexible worker of a run needs: the whole workflow.

    A worker is named after the task it begins with; the part that all have in common has no name.
    """

    downstream: Mapping[TaskId, tuple[TaskId, ...]]
    """The tasks that take each output; outputs that no task takes are left out."""
    policies: Policies = field(default_factory=Policies)
    """What workers decide by."""

    def begun_with(self, task: TaskId) -> FlexiblePart:
        """The part of the worker that begins with a task."""
        return replace(self, worker=WorkerId(task))

    def numbered(self) -> dict[TaskId, int]:
        """The number of each task: its position in the workflow."""
        return {task: number for number, task in enumerate(self.upstream)}

    @property
    def rooted(self) -> bool:
        """Whether the worker begins with a task that waits for nothing."""
        return not self.upstream[TaskId(self.worker)]

    @property
    def roots(self) -> list[TaskId]:
        """The tasks that wait for nothing."""
        return [task for task, sources in self.upstream.items() if not sources]

    def fan_in(self, task: TaskId) -> bool:
        """Whether a task has several upstream tasks, so that marks make it ready."""
        return len(self.upstream[task]) > 1

    def travels(self, task: TaskId) -> bool:
        """Whether an output may have to leave the worker that made it."""
        takers = self.downstream.get(task, ())
        alone = len(takers) == 1 and not self.fan_in(takers[0])
        return bool(takers and not alone) or task in self.sinks

    def producers(self, task: TaskId) -> tuple[TaskId, ...]:
        """Whose marks a fan-in waits for."""
        return self.upstream.get(task, ())


Part = PlannedPart | FlexiblePart
"""What travels to a worker."""


@dataclass(frozen=True)
class Plan:
    """A placement for each task of a workflow."""

    workflow: Workflow
    placements: Mapping[TaskId, Placement]
    linger: float | None = 0.5
    """How long an idle worker waits before it parks; None: until the run ends."""
    planner: str = ""
    """The name of the planner that made it."""
    ranks: Mapping[TaskId, int] | None = None
    """A worker's ready task with the lowest rank runs first. None: tasks that other workers wait
    for run first, then the others in the workflow's order."""
    expected: Mapping[TaskId, tuple[float, float]] = field(default_factory=dict)
    """For duplicable tasks: how long the task runs, and when its output arrives where it is needed,
    in seconds since the run's start. A task without an entry is never copied."""
    duplication_gain: float = DUPLICATION_GAIN
    """Seconds that a copy must be predicted to save."""
    reactions: tuple[Reaction, ...] = ()
    """What its workers ask for orders as they run; none if it is flexible."""
    limit: float | None = None
    """How many seconds one start of a worker may take; None: any number."""
    policies: Policies = field(default_factory=Policies)
    """What its workers decide by, if it is flexible."""
    notes: tuple[str, ...] = ()
    """Remarks of its planner, such as a goal that it could not reach."""
    unmet: str = ""
    """The goal that it is predicted to miss, and by how much; empty: none."""
    forced: bool = False
    """Whether the optimizations that its tasks require are applied."""

    def __post_init__(self) -> None:
        if not isinstance(self.placements, Mapping):
            raise PlanError(
                "`placements` has a Placement for each task's id",
                f"it is a {type(self.placements).__name__}",
            )
        missing = self.workflow.calls.keys() - self.placements.keys()
        if missing:
            raise PlanError(
                "each task has a placement",
                f"there is no placement for {len(missing)}, {min(missing)!r} among them",
            )
        for task in self.workflow.calls:
            placement = self.placements[task]
            if not isinstance(placement, Placement):
                raise PlanError(
                    "a task is placed with Placement(worker, resources)",
                    f"{task!r} has {placement!r}",
                )
            worker, known = placement.worker, placement.resources
            if worker is not None:
                known = self.workers.setdefault(worker, known)
            elif not self.workers:
                known = self._anyone
            if known != placement.resources:
                who = "its flexible workers" if worker is None else f"worker {worker}"
                raise PlanError(
                    "a worker has one configuration",
                    f"it gives {who} two configurations: {known} and, for task {task!r}, "
                    f"{placement.resources}",
                )

    @cached_property
    def workers(self) -> dict[WorkerId, Resources]:
        """The resources of each worker, in the order of their first tasks; empty if flexible."""
        return {}

    @cached_property
    def _cut(self) -> dict[str, list[PlannedPart]]:
        """The parts, once they are known, if no task takes a large constant."""
        return {}

    def of(self, workflow: Workflow) -> Plan:
        """The same plan, and the same parts, for the same tasks with other arguments."""
        _ = self._cut  # so that both share it
        plan = object.__new__(Plan)
        plan.__dict__.update(self.__dict__, workflow=workflow)
        return plan

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_cut"}

    @property
    def flexible(self) -> bool:
        """Whether the plan assigns no task to a worker."""
        return not self.workers

    @cached_property
    def _anyone(self) -> Resources:
        return self.placements[next(iter(self.workflow.calls))].resources

    @property
    def configurations(self) -> frozenset[Resources]:
        """The distinct resources of its workers."""
        return frozenset((self._anyone,) if self.flexible else self.workers.values())

    def resources_of(self, worker: WorkerId) -> Resources | None:
        """The resources of a worker; None if the plan doesn't have it."""
        return self._anyone if self.flexible else self.workers.get(worker)

    def workers_of(self, seen: Iterable[WorkerId]) -> dict[WorkerId, Resources]:
        """The resources of each worker; if the plan is flexible, of the workers in a timeline."""
        return dict.fromkeys(seen, self._anyone) if self.flexible else self.workers

    def parts(
        self, constants: Mapping[TaskId, tuple[TaskId, ...]] | None = None
    ) -> list[PlannedPart]:
        """What each worker needs, in the order of `workers`; none if the plan is flexible."""
        if self.flexible:
            return []
        if constants:
            return _Cut(self, constants).parts()
        if "parts" not in self._cut:
            self._cut["parts"] = _Cut(self, {}).parts()
        return self._cut["parts"]

    def common_part(
        self, constants: Mapping[TaskId, tuple[TaskId, ...]] | None = None
    ) -> FlexiblePart:
        """What all workers of a flexible plan need."""
        calls, upstream = self.workflow.calls, self.workflow.upstream
        return FlexiblePart(
            worker=WorkerId(""),
            resources=self._anyone,
            upstream={task: upstream[task] for task in calls},
            sinks=frozenset(self.workflow.sinks),
            constants={task: _once(names) for task, names in (constants or {}).items()},
            retries=_retries(self.workflow, calls),
            limit=self.limit,
            downstream={
                task: takers for task in calls if (takers := self.workflow.downstream(task))
            },
            policies=self.policies,
        )


def _once(names: Iterable[TaskId]) -> tuple[TaskId, ...]:
    return tuple(dict.fromkeys(names))


def _retries(workflow: Workflow, tasks: Iterable[TaskId]) -> dict[TaskId, int]:
    calls = workflow.calls
    return {task: retries for task in tasks if (retries := calls[task].task.retries)}


class _Cut:
    """Cuts a plan into parts, in linear time."""

    def __init__(self, plan: Plan, constants: Mapping[TaskId, tuple[TaskId, ...]]) -> None:
        self.plan = plan
        self.constants = constants
        self.home = {
            task: cast(WorkerId, placement.worker) for task, placement in plan.placements.items()
        }
        workers = plan.workers
        self.tasks: dict[WorkerId, list[TaskId]] = {worker: [] for worker in workers}
        self.numbers: dict[WorkerId, list[int]] = {worker: [] for worker in workers}
        self.shared: dict[WorkerId, dict[TaskId, tuple[WorkerId, ...]]] = {w: {} for w in workers}
        self.feeds: dict[WorkerId, dict[TaskId, list[TaskId]]] = {w: {} for w in workers}
        self.sinks: dict[WorkerId, list[TaskId]] = {worker: [] for worker in workers}
        self.copies: dict[WorkerId, dict[TaskId, Copy]] = {worker: {} for worker in workers}
        self._walk()
        if plan.expected:
            self._find_copies()

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
        for sink in self.plan.workflow.sinks:
            self.sinks[home[sink]].append(sink)

    def _find_copies(self) -> None:
        for number, task in enumerate(self.plan.workflow.calls):
            if task in self.plan.expected and self.plan.placements[task].duplicable:
                takers: dict[WorkerId, list[TaskId]] = {}
                for target in self.feeds[self.home[task]].get(task, ()):
                    takers.setdefault(self.home[target], []).append(target)
                for worker, targets in takers.items():
                    if all(self._comes(u, worker) for u in self.plan.workflow.upstream[task]):
                        self.copies[worker][task] = self._copy(number, task, targets)

    def _comes(self, output: TaskId, worker: WorkerId) -> bool:
        """Whether a worker gets an output even if nothing is copied."""
        home = self.home[output]
        takers = self.feeds[home].get(output, ())
        return home == worker or any(self.home[taker] == worker for taker in takers)

    def _copy(self, number: int, task: TaskId, targets: list[TaskId]) -> Copy:
        home, upstream = self.home, self.plan.workflow.upstream
        seconds, expected = self.plan.expected[task]
        owed = {
            target: tuple([source for source in upstream[target] if home[source] == home[task]])
            for target in targets
        }
        return Copy(home[task], number, upstream[task], seconds, expected, owed)

    def parts(self) -> list[PlannedPart]:
        return [self._part(worker) for worker in self.plan.workers]

    def _part(self, worker: WorkerId) -> PlannedPart:
        plan, workflow = self.plan, self.plan.workflow
        tasks = self.tasks[worker]
        owners = {task: self.home[task] for task in self.shared[worker]}
        copies = self.copies[worker]
        return PlannedPart(
            worker=worker,
            resources=plan.workers[worker],
            upstream={task: workflow.upstream[task] for task in tasks},
            sinks=frozenset(self.sinks[worker]),
            constants={
                task: _once(self.constants[task])
                for task in (*tasks, *copies)
                if task in self.constants
            },
            retries=_retries(workflow, tasks),
            limit=plan.limit,
            numbers=tuple(self.numbers[worker]),
            shared=self.shared[worker],
            owners=owners,
            feeds={source: tuple(takers) for source, takers in self.feeds[worker].items()},
            linger=plan.linger,
            ranks=tuple([plan.ranks[task] for task in tasks]) if plan.ranks else (),
            preloaded=frozenset(
                task
                for task, owner in owners.items()
                if owner != worker and plan.placements[task].preload
            ),
            prewarms={t: plan.placements[t].prewarm for t in tasks if plan.placements[t].prewarm},
            copies=copies,
            duplication_gain=plan.duplication_gain,
            reactions=plan.reactions,
        )
