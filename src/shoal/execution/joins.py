"""`Joins`: how a flexible worker passes its outputs to fan-ins.

1. An output is marked in the store for each fan-in that takes it. A small output travels with the
   mark; a large one is saved first.
2. With delayed I/O an output isn't saved at first. The store is asked to set its mark only if it is
   the last one, together with the marks of other outputs that are held here for the same task. If
   so, the task belongs to this worker, and nothing was written. If not, nothing is marked, and
   policies decide how long the output is held. Outputs that are made for the same task in the
   meantime wait for the answer; after a refusal all of them are asked for together.
3. Held outputs are asked for again when the worker has nothing else to do or their time is up. If
   that is refused too, they are saved and marked. A worker that is about to leave holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.execution.effects import Effect, Mark, SetTimer
from shoal.execution.events import Marked
from shoal.execution.memory import Memory
from shoal.execution.plan import FlexiblePart
from shoal.execution.timers import HoldTimer
from shoal.types import TaskId


@dataclass(frozen=True, slots=True)
class Moment:
    """The situation of a worker, as far as it matters for held outputs."""

    now: float
    """Seconds since the run's start."""
    left: float | None
    """Seconds until its time limit; None: it has none."""
    busy: bool
    """It has tasks to run."""
    free: bool
    """It would begin a task at once."""
    late: bool
    """It is about to leave."""


class Joins:
    """The marks of one flexible worker, and the outputs that it holds for fan-ins."""

    def __init__(self, part: FlexiblePart, memory: Memory) -> None:
        self.marking: dict[tuple[TaskId, TaskId], tuple[TaskId, ...]] = {}
        """Marks that aren't answered yet: the task, and the upstream task whose mark it is. The
        value is the group of held outputs if the mark is only to be set as the last one, else
        empty. All of these outputs are in memory."""
        self.delayed: dict[tuple[TaskId, TaskId], None] = {}
        """Held outputs: a fan-in that isn't ready, and an unsaved output that it takes."""
        self._overdue: set[TaskId] = set()
        """Outputs whose time is up: they aren't held again."""
        self._part = part
        self._policies = part.policies
        self._memory = memory

    def pass_on(self, output: TaskId, target: TaskId, at: Moment, effects: list[Effect]) -> None:
        """Mark, save or hold an output in memory that a fan-in takes."""
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
        producers = self._part.upstream[target]
        effects.append(Mark(target, None, producers, inline, fetched, output))
        self.marking[target, output] = ()
        self._memory.use(output)

    def saved(self, output: TaskId, effects: list[Effect]) -> None:
        """Mark the fan-ins for which a saved output was held."""
        for target, held in list(self.delayed):
            if held == output:
                del self.delayed[target, output]
                self.mark(target, output, effects)
                self._memory.used(output)

    def answered(self, event: Marked, at: Moment, effects: list[Effect]) -> None:
        """Handle the answer to a mark, after the task was taken on if the answer gives it away."""
        group = self.marking.pop((event.task, event.producer))
        come = [output for target, output in self.delayed if target == event.task]
        if event.claimed:  # possibly by marks of an earlier start of the worker
            for output in come:
                del self.delayed[event.task, output]
                self._memory.used(output)
        for output in group if event.refused else ():
            if come:
                self._memory.use(output)
                self.delayed[event.task, output] = None
            else:
                self._hold(event.task, output, at, effects)
        if come and event.refused:
            self._ask_held(event.task, come[0], effects)
        for output in group or (event.producer,):
            self._memory.used(output)

    def ask_again(self, effects: list[Effect]) -> None:
        """Without a forecast, ask for all held outputs: the worker has nothing else to do."""
        if self._policies.forecast is None:
            for target, output in list(self.delayed):
                if not self._is_asked(target):
                    self._ask_held(target, output, effects)

    def fall_due(self, output: TaskId, effects: list[Effect]) -> None:
        """Ask for an output whose time is up, and don't hold it again."""
        self._overdue.add(output)
        for target, held in list(self.delayed):
            if held == output and not self._is_asked(target):
                self._ask_held(target, held, effects)

    def write_all(self, effects: list[Effect]) -> None:
        """Save all held outputs: the worker is about to leave."""
        for target, output in self.delayed:
            self._memory.save(output, target, effects)
            self._memory.used(output)
        self.delayed.clear()

    def _ask(self, target: TaskId, output: TaskId, effects: list[Effect]) -> None:
        """Ask for a mark as the last one, together with all outputs held for the same task."""
        others = [held for waiting, held in self.delayed if waiting == target and held != output]
        for held in others:
            del self.delayed[target, held]
        group = (output, *others)
        self._memory.use(output)
        self.marking[target, output] = group
        producers = self._part.upstream[target]
        effects.append(Mark(target, None, producers, (), (), output, held=group))

    def _ask_held(self, target: TaskId, output: TaskId, effects: list[Effect]) -> None:
        del self.delayed[target, output]
        self._ask(target, output, effects)
        self._memory.used(output)

    def _hold(self, target: TaskId, output: TaskId, at: Moment, effects: list[Effect]) -> None:
        """Hold an output for a task that isn't ready, or save it if that isn't worth it."""
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
            effects.append(SetTimer(HoldTimer(output), seconds))

    def _is_asked(self, target: TaskId) -> bool:
        """Whether the store has been asked if a mark is the last one of a task."""
        return any([group and target == asked for (asked, _), group in self.marking.items()])

    def _is_written(self, output: TaskId) -> bool:
        """Whether an output is saved for another reason."""
        return output in self._memory.saving or output in self._part.sinks

    def _wait(self, target: TaskId, output: TaskId) -> float:
        """When the other inputs of a task are predicted to be available."""
        forecast = self._policies.forecast
        if forecast is None:
            return 0.0
        others = [source for source in self._part.upstream[target] if source != output]
        return max([forecast.ends.get(source, 0.0) for source in others], default=0.0)
