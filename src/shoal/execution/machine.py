"""`WorkerMachine`: what one worker does next. No I/O, no clock, no randomness, no logging.

1. Everything that decides what a worker does next is here. Two drivers feed it: the runtime with
   real time, the simulator with virtual time.
2. Each Fetch, Execute and Save is answered by exactly one event; a repeated Arrived is a no-op.
3. A task waits until its upstream tasks here are executed and, if it has others elsewhere, until
   it has arrived; then its missing inputs are fetched; then it waits for a free slot.
4. An output is released when it is executed and, if it is too large to travel with a mark, saved.
   Once this worker's last output for a task elsewhere is released, that task is marked, once.
5. Ready tasks go by the plan's ranks. If it has none, tasks that others wait for go first, then in
   the workflow's order, which finishes what was begun and frees memory early.
6. An event that doesn't fit the state raises ProtocolViolation with the task's story.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

from shoal.errors import ProtocolViolation
from shoal.execution.effects import (
    Abort,
    Effect,
    Execute,
    Fetch,
    Finish,
    Forget,
    HandIn,
    Mark,
    Park,
    Save,
    SetTimer,
)
from shoal.execution.events import (
    Arrived,
    Event,
    Executed,
    Failed,
    Fetched,
    MailCame,
    Saved,
    Started,
    TimerFired,
)
from shoal.execution.plan import Part
from shoal.types import TaskId

INLINE_NBYTES = 8 * 1024
"""Outputs up to this size travel inside the messages that need them."""

FIRST_RETRY = 0.1
"""Seconds before the first retry; each further pause is twice as long."""

REMEMBERED = 10_000
"""How many events back a story goes, so that a long life doesn't fill the memory."""


