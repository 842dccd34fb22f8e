"""Define `ModelPredictive`, an autoscaler that carries out a plan made on the farm's simulator.

1. It is always in one *state*. With the phase clock, the state is how many tasks have arrived.
   Without it, the state is the arrival rate: smoothed, and since the last decision.
2. The plan has the best change for each state and number of workers. `predictive_plan` makes it
   from recorded streams. A decision only looks it up.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from shoal.farm.arrays import NDArray
from shoal.farm.learned import Trained
from shoal.farm.model import Observation

PROGRESS = 10
"""How many arrivals a state with the phase clock spans."""
MOST_PROGRESS = 150
"""The last state with the phase clock: all later arrivals."""
SMOOTHED_EDGES = tuple(half / 2 for half in range(2, 17))
LATEST_EDGES = (2.7, 4.2, 5.5, 6.7)
"""Bins of arrivals per second, smoothed and since the last decision."""
MOST_WORKERS = 40
"""The plan's last column: so many workers or more."""
_SMOOTHING = 0.3


class States:
    """Follows the state of a stream from the arrivals."""

    def __init__(self, phase_clock: bool) -> None:
        self._clock = phase_clock
        self.count = MOST_PROGRESS + 1
        if not phase_clock:
            self.count = (len(SMOOTHED_EDGES) + 1) * (len(LATEST_EDGES) + 1)
        self.reset()

    def reset(self) -> None:
        """Begin a new stream."""
        self._smoothed = 0.0

    def next(self, arrived: float, rate: float) -> int:
        """Return the state after a control step.

        Args:
            arrived: How many tasks have arrived so far; ignored without the phase clock.
            rate: Arrivals per second in this step.
        """
        known = self._smoothed or rate  # at the start nothing has arrived yet
        self._smoothed = known + _SMOOTHING * (rate - known)
        if self._clock:
            return min(int(arrived) // PROGRESS, MOST_PROGRESS)
        row = bisect(SMOOTHED_EDGES, self._smoothed)
        return row * (len(LATEST_EDGES) + 1) + bisect(LATEST_EDGES, rate)

    def end(self, state: int) -> int | None:
        """Return the state after a stream; without the clock, its end is never foreseen."""
        return None if self._clock else state


class ModelPredictive(Trained):
    """Takes the change that is best for the rest of the stream, as far as it can be foreseen."""

    kind = "predictive"

    def __init__(self, arrays: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
        super().__init__(arrays, about)
        self._states = States(bool(about.get("phase_clock", True)))

    @classmethod
    def _resource(cls, order: str, phase_clock: bool, workload: str) -> Traversable:
        """With the phase clock there is a plan for each workload, otherwise one for both."""
        name = f"{cls.kind}-{order}-{f'clock-{workload}' if phase_clock else 'blind'}.npz"
        return files("shoal.farm") / "policies" / name

    @property
    def plan(self) -> NDArray[Any]:
        """The change for each state and number of workers."""
        return self.arrays["plan"]

    def reset(self) -> None:
        """Clear the state for a new stream."""
        self._states.reset()

    def decide(self, observation: Iterable[float]) -> int:
        """Return the plan's change."""
        seen = Observation.of(observation)
        arrived = seen.collected + seen.collecting + seen.waiting + seen.busy
        state = self._states.next(arrived, seen.arrival_rate)
        planned = min(max(round(seen.workers + seen.changing), 0), MOST_WORKERS)
        return int(self.plan[state, planned])
