"""`FlexibleMachine`: decides what a worker does next that has no tasks of its own (WUKONG).

1. A worker begins with the task that it is named after, which Arrived reports. Tasks that become
   ready through a worker belong to it: it runs them if a slot is free, or invokes new workers for
   them. Each task becomes ready through exactly one worker, once, so it is executed once.
2. A task with one upstream task is ready when that is executed. At a fan-out the worker takes the
   first branches, as many as it has slots, and invokes workers for the others. Nothing is written
   for a task that is the only one to take an output and takes no other.
3. A task with several upstream tasks (a fan-in) is marked in the store after each of them. Marked
   tells the worker that sets the last mark, and gives it the task. The others continue without it;
   see `joins`.
4. An output is saved before others are told about it, unless it is small enough to travel with the
   mark or the invocation. It stays in memory until its marks are answered.
5. Policies may let a ready task wait here for a slot instead of invoking a worker for it. Tasks
   that become ready later go before those. The fan-out invoker invokes large groups of workers.
6. Each Fetch, Execute, Save and Mark is answered by exactly one event. The worker finishes when
   nothing runs, waits, moves or is being marked. If marks are all that is left, it leaves with
   them, unless one is the last. It waits for other workers only if a forecast says so.
7. A worker that was lost starts again with its first task. It fetches what is saved instead of
   executing it, and skips tasks for which it had invoked workers. If the inputs of those were lost
   with a machine's memory, it saves them again. A worker that repeats a task whose mark was the
   last is told so again.
8. When its time limit is near, a worker takes no more tasks: it invokes workers for all.
9. An event that doesn't fit the state raises ProtocolViolation with the task's story.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, assert_never

from shoal.errors import ProtocolViolation
from shoal.execution.base import Machine
from shoal.execution.effects import (
    Abort,
    Effect,
    Execute,
    Fetch,
    Finish,
    HandIn,
    Invoke,
    Leave,
    Mark,
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
from shoal.execution.joins import Joins, Moment
from shoal.execution.memory import Memory
from shoal.execution.plan import FlexiblePart
from shoal.execution.policies import Forecast
from shoal.execution.timers import (
    CopyTimer,
    HoldTimer,
    LimitTimer,
    ParkTimer,
    RetryTimer,
    WarmUpTimer,
)
from shoal.types import TaskId, WorkerId

INVOKED_NBYTES = 128 * 1024
"""The most bytes that travel with the invocations of one event; more are saved once instead."""


class FlexibleMachine(Machine):
    """The state of one start of a flexible worker."""

    part: FlexiblePart

    def __init__(self, part: FlexiblePart) -> None:
        super().__init__(part, Memory())
        self._joins = Joins(part, self._memory)
        """The marks of this worker, and the outputs that it holds back."""
        self._taken: dict[TaskId, float] = {}
        """Tasks that have a slot, and since when. Each is running, pausing, gathering inputs or in
        `_recalled`; there are no more than slots, unless the time limit has come."""
        self._kept: dict[TaskId, tuple[TaskId, ...]] = {}
        """Ready tasks that wait here for a slot, and their inputs in memory, which have a use for
        it. Empty between events, unless all slots are taken."""
        self._giving: dict[TaskId, int] = {}
        """How many inputs of a task are being saved before a worker is invoked for it; never 0."""
        self._crowd: set[TaskId] = set()
        """Tasks for which the fan-out invoker invokes workers, once their inputs are saved."""
        self._since: float | None = None
        """When the worker's first task arrived; None: it hasn't."""
        self._now = 0.0
        """The time of the latest event."""
        self._there: frozenset[TaskId] = frozenset()
        """Outputs that an earlier, lost start of the worker had saved."""
        self._invoked: frozenset[WorkerId] = frozenset()
        """Other workers that had been invoked when that start was lost."""
        self._recalled: set[TaskId] = set()
        """Tasks in `_taken` whose outputs are fetched, because an earlier start had saved them."""

    def _react(self, event: Event, effects: list[Effect], now: float) -> None:
        if type(event) not in _HANDLERS:
            raise self._unexpected(event)
        self._now = now
        _HANDLERS[type(event)](self, event, effects)
        if not self.finished:
            self._go_on(effects)
        self._memory.forget(effects)
        moving = self._memory.saving or self._joins.marking or self._joins.delayed
        if self.finished or self._since is None:
            return
        if not self._taken and not moving:
            self.finished = True
            effects.append(Finish())
        elif moving and self._only_marks(effects):
            effects.append(Leave())

    def _only_marks(self, effects: list[Effect]) -> bool:
        """Whether marks that this event asks for are all that is left to do.

        A held output needs more work, whether its mark is set or refused.
        """
        joins = self._joins
        if self._taken or self._memory.saving or joins.delayed or any(joins.marking.values()):
            return False
        return sum([type(effect) is Mark for effect in effects]) == len(joins.marking)

    def _go_on(self, effects: list[Effect]) -> None:
        """Begin tasks that wait for a slot; with nothing else to do, ask again for held outputs."""
        while self._kept and len(self._taken) < self._slots:
            task = next(iter(self._kept))
            inputs = self._kept.pop(task)
            self._take(task, effects)
            for source in inputs:
                self._memory.used(source)
        if not self._taken and self._joins.delayed:
            self._joins.ask_again(effects)

    def _moment(self) -> Moment:
        left = None
        if self.part.limit is not None and self._since is not None:
            left = self._since + self.part.limit - self._now
        taken, slots = len(self._taken), self._slots
        return Moment(self._now, left, bool(taken or self._kept), taken < slots, not slots)

    def _unexpected(self, event: Event) -> ProtocolViolation:
        return ProtocolViolation(f"worker {self.part.worker} is flexible and can't handle {event}")

    def _on_started(self, event: Started, effects: list[Effect]) -> None:
        if self._since is not None or event.recovered is None:
            raise self._unexpected(event)
        self._there = event.recovered.saved
        self._invoked = event.recovered.started - {self.part.worker}

    def _on_arrived(self, event: Arrived, effects: list[Effect]) -> None:
        if WorkerId(event.task) != self.part.worker or self._since is not None:
            raise self._violation(event.task, "arrived, but the worker doesn't begin with it")
        self._since = self._now
        self._set_limit(effects)
        self._own(event.task, event.held, effects)

    def _on_marked(self, event: Marked, effects: list[Effect]) -> None:
        if (event.task, event.producer) not in self._joins.marking:
            raise self._violation(event.task, f"marked for {event.producer!r}, but not asked for")
        if event.claimed:
            self._own(event.task, event.held, effects)
        self._joins.answered(event, self._moment(), effects)

    def _own(
        self,
        task: TaskId,
        held: Sequence[TaskId],
        effects: list[Effect],
    ) -> None:
        """Take on a task that became ready through this worker, with the inputs that came along."""
        self._memory.receive(held)
        self._settle([task], effects)

    def _settle(self, ready: Sequence[TaskId], effects: list[Effect]) -> None:
        """Run ready tasks in free slots; keep the others here, or invoke workers for them."""
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
        """Let a ready task wait here for a slot if that is worth it; whether it does."""
        memory, policies = self._memory, self.part.policies
        inputs = [source for source in self._inputs(task) if source in memory.held]
        large = [source for source in inputs if not memory.small(source)]
        keeps = policies.keeps(
            join=self.part.fan_in(task),
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
        """The predicted seconds until a slot is free for one more task."""
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
        """The predicted seconds that a task needs a slot: to fetch missing inputs, and to run."""
        seconds = forecast.seconds.get(task, 0.0)
        if all(source in self._memory.held for source in self._inputs(task)):
            return seconds
        return seconds + self.part.policies.fetch.seconds(0)

    def _save_again(self, task: TaskId, effects: list[Effect]) -> None:
        """Save large inputs again that the store has lost, for a task that has a worker already."""
        memory = self._memory
        for output in self.part.upstream[task]:
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
        inputs = self._inputs(task)
        for source in inputs:
            self._memory.use(source)
        if self._memory.gather(task, inputs, effects):
            self._execute(task, effects)

    def _inputs(self, task: TaskId) -> tuple[TaskId, ...]:
        """What a task needs in memory: upstream outputs and constants."""
        return self.part.upstream[task] + self.part.constants.get(task, ())

    def _execute(self, task: TaskId, effects: list[Effect]) -> None:
        self._running.add(task)
        effects.append(Execute(task))

    def _give(self, tasks: Sequence[TaskId], effects: list[Effect]) -> None:
        """Invoke a worker for each task, after saving the inputs that don't travel along."""
        memory, policies = self._memory, self.part.policies
        here = memory.held - memory.saved
        unsaved = {task: [s for s in self.part.upstream[task] if s in here] for task in tasks}
        sizes = [memory.sizes(found, unknown=INVOKED_NBYTES + 1) for found in unsaved.values()]
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

    def _on_fetched(self, event: Fetched, effects: list[Effect]) -> None:
        memory = self._memory
        for output in event.outputs:
            if output in self._recalled:
                self._recalled.remove(output)
                del self._taken[output]
                memory.add_saved(output)
                self._pass_on(output, effects)
                memory.used(output)
            elif output in memory.fetching:
                for task in memory.fetched(output):
                    self._execute(task, effects)
            else:
                raise self._violation(output, "fetched, but not asked for")

    def _on_executed(self, event: Executed, effects: list[Effect]) -> None:
        task = event.task
        self._stopped_running(task, "executed")
        del self._taken[task]
        memory = self._memory
        memory.add(task, event.nbytes)
        self._pass_on(task, effects)
        for source in self._inputs(task):
            memory.used(source)

    def _pass_on(self, task: TaskId, effects: list[Effect]) -> None:
        """Continue with the tasks that take an output that is now in memory."""
        memory = self._memory
        takers, fan_in = self.part.downstream.get(task, ()), self.part.fan_in
        self._settle([taker for taker in takers if not fan_in(taker)], effects)
        moment = self._moment()
        for target in [taker for taker in takers if fan_in(taker)]:
            self._joins.pass_on(task, target, moment, effects)
        if task in self.part.sinks:
            if memory.small(task) or task in memory.saved:
                effects.append(HandIn(task, saved=task in memory.saved))
            else:
                memory.save(task, task, effects)

    def _on_saved(self, event: Saved, effects: list[Effect]) -> None:
        output = event.task
        memory = self._memory
        if output not in memory.saving:
            raise self._violation(output, "saved, but not asked for")
        for target in memory.finish_saving(output):
            if target in self._giving:
                self._giving[target] -= 1
                if not self._giving[target]:
                    del self._giving[target]
                    effects.append(Invoke(target, (), target in self._crowd))
            elif target == output:
                effects.append(HandIn(output, saved=True))
            else:
                self._joins.mark(target, output, effects)
        self._joins.saved(output, effects)

    def _on_unsaved(self, event: Unsaved, effects: list[Effect]) -> None:
        self._end(effects, Abort(event.task))

    def _on_failed(self, event: Failed, effects: list[Effect]) -> None:
        self._stopped_running(event.task, "failed")
        self._retry_or_abort(event, effects)

    def _on_timer(self, event: TimerFired, effects: list[Effect]) -> None:
        match event.timer:
            case LimitTimer():
                self._leave(effects)
            case HoldTimer(output):
                self._joins.fall_due(output, effects)
            case RetryTimer(task):
                if not self._retries.resumed(task):
                    raise self._violation(
                        task, "its retry timer fired, but it doesn't wait for a retry"
                    )
                self._execute(task, effects)
            case CopyTimer() | WarmUpTimer() | ParkTimer():
                raise self._unexpected(event)
            case _:
                assert_never(event.timer)

    def _leave(self, effects: list[Effect]) -> None:
        """Invoke workers for tasks that wait for a slot, and save held outputs."""
        self._slots = 0
        kept, self._kept = self._kept, {}
        if kept:
            self._give(list(kept), effects)
        for inputs in kept.values():
            for source in inputs:
                self._memory.used(source)
        self._joins.write_all(effects)

    def _on_stopped(self, event: Stopped, effects: list[Effect]) -> None:
        self._end(effects, Finish())


_HANDLERS: dict[type, Callable[[FlexibleMachine, Any, list[Effect]], None]] = {
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
"""Plain functions: bound methods would make a cycle, and keep machines until a collection."""