class WorkerMachine:
    """The state of one worker."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.finished = False
        """Nothing more will be asked of the driver."""
        self._slots = part.resources.slots
        self._order = _ordered(part)
        """Own tasks in the order in which ready ones run."""
        self._rank = {task: rank for rank, task in enumerate(self._order)}
        """Each one's place in that order."""
        self._inputs: dict[TaskId, tuple[TaskId, ...]] = {}
        """What must be in memory for each own task: upstream outputs and constants."""
        self._lacks: dict[TaskId, int] = {}
        """Own upstream tasks not yet executed, plus one if the task hasn't arrived."""
        self._takers: dict[TaskId, list[TaskId]] = {}
        """The own tasks that take an output of this worker."""
        self._joins: dict[TaskId, list[TaskId]] = {}
        """Those of them that also wait for others, and are marked without the output."""
        self._uses: dict[TaskId, int] = {}
        """Own tasks, marks, hand-ins and saves that still need an output in memory."""
        self._owes: dict[TaskId, int] = {}
        """Own outputs that a shared task still waits for."""
        self._held: set[TaskId] = set()
        """Outputs and constants in memory."""
        self._given: dict[TaskId, list[TaskId]] = {}
        """The own outputs that a task elsewhere takes."""
        self._saved: set[TaskId] = set()
        """Outputs that others are told to fetch."""
        self._spare: set[TaskId] = set()
        """Outputs that were saved only so that the worker could park."""
        self._saving: set[TaskId] = set()
        self._withheld: set[TaskId] = set()
        """Outputs that are released once they are saved."""
        self._fetching: dict[TaskId, list[TaskId]] = {}
        """Outputs being fetched, and the tasks that wait for them."""
        self._missing: dict[TaskId, int] = {}
        """How many inputs of a task are being fetched."""
        self._ready: list[int] = []
        """A heap of ranks."""
        self._running: set[TaskId] = set()
        self._executed: set[TaskId] = set()
        self._arrived: set[TaskId] = set()
        self._retries = dict(part.retries)
        self._pausing: set[TaskId] = set()
        """Tasks that wait for their next try."""
        self._idle_since = 0
        """Counts the times that the worker had nothing to do, to tell an old timer from a new."""
        self._waiting = False
        """The driver was told that there is nothing to do: by a timer or by Park."""
        self._parking = False
        """About to park, once what is in memory is saved."""
        self._log: deque[tuple[float, Event, list[Effect]]] = deque(maxlen=REMEMBERED)
        self._handlers: dict[type, Callable[[Any, list[Effect]], None]] = {
            Started: self._on_started,
            Arrived: self._on_arrived,
            Fetched: self._on_fetched,
            Executed: self._on_executed,
            Failed: self._on_failed,
            Saved: self._on_saved,
            TimerFired: self._on_timer,
            MailCame: self._on_mail_came,
        }
        self._prepare()

    def _prepare(self) -> None:
        part = self.part
        own = set(part.tasks)
        uses, takers, owes = self._uses, self._takers, self._owes
        for task, sources in zip(part.tasks, part.upstream, strict=True):
            self._inputs[task] = sources + part.constants.get(task, ())
            shared = task in part.shared
            lacks = 0
            for source in self._inputs[task]:
                uses[source] = uses.get(source, 0) + 1
                if source in own:
                    lacks += 1
                    takers.setdefault(source, []).append(task)
                    if shared:
                        self._joins.setdefault(source, []).append(task)
            if shared:
                owes[task] = lacks
                lacks += 1
            self._lacks[task] = lacks
            feeds = part.feeds.get(task, ())
            if feeds or task in part.sinks:
                uses[task] = uses.get(task, 0) + len(feeds) + (task in part.sinks)
            for target in feeds:
                owes[target] = owes.get(target, 0) + 1
                self._given.setdefault(target, []).append(task)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take note of what happened; the effects are to be carried out in order."""
        effects: list[Effect] = []
        self._log.append((now, event, effects))
        if self.finished:
            return effects
        self._handlers[type(event)](event, effects)
        if not self.finished:
            self._go_on(effects)
        return effects

    def story(self, task: TaskId) -> list[str]:
        """What happened to a task here, a line for each event and effect that names it."""
        return list(self._told(task))

    def _told(self, task: TaskId) -> Iterator[str]:
        for now, event, effects in self._log:
            for step in (event, *effects):
                if _names(step, task):
                    yield f"{now:.6f} {step}"

    def _violation(self, task: TaskId, what: str) -> ProtocolViolation:
        lines = "\n".join(self.story(task))
        return ProtocolViolation(f"worker {self.part.worker}, task {task!r}: {what}\n{lines}")

    def _on_started(self, event: Started, effects: list[Effect]) -> None:
        for task in event.executed:
            self._executed.add(task)
            self._saved.add(task)
            for source in self._inputs[task]:
                self._uses[source] -= 1
            for taker in self._takers.get(task, ()):
                self._lacks[taker] -= 1
            feeds = self.part.feeds.get(task, ())
            for target in (*feeds, *self._joins.get(task, ())):
                self._owes[target] -= 1
            if feeds or task in self.part.sinks:
                self._uses[task] -= len(feeds) + (task in self.part.sinks)
        for task in self.part.tasks:
            if not self._lacks[task] and task not in self._executed:
                self._gather(task, effects)

    def _on_arrived(self, event: Arrived, effects: list[Effect]) -> None:
        task = event.task
        if task not in self._lacks:
            raise self._violation(task, "arrived here, but belongs elsewhere")
        if task not in self.part.shared:
            raise self._violation(task, "arrived, but waits for nobody elsewhere")
        if task in self._arrived or task in self._executed:
            unneeded = tuple([output for output in event.held if not self._uses.get(output)])
            if unneeded:
                effects.append(Forget(unneeded))
            return
        self._arrived.add(task)
        self._parking = False
        self._held.update(event.held)
        self._satisfy(task, effects)

    def _satisfy(self, task: TaskId, effects: list[Effect]) -> None:
        self._lacks[task] -= 1
        if not self._lacks[task]:
            self._gather(task, effects)

    def _gather(self, task: TaskId, effects: list[Effect]) -> None:
        """Fetch what a task lacks of its inputs; it is ready when all are in memory."""
        if self._held.issuperset(self._inputs[task]):
            heappush(self._ready, self._rank[task])
            return
        missing = [source for source in self._inputs[task] if source not in self._held]
        self._missing[task] = len(missing)
        wanted = tuple([source for source in missing if source not in self._fetching])
        for source in missing:
            self._fetching.setdefault(source, []).append(task)
        if wanted:
            effects.append(Fetch(wanted))

    def _on_fetched(self, event: Fetched, effects: list[Effect]) -> None:
        for output in event.outputs:
            if output not in self._fetching:
                raise self._violation(output, "fetched, but nobody had asked for it")
            self._held.add(output)
            for task in self._fetching.pop(output):
                self._missing[task] -= 1
                if not self._missing[task]:
                    del self._missing[task]
                    heappush(self._ready, self._rank[task])

    def _on_executed(self, event: Executed, effects: list[Effect]) -> None:
        task = event.task
        if task not in self._running:
            raise self._violation(task, "executed, but not running")
        self._running.remove(task)
        self._executed.add(task)
        self._held.add(task)
        forgotten: list[TaskId] = []
        for source in self._inputs[task]:
            self._used(source, 1, forgotten)
        for taker in self._takers.get(task, ()):
            self._satisfy(taker, effects)
        if task in self.part.feeds or task in self.part.sinks:
            if event.nbytes > INLINE_NBYTES:
                self._saving.add(task)
                self._withheld.add(task)
                effects.append(Save(task))
            else:
                self._release(task, effects, forgotten)
        elif task not in self._uses:
            self._held.discard(task)
            forgotten.append(task)
        for target in self._joins.get(task, ()):
            self._pay(target, effects, forgotten)
        if forgotten:
            effects.append(Forget(tuple(forgotten)))

    def _on_saved(self, event: Saved, effects: list[Effect]) -> None:
        task = event.task
        if task not in self._saving:
            raise self._violation(task, "saved, but nobody had asked for it")
        self._saving.remove(task)
        forgotten: list[TaskId] = []
        if task in self._withheld:
            self._withheld.remove(task)
            self._saved.add(task)
            self._release(task, effects, forgotten)
        else:
            self._spare.add(task)
            self._used(task, 1, forgotten)
        if forgotten:
            effects.append(Forget(tuple(forgotten)))

    def _release(self, task: TaskId, effects: list[Effect], forgotten: list[TaskId]) -> None:
        """Others may have the output now."""
        saved = task in self._saved
        feeds = self.part.feeds.get(task, ())
        if saved and feeds:
            self._used(task, len(feeds), forgotten)
        if task in self.part.sinks:
            effects.append(HandIn(task, saved))
            self._used(task, 1, forgotten)
        for target in feeds:
            self._pay(target, effects, forgotten)

    def _pay(self, target: TaskId, effects: list[Effect], forgotten: list[TaskId]) -> None:
        """One more output for a shared task is released: after the last one, mark it."""
        self._owes[target] -= 1
        if self._owes[target]:
            return
        part = self.part
        given = self._given.get(target, ())
        inline = tuple([output for output in given if output not in self._saved])
        saved = tuple([output for output in given if output in self._saved])
        effects.append(Mark(target, part.owners[target], part.shared[target], inline, saved))
        for output in inline:
            self._used(output, 1, forgotten)

    def _used(self, output: TaskId, times: int, forgotten: list[TaskId]) -> None:
        self._uses[output] -= times
        if not self._uses[output]:
            self._held.discard(output)
            forgotten.append(output)

    def _on_failed(self, event: Failed, effects: list[Effect]) -> None:
        task = event.task
        if task not in self._running:
            raise self._violation(task, "failed, but not running")
        self._running.remove(task)
        left = self._retries.get(task, 0)
        if not left:
            self.finished = True
            effects.append(Abort(task))
            return
        self._retries[task] = left - 1
        self._pausing.add(task)
        tried = self.part.retries[task] - left
        effects.append(SetTimer(f"retry {task}", FIRST_RETRY * 2**tried))

    def _on_timer(self, event: TimerFired, effects: list[Effect]) -> None:
        kind, _, name = event.timer.partition(" ")
        task = TaskId(name)
        if kind == "retry" and task in self._pausing:
            self._pausing.remove(task)
            heappush(self._ready, self._rank[task])
        elif kind == "linger" and name == str(self._idle_since) and self._idle:
            self._waiting = False
            self._parking = True
            there = self._saved | self._spare
            for output in self.part.tasks:
                if output in self._held and output not in there:
                    self._saving.add(output)
                    self._uses[output] += 1
                    effects.append(Save(output))

    def _on_mail_came(self, event: MailCame, effects: list[Effect]) -> None:
        self._waiting = False

    @property
    def _idle(self) -> bool:
        return not (self._running or self._ready or self._fetching or self._saving or self._pausing)

    def _go_on(self, effects: list[Effect]) -> None:
        """Fill free slots; then finish, park or linger if nothing is left to do."""
        ready, running = self._ready, self._running
        while ready and len(running) < self._slots:
            task = self._order[heappop(ready)]
            running.add(task)
            effects.append(Execute(task))
        if running or not self._idle:
            self._waiting = False
        elif len(self._executed) == len(self.part.tasks):
            self.finished = True
            effects.append(Finish())
        elif not self._waiting:
            self._waiting = True
            self._wait(effects)

    def _wait(self, effects: list[Effect]) -> None:
        if self._parking:
            self._parking = False
            effects.append(Park(tuple([t for t in self.part.tasks if t in self._executed])))
        elif self.part.linger is not None:
            self._idle_since += 1
            effects.append(SetTimer(f"linger {self._idle_since}", self.part.linger))


def _ordered(part: Part) -> list[TaskId]:
    if part.ranks:
        ranks = dict(zip(part.tasks, part.ranks, strict=True))
        return sorted(part.tasks, key=ranks.__getitem__)
    return sorted(part.tasks, key=lambda task: task not in part.feeds)


def _names(step: Event | Effect, task: TaskId) -> bool:
    for name in ("task", "outputs", "executed", "held", "inline", "saved"):
        value = getattr(step, name, None)
        if value == task or (isinstance(value, tuple) and task in value):
            return True
    return False
