"""`Prewarming`: the sandboxes that a worker's tasks warm up for others.

When a task begins for the first time, each of its sandboxes is warmed up after its delay, or when
the worker leaves, whichever is earlier. Reactions order more.
"""

from __future__ import annotations

from shoal.execution.effects import Effect, SetTimer, WarmUp
from shoal.execution.plan import PlannedPart, Prewarm
from shoal.execution.timers import WarmUpTimer
from shoal.types import TaskId


class Prewarming:
    """The sandboxes that one worker still has to warm up."""

    def __init__(self, part: PlannedPart) -> None:
        self._to_begin = dict(part.prewarms)
        """Sandboxes of tasks that haven't begun."""
        self.timed: dict[int, WarmUp] = {}
        """Warm-ups whose timers are running, by the numbers of the timers."""
        self._timers = 0

    def begin(self, task: TaskId, effects: list[Effect]) -> None:
        """Warm up the sandboxes of a task that begins, or set timers for them."""
        for prewarm in self._to_begin.pop(task, ()):
            self.add(prewarm, effects)

    def add(self, prewarm: Prewarm, effects: list[Effect]) -> None:
        """Warm up sandboxes, now or after a delay."""
        warm_up = WarmUp(prewarm.resources, prewarm.count)
        if prewarm.delay > 0:
            self._timers += 1
            self.timed[self._timers] = warm_up
            effects.append(SetTimer(WarmUpTimer(self._timers), prewarm.delay))
        else:
            effects.append(warm_up)

    def fire(self, number: int, effects: list[Effect]) -> None:
        """Warm up the sandboxes whose timer has fired."""
        if number in self.timed:
            effects.append(self.timed.pop(number))

    def leave(self, effects: list[Effect]) -> None:
        """Warm up the rest now: the worker leaves before their timers fire."""
        effects.extend(self.timed.values())
        self.timed.clear()
