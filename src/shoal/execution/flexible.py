"""`FlexibleMachine`: what a worker does next that has no tasks of its own (WUKONG).

1. A worker begins with the task that it is named after, and is told of it by Arrived. What becomes
   ready through it is its own: it runs the task if a slot is free, or invokes a new worker for it.
   Each task becomes ready through exactly one worker, once, so it is executed once.
2. A task with one upstream task is ready when that is executed: at a fan-out the worker becomes the
   first branches, as many as it has slots, and invokes the others. Nothing is written for a task
   that is the only one to take an output, and takes no other.
3. A task with several upstream tasks is marked in the store after each of them. Whoever sets the
   last mark is told so by Marked, and has the task; the others go on without it: see `joins`.
4. An output is saved before others are told of it, unless it is small enough to travel with the
   mark or the invocation. It stays in memory until its marks are answered.
5. Policies may have a ready task wait here for a slot instead of for a worker of its own. What
   becomes ready through a task goes before those. Many workers are invoked by the fan-out invoker.
6. Each Fetch, Execute, Save and Mark is answered by exactly one event. The worker finishes when
   nothing runs, waits, moves or is marked. If all that is left are marks that it asks for at once,
   it leaves with them, unless one is the last. It waits for others only if a forecast says so.
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
    Leave,
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
    Unsaved,
)
from shoal.execution.joins import HOLD, Joins, Moment
from shoal.execution.machine import IN_TIME, INLINE_NBYTES
from shoal.execution.memory import Memory
from shoal.execution.plan import Part
from shoal.execution.policies import Forecast
from shoal.execution.retries import Retries
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
        self._taken: dict[TaskId, float] = {}
        """Tasks that have a slot, and since when: they gather inputs, run, or wait for their next
        try."""
        self._running: set[TaskId] = set()
        self._retries = Retries(part.retries)
        self._missing: dict[TaskId, int] = {}
        """How many inputs of a task are being fetched."""
        self._fetching: dict[TaskId, list[TaskId]] = {}
        """Outputs being fetched, and the tasks that wait for them."""
        self._kept: dict[TaskId, tuple[TaskId, ...]] = {}
        """Ready tasks that wait here for a slot, and their inputs in memory."""
        self._memory = Memory()
        self._joins = Joins(part, self._memory)
        self._giving: dict[TaskId, int] = {}
        """How many inputs of a task are being saved before a worker is invoked for it."""
        self._crowd: set[TaskId] = set()
        """Those of them that the fan-out invoker invokes workers for."""
        self._now = self._since = 0.0
        """The latest event's time, and the first one's."""
        self._there: frozenset[TaskId] = frozenset()
        """Outputs that were saved before an earlier start of the worker was lost."""
        self._invoked: frozenset[WorkerId] = frozenset()
        """Workers that were invoked before."""
        self._recalled: set[TaskId] = set()
        """Taken tasks whose outputs are fetched instead."""
        self._begun = False
        self._log = new_log()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take note of what happened; the effects are to be carried out in order."""
        effects: list[Effect] = []
        self._log.append((now, event, effects))
        if self.finished:
            return effects
        if type(event) not in _HANDLERS:
            raise ProtocolViolation(f"worker {self.part.worker} is flexible, and got {event}")
        unneeded: list[TaskId] = []
        self._now = now
        _HANDLERS[type(event)](self, event, effects, unneeded)
        if not self.finished:
            self._go_on(effects, unneeded)
        forgotten = self._memory.forget(unneeded)
        if forgotten:
            effects.append(Forget(forgotten))
        moving = self._memory.saving or self._joins.marking or self._joins.delayed
        if not (self.finished or self._taken or moving) and self._begun:
            self.finished = True
            effects.append(Finish())
        elif moving and not self.finished and self._only_marks(effects):
            effects.append(Leave())
        return effects

    def _only_marks(self, effects: list[Effect]) -> bool:
        """Whether there is nothing to do but marks that are asked for right now.

        What is held isn't done with, whether its mark is set or refused.
        """
        joins = self._joins
        if self._taken or self._memory.saving or joins.delayed or any(joins.marking.values()):
            return False
        return sum([type(effect) is Mark for effect in effects]) == len(joins.marking)

    def _go_on(self, effects: list[Effect], unneeded: list[TaskId]) -> None:
        """Begin what waits for a slot; with nothing to do, see to what is held."""
        while self._kept and len(self._taken) < self._slots:
            task = next(iter(self._kept))
            inputs = self._kept.pop(task)
            self._take(task, effects)
            for source in inputs:
                self._memory.used(source, unneeded)
        if not self._taken and self._joins.delayed:
            self._joins.ask_again(effects, unneeded)

    def _moment(self) -> Moment:
        left = None
        if self.part.limit is not None:
            left = self._since + self.part.limit - self._now
        taken, slots = len(self._taken), self._slots
        return Moment(self._now, left, bool(taken or self._kept), taken < slots, not slots)

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
        self._begun, self._since = True, self._now
        self._own(event.task, event.held, effects, unneeded)

    def _on_marked(self, event: Marked, effects: list[Effect], unneeded: list[TaskId]) -> None:
        if (event.task, event.producer) not in self._joins.marking:
            raise self._violation(event.task, f"marked for {event.producer!r}, but nobody asked")
        if event.claimed:
            self._own(event.task, event.held, effects, unneeded)
        self._joins.answered(event, self._moment(), effects, unneeded)

    def _own(
        self,
        task: TaskId,
        held: Sequence[TaskId],
        effects: list[Effect],
        unneeded: list[TaskId],
    ) -> None:
        """A task became ready through this worker; some of its inputs came along."""
        memory = self._memory
        for output in held:
            memory.use(output)
            memory.held.add(output)
            memory.nbytes.setdefault(output, INLINE_NBYTES)
        self._settle([task], effects)
        for output in held:
            memory.used(output, unneeded)

    def _settle(self, ready: Sequence[TaskId], effects: list[Effect]) -> None:
        """Run as many ready tasks as there are free slots; keep others, or invoke workers."""
        if self._invoked:
            for task in [task for task in ready if WorkerId(task) in self._invoked]:
                self._save_again(task, effects)
            ready = [task for task in ready if WorkerId(task) not in self._invoked]
        free = max(0, self._slots - len(self._taken))
        for task in ready[:free]:
            self._take(task, effects)
        others = [task for task in ready[free:] if not (self._slots and self._keep(task))]
        if others:
            self._give(others, effects)

    def _keep(self, task: TaskId) -> bool:
        """Have a ready task wait here for a slot, if that is worth it."""
        memory, policies = self._memory, self.part.policies
        inputs = [source for source in self._inputs(task) if source in memory.held]
        large = [source for source in inputs if not memory.small(source)]
        keeps = policies.keeps(
            join=task in self.part.shared,
            nbytes=max([memory.size(source) for source in inputs], default=0),
            moved=sum([memory.size(source) for source in large]),
            unsaved=sum([memory.size(source) for source in large if source not in memory.saved]),
            backlog=self._backlog(),
        )
        if keeps:
            for source in inputs:
                memory.use(source)
            self._kept[task] = tuple(inputs)
        return keeps

    def _backlog(self) -> float:
        """Seconds until a slot is predicted to be free for one more task."""
        forecast = self.part.policies.forecast
        if forecast is None:
            return 0.0
        left = [
            max(0.0, self._slot_seconds(task, forecast) + since - self._now)
            for task, since in self._taken.items()
        ]
        left += [self._slot_seconds(task, forecast) for task in self._kept]
        return sum(left) / self._slots

    def _slot_seconds(self, task: TaskId, forecast: Forecast) -> float:
        """How long a task is predicted to need a slot: to fetch what isn't here, and to run."""
        seconds = forecast.seconds.get(task, 0.0)
        if all(source in self._memory.held for source in self._inputs(task)):
            return seconds
        return seconds + self.part.policies.fetch.seconds(0)

    def _save_again(self, task: TaskId, effects: list[Effect]) -> None:
        """Save the large inputs of a task that has its worker: the store has lost them since."""
        memory = self._memory
        for output in self._upstream[task]:
            large = output in memory.held and not memory.small(output)
            if large and output not in memory.saved:
                memory.save(output, None, effects)

    def _take(self, task: TaskId, effects: list[Effect]) -> None:
        self._taken[task] = self._now
        if task in self._there:
            self._recalled.add(task)
            self._memory.use(task)
            effects.append(Fetch((task,)))
            return
        missing: list[TaskId] = []
        for source in self._inputs(task):
            self._memory.use(source)
            if source not in self._memory.held:
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
        memory, policies = self._memory, self.part.policies
        held, saved, nbytes = memory.held, memory.saved, memory.nbytes
        unsaved = {
            task: [s for s in self._upstream[task] if s in held and s not in saved]
            for task in tasks
        }
        sizes = [
            sum([nbytes.get(source, INVOKED_NBYTES + 1) for source in found])
            for found in unsaved.values()
        ]
        inline = sum(sizes) <= INVOKED_NBYTES and policies.inlines(max(sizes))
        many = policies.through_invoker(len(tasks))
        for task, outputs in unsaved.items():
            if inline or not outputs:
                effects.append(Invoke(task, tuple(outputs), many))
                continue
            self._giving[task] = len(outputs)
            if many:
                self._crowd.add(task)
            for output in outputs:
                memory.save(output, task, effects)

    def _on_fetched(self, event: Fetched, effects: list[Effect], unneeded: list[TaskId]) -> None:
        memory = self._memory
        for output in event.outputs:
            memory.held.add(output)
            memory.saved.add(output)
            if output in self._recalled:
                self._recalled.remove(output)
                del self._taken[output]
                self._pass_on(output, effects)
                memory.used(output, unneeded)
                continue
            if output not in self._fetching:
                raise self._violation(output, "fetched, but nobody had asked for it")
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
        del self._taken[task]
        memory = self._memory
        memory.held.add(task)
        memory.use(task)
        memory.nbytes[task] = event.nbytes
        self._pass_on(task, effects)
        memory.used(task, unneeded)
        for source in self._inputs(task):
            memory.used(source, unneeded)

    def _pass_on(self, task: TaskId, effects: list[Effect]) -> None:
        """An output is in memory: go on with those that take it."""
        memory = self._memory
        takers, shared = self.part.feeds.get(task, ()), self.part.shared
        self._settle([taker for taker in takers if taker not in shared], effects)
        moment = self._moment()
        for target in [taker for taker in takers if taker in shared]:
            self._joins.pass_on(task, target, moment, effects)
        if task in self.part.sinks:
            if memory.small(task) or task in memory.saved:
                effects.append(HandIn(task, saved=task in memory.saved))
            else:
                memory.save(task, task, effects)

    def _on_saved(self, event: Saved, effects: list[Effect], unneeded: list[TaskId]) -> None:
        output = event.task
        memory = self._memory
        if output not in memory.saving:
            raise self._violation(output, "saved, but nobody had asked for it")
        memory.saved.add(output)
        for target in memory.saving.pop(output):
            if target in self._giving:
                self._giving[target] -= 1
                if not self._giving[target]:
                    del self._giving[target]
                    effects.append(Invoke(target, (), target in self._crowd))
            elif target == output:
                effects.append(HandIn(output, saved=True))
            else:
                self._joins.mark(target, output, effects)
        self._joins.saved(output, effects, unneeded)
        memory.used(output, unneeded)

    def _on_unsaved(self, event: Unsaved, effects: list[Effect], unneeded: list[TaskId]) -> None:
        self._save_all(effects)
        effects.append(Abort(event.task))

    def _on_failed(self, event: Failed, effects: list[Effect], unneeded: list[TaskId]) -> None:
        task = event.task
        if task not in self._running:
            raise self._violation(task, "failed, but not running")
        self._running.remove(task)
        pause = self._retries.failed(task, final=event.final)
        if pause is not None:
            effects.append(pause)
            return
        self._save_all(effects)
        effects.append(Abort(task))

    def _on_timer(self, event: TimerFired, effects: list[Effect], unneeded: list[TaskId]) -> None:
        if event.timer == "limit":
            self._leave(effects, unneeded)
            return
        kind, _, name = event.timer.partition(" ")
        task = TaskId(name)
        if kind == HOLD:
            self._joins.fall_due(task, effects, unneeded)
            return
        if not self._retries.resumed(task):
            raise self._violation(task, "its timer fired, but it doesn't wait for its next try")
        self._execute(task, effects)

    def _leave(self, effects: list[Effect], unneeded: list[TaskId]) -> None:
        """Keep nothing that waits for a slot, and hold nothing."""
        self._slots = 0
        kept, self._kept = self._kept, {}
        if kept:
            self._give(list(kept), effects)
        for inputs in kept.values():
            for source in inputs:
                self._memory.used(source, unneeded)
        self._joins.write_all(effects, unneeded)

    def _on_stopped(self, event: Stopped, effects: list[Effect], unneeded: list[TaskId]) -> None:
        self._save_all(effects)
        effects.append(Finish())

    def _save_all(self, effects: list[Effect]) -> None:
        """Save those outputs that are in memory only, and do no more."""
        self.finished = True
        held, there = self._memory.held, self._memory.saved | self._memory.saving.keys()
        own = [task for task in self.part.tasks if task in held and task not in there]
        effects.extend([Save(task) for task in own])


_HANDLERS: dict[type, Callable[[FlexibleMachine, Any, list[Effect], list[TaskId]], None]] = {
    Started: FlexibleMachine._on_started,
    Arrived: FlexibleMachine._on_arrived,
    Fetched: FlexibleMachine._on_fetched,
    Executed: FlexibleMachine._on_executed,
    Failed: FlexibleMachine._on_failed,
    Saved: FlexibleMachine._on_saved,
    Unsaved: FlexibleMachine._on_unsaved,
    Marked: FlexibleMachine._on_marked,
    TimerFired: FlexibleMachine._on_timer,
    Stopped: FlexibleMachine._on_stopped,
}
"""Not of bound methods: a machine that holds none is freed as soon as nobody holds it."""
