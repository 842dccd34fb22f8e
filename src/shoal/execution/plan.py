"""`Plan`: which worker runs which task, and with what; `Part`: what one worker needs of it.

A plan is data only. A part is all that travels to a worker: its own tasks, and of its neighbours
just enough to mark what they wait for. In a flexible plan no task has a worker: there is one part
with all tasks, the same for all workers, each of which is named after the task it begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from shoal.errors import PlanError
from shoal.execution.policies import Policies
from shoal.types import Resources, TaskId, WorkerId
from shoal.workflow import Workflow

DUPLICATION_GAIN = 0.5
"""Seconds that a copy of a task must be predicted to save."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """Have sandboxes ready, some seconds after a task began."""

    resources: Resources
    delay: float = 0.0
    count: int = 1
    """How many are to be idle then, those counted that already are."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a task runs, and how."""

    worker: WorkerId | None
    """None: whoever readies the task runs it, or has a new worker run it."""
    resources: Resources
    preload: bool = False
    """Its inputs are fetched one by one as they are saved, not when all are."""
    prewarm: tuple[Prewarm, ...] = ()
    """Sandboxes that are to be warmed while it runs."""
    duplicable: bool = False
    """Workers that wait for its output may run it too."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A task of another worker that this one may run too, for its own tasks only."""

    worker: WorkerId
    """Whose task it is."""
    number: int
    """Its place in the workflow."""
    upstream: tuple[TaskId, ...]
    """Its upstream tasks: own ones, or such whose outputs come here anyway."""
    seconds: float
    """How long it is predicted to run here."""
    expected: float
    """When its output is predicted to come from its worker, in seconds since the run's start."""
    targets: Mapping[TaskId, tuple[TaskId, ...]]
    """The own tasks that take it, and all that each takes from its worker."""


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
    shared: Mapping[TaskId, tuple[str, ...]]
    """Tasks that wait for more than one worker or for another one, and the workers they wait for.
    A task here becomes ready by marks in the store, one for each of those workers. In a flexible
    part: tasks with several upstream tasks, and these."""
    owners: Mapping[TaskId, WorkerId]
    """Who runs each task in `shared`."""
    feeds: Mapping[TaskId, tuple[TaskId, ...]]
    """Own outputs that tasks elsewhere take, and those tasks; in a flexible part any tasks."""
    sinks: frozenset[TaskId] = frozenset()
    """Own outputs that the client takes."""
    constants: Mapping[TaskId, tuple[TaskId, ...]] = field(default_factory=dict)
    """Large constant arguments of own tasks and of copies, by the names they were saved under,
    each once."""
    retries: Mapping[TaskId, int] = field(default_factory=dict)
    """How often own tasks may be tried again."""
    linger: float | None = None
    """How long to wait with nothing to do before parking; None: for ever."""
    ranks: tuple[int, ...] = ()
    """Each own task's rank: of the ready ones the lowest runs first; empty: those that others wait
    for, then in the workflow's order."""
    preloaded: frozenset[TaskId] = frozenset()
    """Tasks elsewhere in `shared` whose owners are told of each output as soon as it is saved."""
    prewarms: Mapping[TaskId, tuple[Prewarm, ...]] = field(default_factory=dict)
    """Sandboxes that are to be warmed while own tasks run."""
    copies: Mapping[TaskId, Copy] = field(default_factory=dict)
    """Tasks of others that this worker may run too."""
    duplication_gain: float = DUPLICATION_GAIN
    """Seconds that a copy must be predicted to save."""
    flexible: bool = False
    """Whether the tasks are everybody's, and the worker begins with the one it is named after."""
    limit: float | None = None
    """How long one start of the worker may take; None: for ever."""
    policies: Policies = field(default_factory=Policies)
    """What flexible workers decide by."""

    def begun_with(self, task: TaskId) -> Part:
        """A flexible part as the worker has it that begins with a task."""
        return replace(self, worker=WorkerId(task))

    def numbered(self) -> dict[TaskId, int]:
        """The numbers of own tasks and of copies."""
        copies = {task: copy.number for task, copy in self.copies.items()}
        return dict(zip(self.tasks, self.numbers, strict=True)) | copies

    @property
    def rooted(self) -> bool:
        """Whether the worker has something to do before anyone else has done anything."""
        return any(not sources for sources in self.upstream)

    def travels(self, task: TaskId) -> bool:
        """Whether an own output may have to leave the worker."""
        takers = self.feeds.get(task, ())
        if self.flexible and len(takers) == 1 and takers[0] not in self.shared:
            takers = ()
        return bool(takers) or task in self.sinks

    @property
    def waits(self) -> bool:
        """Whether the worker is told by others, through its mailbox, what is ready."""
        return not self.flexible and not self.shared.keys().isdisjoint(self.tasks)


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
    """Of duplicable tasks: how long one runs, and when its output is where it is waited for, in
    seconds since the run's start. A task that isn't here is never copied."""
    duplication_gain: float = DUPLICATION_GAIN
    """Seconds that a copy must be predicted to save."""
    limit: float | None = None
    """How long one start of a worker may take; None: for ever."""
    policies: Policies = field(default_factory=Policies)
    """What its workers decide by if it is flexible."""
    notes: tuple[str, ...] = ()
    """What its planner wants to be known, such as a goal that it could not reach."""
    unmet: str = ""
    """The goal that it is predicted to miss, and how far; empty: none."""
    forced: bool = False
    """Whether it has the optimizations that its tasks insist on."""

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
        """Every worker and what it has, in the order of their first tasks; none if flexible."""
        return {}

    def of(self, workflow: Workflow) -> Plan:
        """The same plan for a workflow of the same shape."""
        plan = copy(self)
        object.__setattr__(plan, "workflow", workflow)
        return plan

    @property
    def flexible(self) -> bool:
        """Whether no task has a worker."""
        return not self.workers

    @cached_property
    def _anyone(self) -> Resources:
        return self.placements[next(iter(self.workflow.calls))].resources

    @property
    def configurations(self) -> frozenset[Resources]:
        """What its workers have."""
        return frozenset((self._anyone,) if self.flexible else self.workers.values())

    def resources_of(self, worker: WorkerId) -> Resources | None:
        """What a worker has; None if the plan doesn't know it."""
        return self._anyone if self.flexible else self.workers.get(worker)

    def workers_of(self, seen: Iterable[WorkerId]) -> dict[WorkerId, Resources]:
        """Every worker and what it has; those that a timeline has seen if the plan is flexible."""
        return dict.fromkeys(seen, self._anyone) if self.flexible else self.workers

    def parts(self, constants: Mapping[TaskId, tuple[TaskId, ...]] | None = None) -> list[Part]:
        """What each worker needs, in the order of `workers`; the one part of all if flexible."""
        if self.flexible:
            return [_flexible_part(self, self._anyone, constants or {})]
        return _Cut(self, constants or {}).parts()


