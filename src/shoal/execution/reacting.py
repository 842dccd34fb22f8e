"""`ReactingMachine`: a worker with a plan that has reactions.

1. After each event, and before it decides what to do next, the machine asks each reaction for
   orders, and follows those that fit. It asks neither about timers, other than those of retries,
   nor when its time limit is near.
2. Orders use the machine's own ways: what a plan gives beforehand (inputs to preload, sandboxes to
   warm up, copies, ranks, how long to linger) an order adds or changes later.
3. A task that is to run after another waits until that one has left its slot. The other one is
   running, or is ready and isn't put off itself, so tasks never wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from heapq import heapify
from typing import assert_never

from shoal.execution.effects import Effect
from shoal.execution.events import Event, Started, TimerFired
from shoal.execution.machine import HANDLERS, Rest, WorkerMachine
from shoal.execution.obligations import Obligations
from shoal.execution.plan import PlannedPart, Prewarm
from shoal.execution.reactions import (
    Duplicate,
    Linger,
    Order,
    Preload,
    RunAfter,
    RunFirst,
    SaveEarly,
    orders_of,
)
from shoal.execution.timers import RetryTimer
from shoal.types import Resources, TaskId, WorkerId


def planned_machine(part: PlannedPart, obligations: Obligations | None = None) -> WorkerMachine:
    """The machine of a worker with a plan; `obligations` are those of the part, if known."""
    kind = ReactingMachine if part.reactions else WorkerMachine
    return kind(part, obligations)


class ReactingMachine(WorkerMachine):
    """The state of one start of a worker that asks reactions for orders."""

    def __init__(self, part: PlannedPart, obligations: Obligations | None = None) -> None:
        super().__init__(part, obligations)
        self._put_off: dict[TaskId, list[TaskId]] = {}
        """Tasks that are ready, and run after the task that they are listed under."""

    def _react(self, event: Event, effects: list[Effect], now: float) -> None:
        HANDLERS[type(event)](self, event, effects)
        if type(event) is Started:
            known = self._obligations  # other starts of the worker have the same
            self._obligations = replace(known, order=[*known.order], rank={**known.rank})
        if not (self.finished or self._late) and _concerns_reactions(event):
            self._ask(event, effects, now)
        self._memory.forget(effects)
        if not self.finished:
            self._go_on(effects, now)

    def _ask(self, event: Event, effects: list[Effect], now: float) -> None:
        view = _View(self, now)
        for reaction in self.part.reactions:
            for order in orders_of(reaction, event, view):
                self._follow(order, effects)

    def _follow(self, order: Order, effects: list[Effect]) -> None:
        """Follow an order as far as it fits the worker and the moment."""
        match order:
            case Preload(task):
                self._preload(task, effects)
            case Prewarm():
                self._prewarming.add(order, effects)
            case SaveEarly(output):
                if output in self._executed:
                    self._memory.save_all((output,), effects)
            case RunFirst(task):
                if self._is_ready(task):
                    self._run_first(task)
            case RunAfter(task, other):
                if self._is_ready(task) and task != other:
                    self._run_after(task, other)
            case Duplicate(task):
                self._duplicate(task, effects)
            case Linger(seconds):
                self.part = replace(self.part, linger=seconds)
            case _:
                assert_never(order)

    def _preload(self, task: TaskId, effects: list[Effect]) -> None:
        part, memory = self.part, self._memory
        if task in self._lacks:
            here = memory.held | memory.fetching.keys()
            wanted = [name for name in part.constants.get(task, ()) if name not in here]
            waits = self._lacks[task] and task not in self._executed
            if wanted and waits and self._rest is not Rest.PARKING:
                memory.fetch(wanted, effects)
        elif task in part.owners and task not in part.preloaded:
            self.part = replace(part, preloaded=part.preloaded | {task})

    def _is_ready(self, task: TaskId) -> bool:
        """Whether an own task, not a copy, waits for a slot."""
        return task in self._lacks and self._obligations.rank[task] in self._ready

    def _run_first(self, task: TaskId) -> None:
        """Exchange ranks among the ready tasks; `_ready` has the same ranks as before."""
        order, rank = self._obligations.order, self._obligations.rank
        ranks = sorted([each for each in self._ready if each <= rank[task]])
        tasks = [task, *(order[each] for each in ranks[:-1])]
        for each, moved in zip(ranks, tasks, strict=True):
            order[each], rank[moved] = moved, each

    def _run_after(self, task: TaskId, other: TaskId) -> None:
        if other in self._running or self._is_ready(other):
            self._ready.remove(self._obligations.rank[task])
            heapify(self._ready)
            self._put_off.setdefault(other, []).append(task)

    def _stopped_running(self, task: TaskId, how: str) -> None:
        super()._stopped_running(task, how)
        self._make_ready(self._put_off.pop(task, ()))

    def _duplicate(self, task: TaskId, effects: list[Effect]) -> None:
        copies = self._copies
        copy = copies.open.get(task)
        free = not self._ready and len(self._running | copies.begun) < self._slots
        if copy is not None and free and self._memory.held.issuperset(copy.upstream):
            copies.begin(task)
            self._gather(task, effects)


def _concerns_reactions(event: Event) -> bool:
    """Whether something happened to a task; a reaction that sets timers gets no answer to them."""
    return type(event) is not TimerFired or isinstance(event.timer, RetryTimer)


class _ReadOnly(Set[TaskId]):
    """A set of the machine's that reactions can't change."""

    __slots__ = ("_set",)
    _from_iterable = frozenset  # what operators make of two sets

    def __init__(self, found: Set[TaskId]) -> None:
        self._set = found

    def __contains__(self, task: object) -> bool:
        return task in self._set

    def __iter__(self) -> Iterator[TaskId]:
        return iter(self._set)

    def __len__(self) -> int:
        return len(self._set)


class _View:
    """What a reaction sees of a machine."""

    __slots__ = ("_machine", "now")

    def __init__(self, machine: ReactingMachine, now: float) -> None:
        self._machine = machine
        self.now = now

    @property
    def worker(self) -> WorkerId:
        return self._machine.part.worker

    @property
    def resources(self) -> Resources:
        return self._machine.part.resources

    @property
    def tasks(self) -> Set[TaskId]:
        return self._machine.part.tasks

    @property
    def executed(self) -> Set[TaskId]:
        return _ReadOnly(self._machine._executed)

    @property
    def running(self) -> Set[TaskId]:
        return _ReadOnly(self._machine._running)

    @property
    def ready(self) -> tuple[TaskId, ...]:
        machine = self._machine
        waiting = [machine._obligations.order[rank] for rank in sorted(machine._ready)]
        return tuple([task for task in waiting if task in machine._lacks])

    @property
    def held(self) -> Set[TaskId]:
        return _ReadOnly(self._machine._memory.held)

    @property
    def idle(self) -> bool:
        return self._machine._idle

    def nbytes(self, output: TaskId) -> int:
        return self._machine._memory.size(output)
