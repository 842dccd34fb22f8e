"""Autoscalers that need no training: fixed, reactive, and staffing by the square root.

A decision may ask for any change; the farm cuts it to its limits, and to its largest step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil, sqrt

from shoal.errors import UsageError
from shoal.farm.model import Observation


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same number of workers."""

    workers: int

    def decide(self, observation: Observation) -> int:
        """What is missing, or too many."""
        return round(self.workers - observation.workers - observation.changing)

    def reset(self) -> None:
        """It remembers nothing."""


@dataclass(frozen=True, slots=True)
class ReactiveAverage:
    """The farm paper's reactive rule, with the mean response as the service time."""

    step: float = 8.0
    """Seconds between decisions: the horizon within which the queue is to be worked off."""

    def decide(self, observation: Observation) -> int:
        """One more, one less, or none."""
        service = max(observation.mean_response, 0.1)
        return _reaction(observation, service, self.step, share=0.5)

    def reset(self) -> None:
        """It remembers nothing."""


@dataclass(frozen=True, slots=True)
class ReactiveMaximum:
    """The farm paper's reactive rule, with the longest response as the service time."""

    step: float = 8.0
    """Seconds between decisions: the horizon within which the queue is to be worked off."""

    def decide(self, observation: Observation) -> int:
        """One more, one less, or none."""
        service = max(observation.max_response, observation.mean_response, 0.1)
        return _reaction(observation, service, self.step, share=1.0)

    def reset(self) -> None:
        """It remembers nothing."""


def _reaction(observation: Observation, service: float, step: float, share: float) -> int:
    horizon = max(step, service, 1.0)
    wanted = observation.waiting / horizon * service + observation.arrival_rate * service
    others = max(0.0, observation.busy - (observation.busy > 0))
    busy = min(observation.workers, others) * service * share / horizon
    lacking = max(1.0, wanted) - (observation.workers - busy)
    return (lacking >= 0.5) - (lacking <= -0.5)


class SquareRootStaffing:
    """Workers for the offered load, and a margin that grows with the load's square root.

    The load is the arrival rate times the service time; both are measured. Up goes at once, down
    only when fewer workers would have been enough for a while, so that noise isn't followed. A
    farm that has left its floor may hold on for some decisions more: a rise rarely comes alone.
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
        """A rule with its settings.

        Args:
            margin: Workers beyond the load, for each square root of the load.
            floor: The fewest workers, however low the load is.
            patience: For how many decisions fewer workers must be enough before one leaves.
            hold: For how many decisions the farm must have been above its floor before one leaves.
            backlog: Workers added for each waiting task.
            inside: The part of the load, 0 to 1, that is taken from the tasks in the farm; the
                rest is taken from the arrivals.
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
        """Forget what was seen: a new stream begins."""
        self._service: float | None = None
        self._recent: deque[int] = deque(maxlen=self._patience)
        self._above = 0

    def decide(self, observation: Observation) -> int:
        """The difference to what the load asks for."""
        planned = round(observation.workers + observation.changing)
        wanted = self._wanted(observation)
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
        """The part of the response that isn't waiting, by Little's law, smoothed."""
        inside = observation.busy + observation.waiting
        if self._service is None:
            self._service = observation.mean_response
        elif inside:
            measured = observation.mean_response * observation.busy / inside
            self._service += 0.2 * (measured - self._service)
        return self._service
