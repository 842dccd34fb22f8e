"""`Prewarming`: the sandboxes that a worker's tasks warm up for others.

When a task begins for the first time its sandboxes are warmed up, each after its delay, or when the
worker leaves if that is earlier.
"""

from __future__ import annotations

from shoal.execution.effects import Effect, SetTimer, WarmUp
from shoal.execution.plan import Part
from shoal.types import TaskId

TIMER = "prewarm"
"""How its timers' names begin."""


class Prewarming:
    """What is still to be warmed up."""

    def __init__(self, part: Part) -> None:
        self._to_begin = dict(part.prewarms)
        """Those of tasks that haven't begun."""
        self.timed: dict[str, WarmUp] = {}
        """Those whose delay isn't over, by their timers' numbers."""
        self._timers = 0

    def begin(self, task: TaskId, effects: list[Effect]) -> None:
        """A task begins."""
        for prewarm in self._to_begin.pop(task, ()):
            warm_up = WarmUp(prewarm.resources, prewarm.count)
            if prewarm.delay > 0:
                self._timers += 1
                self.timed[str(self._timers)] = warm_up
                effects.append(SetTimer(f"{TIMER} {self._timers}", prewarm.delay))
            else:
                effects.append(warm_up)

    def fire(self, number: str, effects: list[Effect]) -> None:
        """A delay is over."""
        if number in self.timed:
            effects.append(self.timed.pop(number))

    def leave(self, effects: list[Effect]) -> None:
        """The worker won't be there when the other delays are over."""
        effects.extend(self.timed.values())
        self.timed.clear()
