"""`Joins`: how a flexible worker passes its outputs on to fan-ins.

1. An output is marked in the store for each fan-in that takes it. A small one travels with the
   mark, any other is saved before.
2. One that may be delayed isn't saved at first: the store is asked to set its mark only if it is
   the last one, together with those of other outputs here that are held for the same task. Then the
   task is this worker's, and nothing was written. Otherwise nothing is marked, and policies say for
   how long the output is held. What comes for the same task meanwhile waits for the answer, and is
   asked for together with what was refused.
3. What is held is asked for again when the worker has nothing else to do, or its time has come;
   if that is refused too, it is saved and marked. Nothing is held by who is about to leave.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.execution.effects import Effect, Mark, SetTimer
from shoal.execution.events import Marked
from shoal.execution.memory import Memory
from shoal.execution.plan import Part
from shoal.types import TaskId

HOLD = "hold"
"""How the names of timers begin."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a worker is at, as far as it matters for what it holds."""

    now: float
    """Seconds since the run's start."""
    left: float | None
    """Seconds that its function still has; None: for ever."""
    busy: bool
    """It has tasks to do."""
    free: bool
    """It would begin a task at once."""
    late: bool
    """It is about to leave."""


class Joins:
    """The marks of one flexible worker, and the outputs that it holds for fan-ins."""

    def __init__(self, part: Part, memory: Memory) -> None:
        self.marking: dict[tuple[TaskId, TaskId], tuple[TaskId, ...]] = {}
        """Marks without an answer: a task and the upstream task whose mark it is; with the outputs
        that are held for it if it is to be the last, else with none."""
        self.delayed: dict[tuple[TaskId, TaskId], None] = {}
        """What is held: a task that isn't ready, and the output that it takes."""
        self._overdue: set[TaskId] = set()
        """Outputs that aren't held any longer."""
        self._part = part
        self._policies = part.policies
        self._memory = memory

    def pass_on(self, output: TaskId, target: TaskId, at: Moment, effects: list[Effect]) -> None:
        """An output is in memory that a fan-in takes."""
        memory = self._memory
        if memory.small(output) or output in memory.saved:
            self.mark(target, output, effects)
        elif at.late or self._is_written(output) or not self._policies.delays(memory.size(output)):
            memory.save(output, target, effects)
        elif self._is_asked(target):
            memory.use(output)
            self.delayed[target, output] = None
        elif at.free or self._policies.fan_in_clustering:
            self._ask(target, output, effects)
        else:
            self._hold(target, output, at, effects)

    def mark(self, target: TaskId, output: TaskId, effects: list[Effect]) -> None:
        """Mark a fan-in for an output that is small or saved."""
        saved = output in self._memory.saved
        inline, fetched = ((), (output,)) if saved else ((output,), ())
        producers = self._part.shared[target]
        effects.append(Mark(target, None, producers, inline, fetched, output))
        self.marking[target, output] = ()
        self._memory.use(output)

    def saved(self, output: TaskId, effects: list[Effect], unneeded: list[TaskId]) -> None:
        """An output that may be held can be fetched: nobody needs to wait for it."""
        for target, held in list(self.delayed):
            if held == output:
                del self.delayed[target, output]
                self.mark(target, output, effects)
                self._memory.used(output, unneeded)

    def answered(
        self, event: Marked, at: Moment, effects: list[Effect], unneeded: list[TaskId]
    ) -> None:
        """A mark was answered; who claims the task has taken it by now."""
        group = self.marking.pop((event.task, event.producer))
        come = [output for target, output in self.delayed if target == event.task]
        if event.claimed:  # by marks that an earlier start of the worker had set, too
            for output in come:
                del self.delayed[event.task, output]
                self._memory.used(output, unneeded)
        for output in group if event.refused else ():
            if come:
                self._memory.use(output)
                self.delayed[event.task, output] = None
            else:
                self._hold(event.task, output, at, effects)
        if come and event.refused:
            self._ask_held(event.task, come[0], effects, unneeded)
        for output in group or (event.producer,):
            self._memory.used(output, unneeded)

    def ask_again(self, effects: list[Effect], unneeded: list[TaskId]) -> None:
        """The worker has nothing else to do: ask for all that is held without a forecast."""
        if self._policies.forecast is None:
            for target, output in list(self.delayed):
                if not self._is_asked(target):
                    self._ask_held(target, output, effects, unneeded)

    def fall_due(self, output: TaskId, effects: list[Effect], unneeded: list[TaskId]) -> None:
        """An output has been held for long enough."""
        self._overdue.add(output)
        for target, held in list(self.delayed):
            if held == output and not self._is_asked(target):
                self._ask_held(target, held, effects, unneeded)

    def write_all(self, effects: list[Effect], unneeded: list[TaskId]) -> None:
        """The worker is about to leave: hold nothing."""
        for target, output in self.delayed:
            self._memory.save(output, target, effects)
            self._memory.used(output, unneeded)
        self.delayed.clear()

    def _ask(self, target: TaskId, output: TaskId, effects: list[Effect]) -> None:
        """Have a mark set if it is the last, with those of all that is held for the same task."""
        others = [held for waiting, held in self.delayed if waiting == target and held != output]
        for held in others:
            del self.delayed[target, held]
        group = (output, *others)
        self._memory.use(output)
        self.marking[target, output] = group
        producers = self._part.shared[target]
        effects.append(Mark(target, None, producers, (), (), output, held=group))

    def _ask_held(
        self, target: TaskId, output: TaskId, effects: list[Effect], unneeded: list[TaskId]
    ) -> None:
        del self.delayed[target, output]
        self._ask(target, output, effects)
        self._memory.used(output, unneeded)

    def _hold(self, target: TaskId, output: TaskId, at: Moment, effects: list[Effect]) -> None:
        """Keep an output for a task that isn't ready, or save it if that isn't worth it."""
        memory = self._memory
        if output in memory.saved:
            self.mark(target, output, effects)
            return
        seconds = None
        if not (at.late or self._is_written(output) or output in self._overdue):
            seconds = self._policies.hold_seconds(
                memory.size(output),
                busy=at.busy,
                wait=self._wait(target, output) - at.now,
                left=at.left,
            )
        if seconds is None:
            memory.save(output, target, effects)
            return
        memory.use(output)
        self.delayed[target, output] = None
        if seconds != float("inf"):
            effects.append(SetTimer(f"{HOLD} {output}", seconds))

    def _is_asked(self, target: TaskId) -> bool:
        """Whether an answer is awaited to whether something is the last that a task waits for."""
        return any([group and target == asked for (asked, _), group in self.marking.items()])

    def _is_written(self, output: TaskId) -> bool:
        """Whether an output is saved anyway."""
        return output in self._memory.saving or output in self._part.sinks

    def _wait(self, target: TaskId, output: TaskId) -> float:
        """When the other inputs of a task are predicted to be there."""
        forecast = self._policies.forecast
        if forecast is None:
            return 0.0
        others = [source for source in self._part.shared[target] if source != output]
        return max([forecast.ends.get(TaskId(source), 0.0) for source in others], default=0.0)