def _flexible_part(
    plan: Plan, resources: Resources, constants: Mapping[TaskId, tuple[TaskId, ...]]
) -> Part:
    workflow = plan.workflow
    calls, upstream = workflow.calls, workflow.upstream
    return Part(
        worker=WorkerId(""),
        resources=resources,
        tasks=tuple(calls),
        numbers=tuple(range(len(calls))),
        upstream=tuple([upstream[task] for task in calls]),
        shared={task: sources for task, sources in upstream.items() if len(sources) > 1},
        owners={},
        feeds={task: found for task in calls if (found := workflow.downstream(task))},
        sinks=frozenset(workflow.sinks),
        constants={task: tuple(dict.fromkeys(names)) for task, names in constants.items()},
        retries={task: call.task.retries for task, call in calls.items() if call.task.retries},
        flexible=True,
        limit=plan.limit,
        policies=plan.policies,
    )


class _Cut:
    """Cuts a plan into parts, in time linear in tasks and edges."""

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
        """Whether a worker gets an output, whoever copies what."""
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

    def parts(self) -> list[Part]:
        return [self._part(worker) for worker in self.plan.workers]

    def _part(self, worker: WorkerId) -> Part:
        plan, workflow = self.plan, self.plan.workflow
        tasks = self.tasks[worker]
        owners = {task: self.home[task] for task in self.shared[worker]}
        copies = self.copies[worker]
        return Part(
            worker=worker,
            resources=plan.workers[worker],
            tasks=tuple(tasks),
            numbers=tuple(self.numbers[worker]),
            upstream=tuple([workflow.upstream[task] for task in tasks]),
            shared=self.shared[worker],
            owners=owners,
            feeds={source: tuple(takers) for source, takers in self.feeds[worker].items()},
            sinks=frozenset(self.sinks[worker]),
            constants={
                task: tuple(dict.fromkeys(self.constants[task]))
                for task in (*tasks, *copies)
                if task in self.constants
            },
            retries={
                t: workflow.calls[t].task.retries for t in tasks if workflow.calls[t].task.retries
            },
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
            limit=plan.limit,
        )
