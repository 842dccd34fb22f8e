"""`FlexibleMachine`: what a worker does next that has no tasks of its own (WUKONG).

1. A worker begins with the task that it is named after, and is told of it by Arrived. What becomes
   ready through it is its own: it runs the task if a slot is free, or invokes a new worker for it.
   Each task becomes ready through exactly one worker, once, so it is executed once.
2. A task with one upstream task is ready when that is executed: at a fan-out the worker becomes the
   first branches, as many as it has slots, and invokes the others. Nothing is written for a task
   that is the only one to take an output, and takes no other.
3. A task with several upstream tasks is marked in the store after each of them. Whoever sets the
   last mark is told so by Marked, and has the task; the others go on without it.
4. An output is saved before others are told of it, unless it is small: then it travels with the
   mark or the invocation. It stays in memory until its marks are answered.
5. Each Fetch, Execute, Save and Mark is answered by exactly one event.
6. The worker finishes when nothing runs, moves or is marked. It never waits for another worker.
7. A worker that was lost begins again with its first task: it fetches what is saved instead of
   executing it, and leaves tasks alone that it had invoked workers for; should their inputs have
   been lost with a machine's memory, it saves them again. Whoever repeats a task whose mark was
   the last is told so again.
8. When its time is nearly over, a worker takes no more tasks: it invokes workers for all.
9. An event that doesn't fit the state raises ProtocolViolation with the task's story.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    Invoke,
    Mark,
    Save,
    SetTimer,
)
from shoal.execution.events import (
    Arrived,
    Event,
    Executed,
    Failed,
    Fetched,
    Marked,
    Saved,
    Started,
    Stopped,
    TimerFired,
)
from shoal.execution.machine import IN_TIME, INLINE_NBYTES, retry_pause
from shoal.execution.plan import Part
from shoal.execution.story import new_log, story_of, violation
from shoal.types import TaskId, WorkerId

INVOKED_NBYTES = 128 * 1024
"""What may travel with the invocations of one moment; if it is more, it is saved once instead."""


class FlexibleMachine:
    """The state of one flexible worker."""

    def __init__(
        self, part: Part, upstream: Mapping[TaskId, tuple[TaskId, ...]] | None = None
    ) -> None:
        """Begin with nothing done; `upstream` says the same as the part's, to save time."""
        self.part = part
        self.finished = False
        """Nothing more will be asked of the driver."""
        self._upstream = upstream or dict(zip(part.tasks, part.upstream, strict=True))
        self._slots = part.resources.slots
        self._taken: set[TaskId] = set()
        """Tasks that have a slot: they gather inputs, run, or wait for their next try."""
        self._running: set[TaskId] = set()
        self._pausing: set[TaskId] = set()
        """Tasks that wait for their next try."""
        self._missing: dict[TaskId, int] = {}
        """How many inputs of a task are being fetched."""
        self._fetching: dict[TaskId, list[TaskId]] = {}
        """Outputs being fetched, and the tasks that wait for them."""
        self._held: set[TaskId] = set()
        """Outputs and constants in memory."""
        self._uses: dict[TaskId, int] = {}
        """Taken tasks, marks, saves and invocations to come that need an output in memory."""
        self._nbytes: dict[TaskId, int] = {}
        """The sizes of outputs in memory that are small; of one that came, the most it can be."""
        self._saved: set[TaskId] = set()
        """Outputs in memory that can be fetched."""
        self._saving: dict[TaskId, list[TaskId]] = {}
        """Outputs being saved, and the tasks that are told of or invoked afterwards."""
        self._giving: dict[TaskId, int] = {}
        """How many inputs of a task are being saved before a worker is invoked for it."""
        self._marking: set[tuple[TaskId, TaskId]] = set()
        """Marks without an answer: a task, and the upstream task whose mark it is."""
        self._there: frozenset[TaskId] = frozenset()
        """Outputs that were saved before an earlier start of the worker was lost."""
        self._invoked: frozenset[WorkerId] = frozenset()
        """Workers that were invoked before."""
        self._recalled: set[TaskId] = set()
        """Taken tasks whose outputs are fetched instead."""
        self._begun = False
        self._tried: dict[TaskId, int] = {}
        """How often taken tasks have failed."""
        self._log = new_log()
        self._handlers: dict[type, Callable[[Any, list[Effect], list[TaskId]], None]] = {
            Started: self._on_started,
            Arrived: self._on_arrived,
            Fetched: self._on_fetched,
            Executed: self._on_executed,
            Failed: self._on_failed,
            Saved: self._on_saved,
            Marked: self._on_marked,
            TimerFired: self._on_timer,
            Stopped: self._on_stopped,
        }

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take note of what happened; the effects are to be carried out in order."""
        effects: list[Effect] = []
        self._log.append((now, event, effects))
        if self.finished:
            return effects
        if type(event) not in self._handlers:
            raise ProtocolViolation(f"worker {self.part.worker} is flexible, and got {event}")
        unneeded: list[TaskId] = []
        self._handlers[type(event)](event, effects, unneeded)
        if unneeded:
            effects.append(Forget(tuple(unneeded)))
        if not (self.finished or self._taken or self._saving or self._marking) and self._begun:
            self.finished = True
            effects.append(Finish())
        return effects

    def story(self, task: TaskId) -> list[str]:
        """What happened to a task here, a line for each event and effect that names it."""
        return story_of(task, self._log)

    def _violation(self, task: TaskId, what: str) -> ProtocolViolation:
        return violation(self.part.worker, task, what, self._log)

    def _on_started(self, event: Started, effects: list[Effect], unneeded: list[TaskId]) -> None:
        if self._begun or event.recovered is None:
            raise ProtocolViolation(f"worker {self.part.worker} is flexible, and got {event}")
        self._there = event.recovered.saved
        self._invoked = event.recovered.started - {self.part.worker}

    def _on_arrived(self, event: Arrived, effects: list[Effect], unneeded: list[TaskId]) -> None:
        if self.part.limit is not None:
            effects.append(SetTimer("limit", self.part.limit * IN_TIME))
        if WorkerId(event.task) != self.part.worker or self._begun:
            raise self._violation(event.task, "arrived, but isn't what the worker begins with")
        self._begun = True
        self._own(event.task, event.held, effects, unneeded)

    def _on_marked(self, event: Marked, effects: list[Effect], unneeded: list[TaskId]) -> None:
        mark = (event.task, event.producer)
        if mark not in self._marking:
            raise self._violation(event.task, f"marked for {event.producer!r}, but nobody asked")
        self._marking.remove(mark)
        if event.claimed:
            self._own(event.task, event.held, effects, unneeded)
        self._used(event.producer, unneeded)

    def _own(
        self,
        task: TaskId,
        held: Sequence[TaskId],
        effects: list[Effect],
        unneeded: list[TaskId],
    ) -> None:
        """A task became ready through this worker; some of its inputs came along."""
        for output in held:
            self._use(output)
            self._held.add(output)
            self._nbytes.setdefault(output, INLINE_NBYTES)
        self._settle([task], effects)
        for output in held:
            self._used(output, unneeded)

    def _settle(self, ready: Sequence[TaskId], effects: list[Effect]) -> None:
        """Run as many ready tasks as there are free slots, and invoke workers for the others."""
        if self._invoked:
            for task in [task for task in ready if WorkerId(task) in self._invoked]:
                self._save_again(task, effects)
            ready = [task for task in ready if WorkerId(task) not in self._invoked]
        free = max(0, self._slots - len(self._taken))
        for task in ready[:free]:
            self._take(task, effects)
        if len(ready) > free:
            self._give(ready[free:], effects)

    def _save_again(self, task: TaskId, effects: list[Effect]) -> None:
        """Save the large inputs of a task that has its worker: the store has lost them since."""
        for output in self._upstream[task]:
            large = output in self._held and output not in self._nbytes
            if large and output not in self._saved and output not in self._saving:
                self._saving[output] = []
                self._use(output)
                effects.append(Save(output))

    def _take(self, task: TaskId, effects: list[Effect]) -> None:
        self._taken.add(task)
        if task in self._there:
            self._recalled.add(task)
            self._use(task)
            effects.append(Fetch((task,)))
            return
        missing: list[TaskId] = []
        for source in self._inputs(task):
            self._use(source)
            if source not in self._held:
                missing.append(source)
        if not missing:
            self._execute(task, effects)
            return
        self._missing[task] = len(missing)
        wanted = tuple([source for source in missing if source not in self._fetching])
        for source in missing:
            self._fetching.setdefault(source, []).append(task)
        if wanted:
            effects.append(Fetch(wanted))

    def _inputs(self, task: TaskId) -> tuple[TaskId, ...]:
        """What must be in memory for a task: upstream outputs and constants."""
        return self._upstream[task] + self.part.constants.get(task, ())

    def _execute(self, task: TaskId, effects: list[Effect]) -> None:
        self._running.add(task)
        effects.append(Execute(task))

    def _give(self, tasks: Sequence[TaskId], effects: list[Effect]) -> None:
        """Invoke a worker for each task, once those of its inputs are saved that aren't sent."""
        held, saved, nbytes = self._held, self._saved, self._nbytes
        unsaved = {
            task: [s for s in self._upstream[task] if s in held and s not in saved]
            for task in tasks
        }
        sizes = [nbytes.get(s, INVOKED_NBYTES + 1) for found in unsaved.values() for s in found]
        inline = sum(sizes) <= INVOKED_NBYTES
        for task, outputs in unsaved.items():
            if inline or not outputs:
                effects.append(Invoke(task, tuple(outputs)))
                continue
            self._giving[task] = len(outputs)
            for output in outputs:
                self._save(output, task, effects)

    def _save(self, output: TaskId, target: TaskId, effects: list[Effect]) -> None:
        """Save an output, once, and go on with a task afterwards; for a sink with itself."""
        if output not in self._saving:
            self._saving[output] = []
            self._use(output)
            effects.append(Save(output))
        self._saving[output].append(target)

    def _on_fetched(self, event: Fetched, effects: list[Effect], unneeded: list[TaskId]) -> None:
        for output in event.outputs:
            if output in self._recalled:
                self._recalled.remove(output)
                self._taken.remove(output)
                self._held.add(output)
                self._saved.add(output)
                self._pass_on(output, effects)
                self._used(output, unneeded)
                continue
            if output not in self._fetching:
                raise self._violation(output, "fetched, but nobody had asked for it")
            self._held.add(output)
            self._saved.add(output)
            for task in self._fetching.pop(output):
                self._missing[task] -= 1
                if not self._missing[task]:
                    del self._missing[task]
                    self._execute(task, effects)

    def _on_executed(self, event: Executed, effects: list[Effect], unneeded: list[TaskId]) -> None:
        task = event.task
        if task not in self._running:
            raise self._violation(task, "executed, but not running")
        self._running.remove(task)
        self._taken.remove(task)
        self._held.add(task)
        self._use(task)
        if event.nbytes <= INLINE_NBYTES:
            self._nbytes[task] = event.nbytes
        self._pass_on(task, effects)
        self._used(task, unneeded)
        for source in self._inputs(task):
            self._used(source, unneeded)

    def _pass_on(self, task: TaskId, effects: list[Effect]) -> None:
        """An output is in memory: go on with those that take it."""
        small = task in self._nbytes
        takers, joins = self.part.feeds.get(task, ()), self.part.shared
        self._settle([taker for taker in takers if taker not in joins], effects)
        for target in [taker for taker in takers if taker in joins]:
            if small or task in self._saved:
                self._mark(target, task, effects)
            else:
                self._save(task, target, effects)
        if task in self.part.sinks:
            if small or task in self._saved:
                effects.append(HandIn(task, saved=task in self._saved))
            else:
                self._save(task, task, effects)

    def _mark(self, target: TaskId, output: TaskId, effects: list[Effect]) -> None:
        saved = output in self._saved
        inline, fetched = ((), (output,)) if saved else ((output,), ())
        producers = self.part.shared[target]
        effects.append(Mark(target, None, producers, inline, fetched, output))
        self._marking.add((target, output))
        self._use(output)

    def _on_saved(self, event: Saved, effects: list[Effect], unneeded: list[TaskId]) -> None:
        output = event.task
        if output not in self._saving:
            raise self._violation(output, "saved, but nobody had asked for it")
        self._saved.add(output)
        for target in self._saving.pop(output):
            if target in self._giving:
                self._giving[target] -= 1
                if not self._giving[target]:
                    del self._giving[target]
                    effects.append(Invoke(target, ()))
            elif target == output:
                effects.append(HandIn(output, saved=True))
            else:
                self._mark(target, output, effects)
        self._used(output, unneeded)

    def _on_failed(self, event: Failed, effects: list[Effect], unneeded: list[TaskId]) -> None:
        task = event.task
        if task not in self._running:
            raise self._violation(task, "failed, but not running")
        self._running.remove(task)
        tried = self._tried.get(task, 0)
        if tried >= self.part.retries.get(task, 0) or event.final:
            self._save_all(effects)
            effects.append(Abort(task))
            return
        self._tried[task] = tried + 1
        self._pausing.add(task)
        effects.append(SetTimer(f"retry {task}", retry_pause(task, tried)))

    def _on_timer(self, event: TimerFired, effects: list[Effect], unneeded: list[TaskId]) -> None:
        if event.timer == "limit":
            self._slots = 0
            return
        task = TaskId(event.timer.partition(" ")[2])
        if task not in self._pausing:
            raise self._violation(task, "its timer fired, but it doesn't wait for its next try")
        self._pausing.remove(task)
        self._execute(task, effects)

    def _on_stopped(self, event: Stopped, effects: list[Effect], unneeded: list[TaskId]) -> None:
        self._save_all(effects)
        effects.append(Finish())

    def _save_all(self, effects: list[Effect]) -> None:
        """Save those outputs that are in memory only, and do no more."""
        self.finished = True
        there = self._saved | self._saving.keys()
        own = [task for task in self.part.tasks if task in self._held and task not in there]
        effects.extend([Save(task) for task in own])

    def _use(self, output: TaskId) -> None:
        self._uses[output] = self._uses.get(output, 0) + 1

    def _used(self, output: TaskId, unneeded: list[TaskId]) -> None:
        self._uses[output] -= 1
        if not self._uses[output]:
            del self._uses[output]
            self._held.discard(output)
            self._saved.discard(output)
            self._nbytes.pop(output, None)
            unneeded.append(output)
