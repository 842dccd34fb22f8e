"""`WorkerMachine`: decides what one worker does next. No I/O, no clock, no randomness, no logging.

1. Every decision about what a worker does next is made here. Two drivers feed the machine: the
   runtime with real time, the simulator with virtual time.
2. Each Fetch, Execute and Save is answered by exactly one event. A repeated Arrived or Announced
   does nothing.
3. A task waits until its upstream tasks here are executed and, if it has others elsewhere, until it
   has arrived. Then its missing inputs are fetched, and then it waits for a free slot.
4. An output is released once it is executed and, if it is too large to travel with a mark, saved.
   When this worker's last output for a task elsewhere is released, the task is marked, once.
5. Ready tasks run in the order of the plan's ranks. Without ranks, tasks that others wait for run
   first, then the rest in the workflow's order, which finishes what was begun and frees memory
   early.
6. A saved output for a preloaded task is announced to the task's owner, which fetches it while it
   executes other tasks.
7. A task that begins for the first time warms up sandboxes for others (see `prewarming`).
8. A free slot with nothing ready may run a copy of another worker's task (see `copies`). If this
   worker then holds everything that the other owes to a task here, it marks that task in the other
   worker's name. A failed copy is ignored, and the later of two equal outputs is dropped.
9. A worker that was lost starts again with what the store has of it. It repeats what is still
   needed and held nowhere (see `obligations`), marks what was saved but not marked, and hands in
   what was not handed in.
10. When its time limit is near, a worker begins no more tasks. Once the running ones have ended, it
   saves what is still needed and is started again.
11. A worker doesn't park while it needs an output that can't be pickled. If it has to leave all the
   same, it ends the run.
12. An event that doesn't fit the state raises ProtocolViolation with the task's story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, assert_never

from shoal.execution.base import Machine
from shoal.execution.copies import Copies
from shoal.execution.effects import (
    Abort,
    Announce,
    Effect,
    Execute,
    Finish,
    HandIn,
    Mark,
    Park,
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
from shoal.execution.memory import INLINE_NBYTES, Memory
from shoal.execution.obligations import Obligations, repeated, still_wanted
from shoal.execution.plan import PlannedPart
from shoal.execution.prewarming import Prewarming
from shoal.execution.timers import (
    CopyTimer,
    HoldTimer,
    LimitTimer,
    ParkTimer,
    RetryTimer,
    WarmUpTimer,
)
from shoal.types import TaskId


class Rest(Enum):
    """What a worker does when it has no task to run."""

    NONE = "it has something to do, or will be told what to do with its idle time"
    WAITING = "the driver knows that it is idle: a timer is set, or it has asked to park"
    PARKING = "it saves what it holds, and then parks"
    LEAVING = "it has asked to leave and to be started again"


class WorkerMachine(Machine):
    """The state of one start of a worker that has tasks of its own."""

    part: PlannedPart

    def __init__(self, part: PlannedPart, obligations: Obligations | None = None) -> None:
        """Start with nothing done; `obligations` are those of the part, if known already."""
        obligations = obligations or Obligations.of(part)
        super().__init__(part, Memory(obligations.uses))
        self._obligations = obligations
        """What the part asks for, before anything is done; never changed, only replaced."""
        self._lacks = dict(obligations.lacks)
        """What each own task still waits for: own upstream tasks that aren't executed, plus one if
        it is shared and hasn't arrived. Never negative; 0 for tasks that gather, are ready or run,
        and for executed ones unless an earlier start executed them."""
        self._owes = dict(obligations.owes)
        """How many outputs each shared task still awaits from this worker. It is marked when that
        becomes 0, so once."""
        self._executed: set[TaskId] = set()
        """Own tasks that this start or an earlier one has executed."""
        self._arrived: set[TaskId] = set()
        """Shared own tasks that all other workers have done their share for."""
        self._ready: list[int] = []
        """A heap of the ranks of tasks and copies that wait for a slot; all their inputs are in
        memory. Empty between events, unless all slots are taken or the time limit is near."""
        self._copies = Copies(part)
        """The tasks of other workers that may run here."""
        self._prewarming = Prewarming(part)
        """The sandboxes that are still to be warmed up."""
        self._rest = Rest.NONE
        """Anything else than NONE only while nothing runs, is ready or pauses."""
        self._idle_spell = 0
        """The number of idle spells so far, which tells the timer of an earlier one."""
        self._late = False
        """The time limit is near."""
        self._worked = False
        """This start has executed a task. It doesn't leave before, however late it is, or nothing
        would ever get done."""

    def _react(self, event: Event, effects: list[Effect], now: float) -> None:
        HANDLERS[type(event)](self, event, effects)
        self._memory.forget(effects)
        if not self.finished:
            self._go_on(effects, now)

    def _on_started(self, event: Started, effects: list[Effect]) -> None:
        self._set_limit(effects)
        if event.recovered is not None:
            self._recover(event.recovered, effects)
        for task in event.executed if event.recovered is None else ():
            if task in self.part.copies:
                self._copies.vouched[task] = None
                self._copies.safe.add(task)
                self._drop_copies((task,))
            else:
                self._skip(task)
        for task in self.part.tasks:
            if not self._lacks[task] and task not in self._executed:
                self._gather(task, effects)

    def _skip(self, task: TaskId) -> None:
        """An earlier start has executed a task and released its output."""
        obligations, memory, feeds = self._obligations, self._memory, self.part.feeds.get(task, ())
        self._executed.add(task)
        self._drop_copies(self._copies.taken.get(task, ()))
        for source in obligations.inputs[task]:
            memory.used(source)
        for taker in obligations.takers.get(task, ()):
            self._lacks[taker] -= 1
        for target in (*feeds, *obligations.joins.get(task, ())):
            self._owes[target] -= 1
        outside = len(feeds) + (task in self.part.sinks)
        if outside:
            memory.used(task, outside)

    def _recover(self, found: Recovered, effects: list[Effect]) -> None:
        """Skip what isn't needed or the store has, and catch up on messages that weren't sent."""
        self.part = part = still_wanted(self.part, found)
        self._obligations = obligations = Obligations.of(part)
        self._lacks, self._owes = dict(obligations.lacks), dict(obligations.owes)
        self._memory = memory = Memory(obligations.uses)
        again = repeated(part, obligations.takers, found)
        for task in part.tasks:
            if task not in again:
                self._skip(task)
        self._obligations = obligations.without_takers(self._executed)
        for output in found.held:
            if output not in found.saved:
                owing = [target for target in part.feeds.get(output, ()) if self._owes[target]]
                for _ in owing:
                    memory.use(output)
        memory.receive(found.held, found.saved)
        for task in part.tasks:
            if task in part.sinks and task not in again:
                effects.append(HandIn(task, saved=not memory.small(task)))
        for target, owed in self._owes.items():
            mine = part.worker in part.shared[target]
            if mine and not owed and target not in found.marked | self._executed:
                self._mark(target, effects)

    def _on_arrived(self, event: Arrived, effects: list[Effect]) -> None:
        task = event.task
        if task not in self._lacks:
            raise self._violation(task, "arrived here, but another worker runs it")
        if task not in self.part.shared:
            raise self._violation(task, "arrived, but waits for no other worker")
        self._memory.receive(event.held, self._copies.safe)
        if task not in self._arrived and task not in self._executed:
            self._arrived.add(task)
            self._end_rest(Rest.PARKING)
            self._drop_copies(self._copies.taken.get(task, ()))
            self._satisfy(task, effects)

    def _on_announced(self, event: Announced, effects: list[Effect]) -> None:
        here = self._memory.held | self._memory.fetching.keys()
        wanted = [o for o in event.outputs if o not in here and self._awaited(o)]
        if wanted:
            self._end_rest(Rest.PARKING)
            self._drop_copies(wanted)
            self._memory.fetch(wanted, effects)

    def _awaited(self, output: TaskId) -> bool:
        """Whether an own task, and not only a copy, will take an output of another worker."""
        inputs = self._obligations.inputs
        copies = [*self._copies.open, *self._copies.begun]
        return self._memory.uses.get(output, 0) > sum([output in inputs[task] for task in copies])

    def _satisfy(self, task: TaskId, effects: list[Effect]) -> None:
        self._lacks[task] -= 1
        if not self._lacks[task]:
            self._gather(task, effects)

    def _gather(self, task: TaskId, effects: list[Effect]) -> None:
        """Fetch the inputs that a task lacks; it is ready when all are in memory."""
        obligations = self._obligations
        if self._memory.gather(task, obligations.inputs[task], effects):
            heappush(self._ready, obligations.rank[task])

    def _make_ready(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            heappush(self._ready, self._obligations.rank[task])

    def _on_fetched(self, event: Fetched, effects: list[Effect]) -> None:
        for output in event.outputs:
            if output not in self._memory.fetching:
                raise self._violation(output, "fetched, but not asked for")
            self._make_ready(self._memory.fetched(output))

    def _on_executed(self, event: Executed, effects: list[Effect]) -> None:
        task = event.task
        self._stopped_running(task, "executed")
        if task in self._copies.begun:
            self._on_copied(task, event.nbytes, effects)
            return
        self._executed.add(task)
        self._worked = True
        obligations, memory = self._obligations, self._memory
        for source in obligations.inputs[task]:
            memory.used(source)
        memory.add(task, event.nbytes)
        for taker in obligations.takers.get(task, ()):
            self._satisfy(taker, effects)
        if task in self.part.feeds or task in self.part.sinks:
            if event.nbytes > INLINE_NBYTES:
                memory.save(task, task, effects)
            else:
                self._release(task, effects)
        for target in obligations.joins.get(task, ()):
            self._pay(target, effects)

    def _on_copied(self, task: TaskId, nbytes: int, effects: list[Effect]) -> None:
        """A copy returned. Its output may have come in the meantime, and even have been used up."""
        memory, copies = self._memory, self._copies
        self._end_copy(task)
        self._make_ready(memory.made(task, nbytes))
        if task not in memory.uses:
            return
        copy = self.part.copies[task]
        if nbytes > INLINE_NBYTES and not self._arrived.issuperset(copy.targets):
            memory.save(task, None, effects)
            memory.saved.add(task)  # it is, before the mark that follows is set
        effects += copies.marks(self.part, copy, memory, self._arrived)

    def _end_copy(self, task: TaskId) -> None:
        """A copy has returned or failed."""
        self._copies.begun.remove(task)
        for source in self._obligations.inputs[task]:
            self._memory.used(source)

    def _drop_copies(self, tasks: Iterable[TaskId]) -> None:
        """Don't begin copies whose outputs come, and drop those that don't run yet."""
        copies = self._copies
        for task in tasks:
            if task in copies.open:
                copies.close(task)
            elif task in copies.begun and task not in self._running:
                copies.begun.remove(task)
                if not self._memory.stop_gathering(task):
                    self._ready.remove(self._obligations.rank[task])
                    heapify(self._ready)
            else:
                continue
            for source in self._obligations.inputs[task]:
                self._memory.used(source)

    def _on_saved(self, event: Saved, effects: list[Effect]) -> None:
        if event.task not in self._memory.saving:
            raise self._violation(event.task, "saved, but not asked for")
        for output in self._memory.finish_saving(event.task):
            self._release(output, effects)

    def _on_unsaved(self, event: Unsaved, effects: list[Effect]) -> None:
        self._memory.give_up_saving(event.task)
        self._end_rest(Rest.PARKING)
        if self._late and event.task in self._memory.uses:
            self.finished = True
            effects.append(Abort(event.task))

    def _release(self, task: TaskId, effects: list[Effect]) -> None:
        """Others may have the output now: it is small, or it has been saved."""
        saved = not self._memory.small(task)
        feeds = self.part.feeds.get(task, ())
        if saved and feeds:
            self._memory.used(task, len(feeds))
            if self.part.preloaded:
                self._announce(task, effects)
        if task in self.part.sinks:
            effects.append(HandIn(task, saved))
            self._memory.used(task)
        for target in feeds:
            self._pay(target, effects)

    def _announce(self, output: TaskId, effects: list[Effect]) -> None:
        """Announce an output to owners of preloaded tasks, unless the next mark says it all."""
        part = self.part
        owners = [
            part.owners[target]
            for target in part.feeds[output]
            if target in part.preloaded
            and (self._owes[target] > 1 or part.shared[target] != (part.worker,))
        ]
        effects.extend([Announce(output, owner) for owner in dict.fromkeys(owners)])

    def _pay(self, target: TaskId, effects: list[Effect]) -> None:
        """Release one more output for a shared task; mark the task after the last one."""
        self._owes[target] -= 1
        if not self._owes[target]:
            for output in self._mark(target, effects):
                self._memory.used(output)

    def _mark(self, target: TaskId, effects: list[Effect]) -> tuple[TaskId, ...]:
        """Mark a task; returns the outputs that travel with the mark."""
        part, small = self.part, self._memory.small
        given = self._obligations.given.get(target, ())
        inline = tuple([output for output in given if small(output)])
        saved = tuple([output for output in given if not small(output)])
        effects.append(Mark(target, part.owners[target], part.shared[target], inline, saved))
        return inline

    def _on_failed(self, event: Failed, effects: list[Effect]) -> None:
        self._stopped_running(event.task, "failed")
        if event.task in self._copies.begun:
            self._end_copy(event.task)
        else:
            self._retry_or_abort(event, effects)

    def _on_timer(self, event: TimerFired, effects: list[Effect]) -> None:
        match event.timer:
            case RetryTimer(task):
                if self._retries.resumed(task):
                    self._make_ready((task,))
            case WarmUpTimer(number):
                self._prewarming.fire(number, effects)
            case CopyTimer(task):
                self._copies.grow_late(task)
            case LimitTimer():
                self._late = True
                self._drop_copies(tuple(self._copies.open))
            case ParkTimer(spell):
                if spell == self._idle_spell and self._idle and self._rest is Rest.WAITING:
                    self._prepare_to_park(effects)
            case HoldTimer(output):
                raise self._violation(output, "its timer fired, but only flexible workers hold it")
            case _:
                assert_never(event.timer)

    def _prepare_to_park(self, effects: list[Effect]) -> None:
        self._rest = Rest.NONE
        if not self._copies.scheduled:
            self._rest = Rest.PARKING
            self._drop_copies(tuple(self._copies.open))
            self._save_progress(effects)

    def _save_progress(self, effects: list[Effect]) -> None:
        """Save what the next start may need and no other worker has."""
        self._memory.save_all((*self.part.tasks, *self._copies.vouched), effects)

    def _end_rest(self, rest: Rest) -> None:
        if self._rest is rest:
            self._rest = Rest.NONE

    def _on_stopped(self, event: Stopped, effects: list[Effect]) -> None:
        self._end(effects, Finish())

    def _on_mail_came(self, event: MailCame, effects: list[Effect]) -> None:
        self._end_rest(Rest.WAITING)

    @property
    def _idle(self) -> bool:
        moving = self._memory.fetching or self._memory.saving
        return not (self._running or self._ready or moving or self._retries.pausing)

    def _go_on(self, effects: list[Effect], now: float) -> None:
        """Fill free slots. With nothing left to do, finish, park or linger."""
        ready, running = self._ready, self._running
        if self._late and self._worked and len(self._executed) < len(self.part.upstream):
            self._hand_over(effects)
            return
        while ready and len(running) < self._slots:
            task = self._obligations.order[heappop(ready)]
            running.add(task)
            effects.append(Execute(task))
            self._prewarming.begin(task, effects)
        if self._copies.open and not ready and self._begin_copies(effects, now):
            self._go_on(effects, now)
        elif running or not self._idle:
            self._end_rest(Rest.WAITING)
        elif len(self._executed) == len(self.part.upstream):
            self.finished = True
            self._prewarming.leave(effects)
            effects.append(Finish())
        elif self._rest is not Rest.WAITING and not self._copies.scheduled:
            self._wait(effects)

    def _hand_over(self, effects: list[Effect]) -> None:
        """Once nothing runs or moves, save what is still needed, then leave to start again."""
        memory = self._memory
        if self._running or memory.fetching or memory.saving or self._rest is Rest.LEAVING:
            return
        self._save_progress(effects)
        if lost := memory.held & memory.unpicklable:
            self.finished = True
            effects.append(Abort(min(lost)))
        elif not memory.saving:
            self._rest = Rest.LEAVING
            self._prewarming.leave(effects)
            effects.append(Park(self._known_done, again=True))

    @property
    def _known_done(self) -> tuple[TaskId, ...]:
        done = self._executed | self._copies.vouched.keys()
        return tuple([task for task in (*self.part.tasks, *self.part.copies) if task in done])

    def _begin_copies(self, effects: list[Effect], now: float) -> bool:
        """Begin copies in free slots, or set timers for them; whether one is ready."""
        copies = self._copies
        for task, copy in list(copies.open.items()):
            if len(self._running | copies.begun) >= self._slots:
                break
            if not self._memory.held.issuperset(copy.upstream):
                continue
            wait = copies.wait(task, now)
            if not wait:
                copies.begin(task)
                self._gather(task, effects)
            elif task not in copies.scheduled:
                copies.scheduled.add(task)
                effects.append(SetTimer(CopyTimer(task), wait))
        return bool(self._ready)

    def _wait(self, effects: list[Effect]) -> None:
        """Park if that has been prepared, else have a timer tell when to."""
        memory, linger = self._memory, self.part.linger
        if self._rest is Rest.PARKING:
            self._prewarming.leave(effects)
            effects.append(Park(self._known_done))
        elif linger is not None and memory.held.isdisjoint(memory.unpicklable):
            self._idle_spell += 1
            effects.append(SetTimer(ParkTimer(self._idle_spell), linger))
        self._rest = Rest.WAITING


HANDLERS: dict[type, Callable[[WorkerMachine, Any, list[Effect]], None]] = {
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
"""Plain functions: bound methods would make a cycle, and keep machines until a collection."""
