"""Define autoscalers that need no training: fixed, reactive and square-root staffing.

A decision may request any change; the farm limits it to its bounds and its largest step. Each
autoscaler also takes the vectors of the Gymnasium environment, see `Observation.of`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, sqrt

from shoal.errors import UsageError
from shoal.farm.model import Observation


@dataclass(frozen=True, slots=True)
class Fixed:
    """Keeps the number of workers constant."""

    workers: int

    def decide(self, observation: Iterable[float]) -> int:
        """Return the difference to the fixed number of workers."""
        seen = Observation.of(observation)
        return round(self.workers - seen.workers - seen.changing)

    def reset(self) -> None:
        """Do nothing: there is no state."""


@dataclass(frozen=True, slots=True)
class ReactiveAverage:
    """The farm paper's reactive rule, with the mean response as the service time."""

    step: float = 8.0
    """Seconds between decisions, within which the queue should be emptied."""

    def decide(self, observation: Iterable[float]) -> int:
        """Return 1, -1 or 0."""
        seen = Observation.of(observation)
        return _reaction(seen, max(seen.mean_response, 0.1), self.step, share=0.5)

    def reset(self) -> None:
        """Do nothing: there is no state."""


@dataclass(frozen=True, slots=True)
class ReactiveMaximum:
    """The farm paper's reactive rule, with the longest response as the service time."""

    step: float = 8.0
    """Seconds between decisions, within which the queue should be emptied."""

    def decide(self, observation: Iterable[float]) -> int:
        """Return 1, -1 or 0."""
        seen = Observation.of(observation)
        service = max(seen.max_response, seen.mean_response, 0.1)
        return _reaction(seen, service, self.step, share=1.0)

    def reset(self) -> None:
        """Do nothing: there is no state."""


def _reaction(observation: Observation, service: float, step: float, share: float) -> int:
    horizon = max(step, service, 1.0)
    wanted = observation.waiting / horizon * service + observation.arrival_rate * service
    others = max(0.0, observation.busy - (observation.busy > 0))
    busy = min(observation.workers, others) * service * share / horizon
    lacking = max(1.0, wanted) - (observation.workers - busy)
    return (lacking >= 0.5) - (lacking <= -0.5)


class SquareRootStaffing:
    """Provides workers for the offered load plus a margin that grows with its square root.

    The load is the measured arrival rate times the measured service time. Scaling up is immediate.
    Scaling down waits until fewer workers would have been enough for a while, so that it doesn't
    follow noise. A farm above its floor may hold on for more decisions, since rises come in groups.
    """

    def __init__(
        self,
        margin: float = 1.4,
        *,
        floor: int = 1,
        patience: int = 2,
        hold: int = 0,
        backlog: float = 0.3,
        inside: float = 0.0,
    ) -> None:
        """Create the autoscaler.

        Args:
            margin: Workers to add per square root of the load.
            floor: The fewest workers, however low the load is.
            patience: For how many decisions fewer workers must be enough before one is removed.
            hold: For how many decisions the farm must be above its floor before one is removed.
            backlog: Workers to add per waiting task.
            inside: The share of the load estimate, 0 to 1, that comes from the tasks in the farm;
                the rest comes from the arrivals.
        """
        if margin < 0 or floor < 1 or patience < 1 or hold < 0 or not 0 <= inside <= 1:
            raise UsageError(
                f"SquareRootStaffing(margin={margin}, floor={floor}, patience={patience}, "
                f"hold={hold}, inside={inside}): margin and hold must be 0 or more, floor and "
                "patience 1 or more, inside 0 to 1."
            )
        self._margin = margin
        self._floor = floor
        self._patience = patience
        self._hold = hold
        self._backlog = backlog
        self._inside = inside
        self.reset()

    def reset(self) -> None:
        """Clear the state for a new stream."""
        self._service: float | None = None
        self._recent: deque[int] = deque(maxlen=self._patience)
        self._above = 0

    def decide(self, observation: Iterable[float]) -> int:
        """Return the difference to the number of workers that the load needs."""
        seen = Observation.of(observation)
        planned = round(seen.workers + seen.changing)
        wanted = self._wanted(seen)
        self._recent.append(wanted)
        self._above = self._above + 1 if planned > self._floor else 0
        if wanted > planned:
            return wanted - planned
        if len(self._recent) == self._patience and self._above >= self._hold:
            return min(0, max(self._recent) - planned)
        return 0

    def _wanted(self, observation: Observation) -> int:
        arriving = observation.arrival_rate * self._service_time(observation)
        present = observation.busy + observation.waiting
        load = (1 - self._inside) * arriving + self._inside * present
        wanted = load + self._margin * sqrt(load) + self._backlog * observation.waiting
        return max(self._floor, ceil(wanted))

    def _service_time(self, observation: Observation) -> float:
        """Estimate the service time by Little's law: the smoothed response time without waiting."""
        inside = observation.busy + observation.waiting
        if self._service is None:
            self._service = observation.mean_response
        elif inside:
            measured = observation.mean_response * observation.busy / inside
            self._service += 0.2 * (measured - self._service)
        return self._service
