"""`WorkerMachine`: what one worker does next. No I/O, no clock, no randomness, no logging.

1. Everything that decides what a worker does next is here. Two drivers feed it: the runtime with
   real time, the simulator with virtual time.
2. Each Fetch, Execute and Save is answered by exactly one event; a repeated Arrived or Announced is
   a no-op.
3. A task waits until its upstream tasks here are executed and, if it has others elsewhere, until
   it has arrived; then its missing inputs are fetched; then it waits for a free slot.
4. An output is released when it is executed and, if it is too large to travel with a mark, saved.
   Once this worker's last output for a task elsewhere is released, that task is marked, once.
5. Ready tasks go by the plan's ranks. If it has none, tasks that others wait for go first, then in
   the workflow's order, which finishes what was begun and frees memory early.
6. A saved output for a preloaded task is announced to the task's owner, who fetches it beside its
   executions.
7. A task that begins for the first time warms up sandboxes for others (see `prewarming`).
8. A free slot with nothing ready may run a copy of another worker's task (see `copies`). When this
   worker thereby holds all that the other owes to an own task, it marks it in the other's name. A
   copy's failure is ignored, and whichever of two outputs is the later is dropped.
9. A worker that was lost begins again with what the store has of it. It repeats what somebody still
   wants and nobody has (see `duties`), marks what was saved and not marked, and hands in what
   wasn't handed in.
10. When its time is nearly over, a worker begins no more tasks, saves what is still needed once the
   running ones are done, and is started anew.
11. An output that can't be pickled keeps its worker from parking for as long as it is needed. A
   worker that has to leave all the same ends the run.
12. An event that doesn't fit the state raises ProtocolViolation with the task's story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from shoal.errors import ProtocolViolation
from shoal.execution.copies import Copies
from shoal.execution.duties import Duties, repeated, still_wanted
from shoal.execution.effects import (
    Abort,
    Announce,
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
    Announced,
    Arrived,
    Event,
    Executed,
    Failed,
    Fetched,
    MailCame,
    Recovered,
    Saved,
    Started,
    Stopped,
    TimerFired,
    Unsaved,
)
from shoal.execution.plan import Part
from shoal.execution.prewarming import TIMER as PREWARM
from shoal.execution.prewarming import Prewarming
from shoal.execution.retries import TIMER as RETRY
from shoal.execution.retries import Retries
from shoal.execution.story import new_log, story_of, violation
from shoal.types import TaskId

INLINE_NBYTES = 8 * 1024
"""Outputs up to this size travel inside the messages that need them."""

IN_TIME = 0.7
"""Of the time that a function may take, after which a worker begins nothing more."""


class WorkerMachine:
    """The state of one worker."""

    def __init__(self, part: Part, duties: Duties | None = None) -> None:
        """Begin with nothing done; `duties` are those of the part, if they are known already."""
        self.part = part
        self.finished = False
        """Nothing more will be asked of the driver."""
        self._slots = part.resources.slots
        self._take_on(duties or Duties.of(part))
        self._held: set[TaskId] = set()
        """Outputs and constants in memory."""
        self._saved: set[TaskId] = set()
        """Outputs that others are told to fetch."""
        self._spare: set[TaskId] = set()
        """Outputs that were saved only so that a start to come finds them."""
        self._unsaved: set[TaskId] = set()
        """Outputs that can't be pickled."""
        self._stored: set[TaskId] = set()
        """Outputs of others that were fetched."""
        self._saving: set[TaskId] = set()
        self._withheld: set[TaskId] = set()
        """Outputs that are released once they are saved."""
        self._fetching: dict[TaskId, list[TaskId]] = {}
        """Outputs being fetched, and the tasks that wait for them; none if it was announced."""
        self._missing: dict[TaskId, int] = {}
        """How many inputs of a task are being fetched."""
        self._ready: list[int] = []
        """A heap of ranks."""
        self._running: set[TaskId] = set()
        self._executed: set[TaskId] = set()
        self._arrived: set[TaskId] = set()
        self._retries = Retries(part.retries)
        self._prewarming = Prewarming(part)
        self._copies = Copies(part)
        self._idle_since = 0
        """Counts the times that the worker had nothing to do, to tell an old timer from a new."""
        self._waiting = False
        """The driver was told that there is nothing to do: by a timer or by Park."""
        self._parking = False
        """About to park, once what is in memory is saved."""
        self._late = False
        """Its time is nearly over."""
        self._leaving = False
        """It has asked to leave, to begin anew."""
        self._worked = False
        """This start has executed a task: however late, it doesn't leave before."""
        self._log = new_log()

    def _take_on(self, duties: Duties) -> None:
        self._order, self._rank, self._inputs = duties.order, duties.rank, duties.inputs
        self._takers, self._joins, self._given = duties.takers, duties.joins, duties.given
        self._lacks = dict(duties.lacks)
        """Own upstream tasks not yet executed, plus one if the task hasn't arrived."""
        self._uses = dict(duties.uses)
        """Own tasks, copies, marks, hand-ins and saves that still need an output in memory."""
        self._owes = dict(duties.owes)
        """Own outputs that a shared task still waits for."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take note of what happened; the effects are to be carried out in order."""
        effects: list[Effect] = []
        self._log.append((now, event, effects))
        if self.finished:
            return effects
        _HANDLERS[type(event)](self, event, effects)
        if not self.finished:
            self._go_on(effects, now)
        return effects

    def story(self, task: TaskId) -> list[str]:
        """What happened to a task here, a line for each event and effect that names it."""
        return story_of(task, self._log)

    def _violation(self, task: TaskId, what: str) -> ProtocolViolation:
        return violation(self.part.worker, task, what, self._log)

    def _on_started(self, event: Started, effects: list[Effect]) -> None:
        if self.part.limit is not None:
            effects.append(SetTimer("limit", self.part.limit * IN_TIME))
        if event.recovered is not None:
            self._recover(event.recovered, effects)
        for task in event.executed if event.recovered is None else ():
            if task in self.part.copies:
                self._copies.vouched[task] = None
                self._spare.add(task)
                self._drop_copies((task,), effects)
            else:
                self._saved.add(task)
                self._skip(task, effects)
        for task in self.part.tasks:
            if not self._lacks[task] and task not in self._executed:
                self._gather(task, effects)

    def _skip(self, task: TaskId, effects: list[Effect]) -> None:
        """A task was executed by an earlier start, and released."""
        self._executed.add(task)
        self._drop_copies(self._copies.taken.get(task, ()), effects)
        for source in self._inputs[task]:
            self._uses[source] -= 1
        for taker in self._takers.get(task, ()):
            self._lacks[taker] -= 1
        feeds = self.part.feeds.get(task, ())
        for target in (*feeds, *self._joins.get(task, ())):
            self._owes[target] -= 1
        if feeds or task in self.part.sinks:
            self._uses[task] -= len(feeds) + (task in self.part.sinks)

    def _recover(self, found: Recovered, effects: list[Effect]) -> None:
        """Skip what nobody wants or the store has, and make up for what nobody was told of."""
        self.part = part = still_wanted(self.part, found)
        self._take_on(Duties.of(part))
        again = repeated(part, self._takers, found)
        for task in part.tasks:
            if task not in again:
                if task in found.saved:
                    self._saved.add(task)
                self._skip(task, effects)
        self._takers = {
            task: [taker for taker in takers if taker in again]
            for task, takers in self._takers.items()
        }
        for task in part.tasks:
            if task in part.sinks and task not in again:
                effects.append(HandIn(task, task in self._saved))
        for target, owed in self._owes.items():
            mine = part.worker in part.shared[target]
            if mine and not owed and target not in found.marked | self._executed:
                self._mark(target, effects)
        for output in set(found.held) - found.saved - again:
            owing = [target for target in part.feeds.get(output, ()) if self._owes[target]]
            self._uses[output] = self._uses.get(output, 0) + len(owing)
        needed = {output for output in found.held if self._uses.get(output)}
        self._held |= needed - again
        unneeded = tuple([output for output in found.held if output not in needed])
        if unneeded:
            effects.append(Forget(unneeded))

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
            self._held.update([output for output in event.held if output not in unneeded])
            return
        self._arrived.add(task)
        self._parking = False
        self._held.update(event.held)
        self._drop_copies(self._copies.taken.get(task, ()), effects)
        self._satisfy(task, effects)

    def _on_announced(self, event: Announced, effects: list[Effect]) -> None:
        here = self._held | self._fetching.keys()
        wanted = [o for o in event.outputs if o not in here and self._awaited(o)]
        if wanted:
            self._parking = False
            self._drop_copies(wanted, effects)
            self._fetching.update({output: [] for output in wanted})
            effects.append(Fetch(tuple(wanted)))

    def _awaited(self, output: TaskId) -> bool:
        """Whether an own task, and not only a copy, will take an output of another worker."""
        copies = [*self._copies.open, *self._copies.begun]
        return self._uses.get(output, 0) > sum([output in self._inputs[task] for task in copies])

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
        unneeded: list[TaskId] = []
        for output in event.outputs:
            if output not in self._fetching:
                raise self._violation(output, "fetched, but nobody had asked for it")
            if self._uses[output]:
                self._hold(output)
                self._stored.add(output)
            else:
                unneeded.append(output)
            del self._fetching[output]
        if unneeded:
            effects.append(Forget(tuple(unneeded)))

    def _hold(self, output: TaskId) -> None:
        """An output is in memory, whether fetched or copied: go on with those that wait for it."""
        self._held.add(output)
        for task in self._fetching.get(output, ()):
            self._missing[task] -= 1
            if not self._missing[task]:
                del self._missing[task]
                heappush(self._ready, self._rank[task])

    def _on_executed(self, event: Executed, effects: list[Effect]) -> None:
        task = event.task
        if task not in self._running:
            raise self._violation(task, "executed, but not running")
        self._running.remove(task)
        if task in self._copies.begun:
            self._on_copied(task, event.nbytes, effects)
            return
        self._executed.add(task)
        self._worked = True
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

    def _on_copied(self, task: TaskId, nbytes: int, effects: list[Effect]) -> None:
        """A copy returned; its output may have come meanwhile, and even have been used up."""
        forgotten = self._end_copy(task)
        if self._uses[task]:
            self._hold(task)
            if task in self._fetching:
                self._fetching[task] = []
            copy = self.part.copies[task]
            if nbytes > INLINE_NBYTES and not self._arrived.issuperset(copy.targets):
                self._saving.add(task)
                self._spare.add(task)  # by the time that the mark behind it is set
                self._uses[task] += 1
                effects.append(Save(task))
            there = self._spare | self._stored
            effects += self._copies.marks(self.part, copy, self._held, self._arrived, there)
        else:
            forgotten.append(task)
        if forgotten:
            effects.append(Forget(tuple(forgotten)))

    def _end_copy(self, task: TaskId) -> list[TaskId]:
        """A begun copy is over, well or not; what was in memory only for it is forgotten."""
        self._copies.begun.remove(task)
        forgotten: list[TaskId] = []
        for source in self._inputs[task]:
            self._used(source, 1, forgotten)
        return forgotten

    def _drop_copies(self, tasks: Iterable[TaskId], effects: list[Effect]) -> None:
        """Don't begin copies whose outputs come, nor go on with those that don't run yet."""
        copies = self._copies
        forgotten: list[TaskId] = []
        for task in tasks:
            if task in copies.open:
                copies.close(task)
            elif task in copies.begun and task not in self._running:
                copies.begun.remove(task)
                self._take_out(task)
            else:
                continue
            for source in self._inputs[task]:
                self._uses[source] -= 1
                if not self._uses[source] and source in self._held:
                    self._held.remove(source)
                    forgotten.append(source)
        if forgotten:
            effects.append(Forget(tuple(forgotten)))

    def _take_out(self, task: TaskId) -> None:
        """A copy neither gathers inputs nor waits for a slot any more."""
        if self._missing.pop(task, None):
            for waiting in self._fetching.values():
                if task in waiting:
                    waiting.remove(task)
        else:
            self._ready.remove(self._rank[task])
            heapify(self._ready)

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

    def _on_unsaved(self, event: Unsaved, effects: list[Effect]) -> None:
        self._saving.remove(event.task)
        self._unsaved.add(event.task)
        self._parking = False
        forgotten: list[TaskId] = []
        self._used(event.task, 1, forgotten)
        if forgotten:
            effects.append(Forget(tuple(forgotten)))
        elif self._late:
            self.finished = True
            effects.append(Abort(event.task))

    def _release(self, task: TaskId, effects: list[Effect], forgotten: list[TaskId]) -> None:
        """Others may have the output now."""
        saved = task in self._saved
        feeds = self.part.feeds.get(task, ())
        if saved and feeds:
            self._used(task, len(feeds), forgotten)
            if self.part.preloaded:
                self._announce(task, effects)
        if task in self.part.sinks:
            effects.append(HandIn(task, saved))
            self._used(task, 1, forgotten)
        for target in feeds:
            self._pay(target, effects, forgotten)

    def _announce(self, output: TaskId, effects: list[Effect]) -> None:
        """Tell each owner of a preloaded task, unless it is told at once that the task is ready."""
        part = self.part
        owners = [
            part.owners[target]
            for target in part.feeds[output]
            if target in part.preloaded
            and (self._owes[target] > 1 or part.shared[target] != (part.worker,))
        ]
        effects.extend([Announce(output, owner) for owner in dict.fromkeys(owners)])

    def _pay(self, target: TaskId, effects: list[Effect], forgotten: list[TaskId]) -> None:
        """One more output for a shared task is released: after the last one, mark it."""
        self._owes[target] -= 1
        if not self._owes[target]:
            for output in self._mark(target, effects):
                self._used(output, 1, forgotten)

    def _mark(self, target: TaskId, effects: list[Effect]) -> tuple[TaskId, ...]:
        """Mark a task; the outputs that travel along."""
        part, given = self.part, self._given.get(target, ())
        inline = tuple([output for output in given if output not in self._saved])
        saved = tuple([output for output in given if output in self._saved])
        effects.append(Mark(target, part.owners[target], part.shared[target], inline, saved))
        return inline

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
        if task in self._copies.begun:
            forgotten = self._end_copy(task)
            if forgotten:
                effects.append(Forget(tuple(forgotten)))
            return
        pause = self._retries.failed(task, final=event.final)
        if pause is not None:
            effects.append(pause)
            return
        self.finished = True
        self._save_all(self.part.tasks, effects)
        effects.append(Abort(task))

    def _on_timer(self, event: TimerFired, effects: list[Effect]) -> None:
        kind, _, name = event.timer.partition(" ")
        task = TaskId(name)
        if kind == RETRY:
            if self._retries.resumed(task):
                heappush(self._ready, self._rank[task])
        elif kind == PREWARM:
            self._prewarming.fire(name, effects)
        elif kind == "copy":
            self._copies.grow_late(task)
        elif kind == "limit":
            self._late = True
            self._drop_copies(tuple(self._copies.open), effects)
        elif kind == "linger" and name == str(self._idle_since) and self._idle:
            self._waiting = False
            if not self._copies.scheduled:
                self._prepare_to_park(effects)

    def _prepare_to_park(self, effects: list[Effect]) -> None:
        self._parking = True
        self._drop_copies(tuple(self._copies.open), effects)
        self._save_all((*self.part.tasks, *self._copies.vouched), effects)

    def _save_all(self, outputs: Iterable[TaskId], effects: list[Effect]) -> None:
        """Save those outputs that are in memory only."""
        there = self._saved | self._spare | self._saving | self._unsaved
        for output in outputs:
            if output in self._held and output not in there:
                self._saving.add(output)
                self._uses[output] += 1
                effects.append(Save(output))

    def _on_stopped(self, event: Stopped, effects: list[Effect]) -> None:
        self.finished = True
        self._save_all(self.part.tasks, effects)
        effects.append(Finish())

    def _on_mail_came(self, event: MailCame, effects: list[Effect]) -> None:
        self._waiting = False

    @property
    def _idle(self) -> bool:
        moving = self._fetching or self._saving
        return not (self._running or self._ready or moving or self._retries.pausing)

    def _go_on(self, effects: list[Effect], now: float) -> None:
        """Fill free slots; then finish, park or linger if nothing is left to do."""
        ready, running = self._ready, self._running
        if self._late and self._worked and len(self._executed) < len(self.part.tasks):
            self._hand_over(effects)
            return
        while ready and len(running) < self._slots:
            task = self._order[heappop(ready)]
            running.add(task)
            effects.append(Execute(task))
            self._prewarming.begin(task, effects)
        if self._copies.open and not ready and self._begin_copies(effects, now):
            self._go_on(effects, now)
        elif running or not self._idle:
            self._waiting = False
        elif len(self._executed) == len(self.part.tasks):
            self.finished = True
            self._prewarming.leave(effects)
            effects.append(Finish())
        elif not self._waiting and not self._copies.scheduled:
            self._waiting = True
            self._wait(effects)

    def _hand_over(self, effects: list[Effect]) -> None:
        """Once nothing runs or moves, save what is still needed, then leave to begin anew."""
        if self._running or self._fetching or self._saving or self._leaving:
            return
        self._save_all((*self.part.tasks, *self._copies.vouched), effects)
        if not self._saving:
            self._leaving = True
            effects.append(Park(self._known_done, again=True))

    @property
    def _known_done(self) -> tuple[TaskId, ...]:
        done = self._executed | self._copies.vouched.keys()
        return tuple([task for task in (*self.part.tasks, *self.part.copies) if task in done])

    def _begin_copies(self, effects: list[Effect], now: float) -> bool:
        """Begin copies in free slots, or see to it that they are in time; whether one is ready."""
        copies = self._copies
        for task, copy in list(copies.open.items()):
            if len(self._running | copies.begun) >= self._slots:
                break
            if not self._held.issuperset(copy.upstream):
                continue
            wait = copies.wait(task, now)
            if not wait:
                copies.begin(task)
                self._gather(task, effects)
            elif task not in copies.scheduled:
                copies.scheduled.add(task)
                effects.append(SetTimer(f"copy {task}", wait))
        return bool(self._ready)

    def _wait(self, effects: list[Effect]) -> None:
        if self._parking:
            self._parking = False
            self._prewarming.leave(effects)
            effects.append(Park(self._known_done))
        elif self.part.linger is not None and self._held.isdisjoint(self._unsaved):
            self._idle_since += 1
            effects.append(SetTimer(f"linger {self._idle_since}", self.part.linger))


_HANDLERS: dict[type, Callable[[WorkerMachine, Any, list[Effect]], None]] = {
    Started: WorkerMachine._on_started,
    Arrived: WorkerMachine._on_arrived,
    Announced: WorkerMachine._on_announced,
    Fetched: WorkerMachine._on_fetched,
    Executed: WorkerMachine._on_executed,
    Failed: WorkerMachine._on_failed,
    Saved: WorkerMachine._on_saved,
    Unsaved: WorkerMachine._on_unsaved,
    TimerFired: WorkerMachine._on_timer,
    MailCame: WorkerMachine._on_mail_came,
    Stopped: WorkerMachine._on_stopped,
}
"""Not of bound methods: a machine that holds none is freed as soon as nobody holds it."""
