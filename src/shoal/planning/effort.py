"""Limit a search by counting its steps, not by watching a clock.

1. A step is an event of a simulation, or something that takes about as long. Steps are converted to
   seconds at a fixed rate, which a busy machine doesn't change. So the same history and limit give
   the same plan, and a limit in seconds is kept approximately.
2. All that simulates with the same `Conditions` is counted together.
"""

from __future__ import annotations

from shoal.workflow import Workflow

STEPS_A_SECOND = 50_000
"""Roughly how many steps a machine takes per second."""
_STEPS_OF_EACH = 2
"""Roughly how many steps a task or an edge takes in a simulation, at most."""


class Effort:
    """The seconds that planning has taken so far, by its steps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, steps: float) -> None:
        """Count steps."""
        self.seconds += steps / STEPS_A_SECOND


class Allowance:
    """A number of seconds that may be spent from now on.

    It is spent when less is left than the longest time between two checks so far, so that the next
    step doesn't exceed it.
    """

    def __init__(self, effort: Effort, seconds: float | None) -> None:
        """Begin to count; None allows any number of seconds."""
        self._effort = effort
        self._looked = effort.seconds
        self._until = None if seconds is None else self._looked + seconds
        self._longest = 0.0

    def skip(self) -> None:
        """Ignore the time since the last check, which is not typical of the next steps."""
        self._looked = self._effort.seconds

    @property
    def spent(self) -> bool:
        """Whether no time is left."""
        now = self._effort.seconds
        self._longest = max(self._longest, now - self._looked)
        self._looked = now
        return self._until is not None and now + self._longest >= self._until


def simulating_seconds(workflow: Workflow) -> float:
    """Estimate the seconds of simulating a plan."""
    edges = sum(map(len, workflow.upstream.values()))
    return (len(workflow) + edges) * _STEPS_OF_EACH / STEPS_A_SECOND
