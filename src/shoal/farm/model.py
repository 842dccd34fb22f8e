"""`FarmModel`: the state of a farm. Events in, observations out; no I/O, clock or randomness.

1. Two drivers report events, each with the time: `SimulatedFarm` in virtual time, and a deployed
   stage in real time. The model decides what is observed, counted and allowed.
2. `workers` counts the workers that take tasks: not those that are still starting, but those that
   are leaving.
3. The limits hold for the number of workers once all changes are carried out.
4. The cost is the integral of `workers` over time. A task that is never completed was not on time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal.errors import UsageError


class Observation(NamedTuple):
    """What an autoscaler observes at a control step; the first nine fields are Eq. 1's."""

    phases_left: float
    """Phases of the stream still to come: a phase clock. 0: it is masked or unknown."""
    waiting: float
    """Tasks in the queue."""
    collecting: float
    """Results not collected yet."""
    collected: float
    """Results collected so far. 0: the phase clock is masked, and this would be one, too."""
    workers: float
    mean_response: float
    """Seconds from arrival to completion, of the tasks completed in the window."""
    max_response: float
    arrival_rate: float
    """Tasks per second since the last control step."""
    on_time: float
    """The fraction of the tasks completed in the window that met their deadlines; 1 if none."""
    busy: float
    """Tasks being executed."""
    changing: float
    """Workers that are starting, minus those that are leaving."""

    @staticmethod
    def of(seen: Iterable[float]) -> Observation:
        """Return an observation as it is, or make one of a vector of the Gymnasium environment.

        The vector has the fields of Eq. 1, or all fields. Eq. 1 doesn't say how many tasks are
        being executed, which is then estimated by Little's law, nor which changes are under way.
        """
        if isinstance(seen, Observation):
            return seen
        vector = [float(value) for value in seen]
        if len(vector) == len(Observation._fields):
            return Observation(*vector)
        if len(vector) != len(EQUATION_1):
            raise UsageError(
                f"An autoscaler can't read a vector of {len(vector)} numbers: make the environment "
                "with fields=Observation._fields, or with its default fields."
            )
        partial = Observation(*[*vector, 0.0, 0.0])
        busy = partial.arrival_rate * partial.mean_response
        if partial.waiting or busy > partial.workers:
            busy = partial.workers
        return partial._replace(busy=busy)

    def without_clock(self) -> Observation:
        """The same without the fields that tell how far the stream is."""
        return self._replace(phases_left=0.0, collected=0.0)


class Autoscaler(Protocol):
    """Decides how many workers a farm has: an observation in, a change out."""

    def decide(self, observation: Observation) -> int:
        """How many workers to add; negative: how many to dismiss."""
        ...

    def reset(self) -> None:
        """Clear all memory: a new stream begins."""
        ...


class FarmDriver(Protocol):
    """A farm that can be controlled: simulated or deployed."""

    @property
    def model(self) -> FarmModel:
        """The farm's state."""
        ...

    @property
    def finished(self) -> bool:
        """Whether every task of the stream is completed."""
        ...

    @property
    def unfinished(self) -> int:
        """Tasks of the stream not completed yet, as far as is known."""
        ...

    def advance(self, seconds: float) -> Observation:
        """Let time pass, then observe."""
        ...

    def scale_by(self, workers: int) -> int:
        """Ask for a change of the number of workers; returns what the limits allow."""
        ...


EQUATION_1 = Observation._fields[:9]
"""The fields of the farm paper's state."""


def nearest(change: int, actions: Sequence[int]) -> int:
    """The action closest to a wanted change; the smaller of two that are equally close."""
    return min(actions, key=lambda action: (abs(action - change), abs(action)))


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a task is due: after a multiple of the time it is expected to take, within bounds."""

    factor: float = 2.0
    least: float = 0.1
    most: float = 30.0

    def __post_init__(self) -> None:
        if not (self.factor > 0 and 0 <= self.least <= self.most):
            raise UsageError(f"{self}: factor must be above 0, and 0 <= least <= most.")

    def seconds(self, expected: float) -> float:
        """How many seconds after its arrival a task is due that takes `expected` seconds."""
        return min(max(self.factor * expected, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many workers a farm may have."""

    least: int = 1
    most: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(f"workers=({self.least}, {self.most}): give 1 <= least <= most.")


class FarmModel:
    """The workers, the recently completed tasks and the totals of one farm."""

    def __init__(
        self, workers: int, limits: Limits, *, window: float = 8.0, usual_response: float = 1.5
    ) -> None:
        if not limits.least <= workers <= limits.most:
            raise UsageError(
                f"A farm of {limits.least} to {limits.most} workers can't start with {workers}."
            )
        self._limits = limits
        self._window = window
        self._usual_response = usual_response
        self._done: deque[tuple[float, float, bool]] = deque()
        self._arrivals = 0
        self._looked = self._resized = 0.0
        self.workers = workers
        self.starting = self.leaving = 0
        self.most_workers = workers
        self.actions = 0
        self.worker_seconds = 0.0
        self.history: list[tuple[float, int]] = [(0.0, workers)]
        """Each number of workers, and since when."""
        self.completed_total = self.on_time_total = 0

    def ask(self, change: int) -> int:
        """Ask for a change of the number of workers; returns what the limits allow."""
        planned = self.workers + self.starting - self.leaving
        allowed = min(max(planned + change, self._limits.least), self._limits.most) - planned
        if allowed > 0:
            self.starting += allowed
        else:
            self.leaving -= allowed
        self.actions += allowed != 0
        return allowed

    def started(self, now: float) -> None:
        """A worker that was asked for started."""
        self.starting -= 1
        self._resize(now, self.workers + 1)

    def never_started(self) -> None:
        """A worker that was asked for is lost, and counts as the one that was dismissed."""
        self.starting -= 1
        self.leaving -= 1

    def left(self, now: float) -> None:
        """A worker that was dismissed left."""
        self.leaving -= 1
        self._resize(now, self.workers - 1)

    def _resize(self, now: float, workers: int) -> None:
        self.settle(now)
        self.workers = workers
        self.most_workers = max(self.most_workers, workers)
        self.history.append((now, workers))

    def settle(self, now: float) -> None:
        """Count the cost up to `now`."""
        self.worker_seconds += self.workers * (now - self._resized)
        self._resized = now

    def arrived(self) -> None:
        """A task was put into the queue."""
        self._arrivals += 1

    def completed(self, now: float, arrived: float, due: float) -> bool:
        """A task was completed; returns whether it was on time."""
        on_time = now <= due
        self._expire(now)  # even if nobody ever observes
        self._done.append((now, now - arrived, on_time))
        self.completed_total += 1
        self.on_time_total += on_time
        return on_time

    def _expire(self, now: float) -> None:
        """Drop what was completed before the window."""
        while self._done and self._done[0][0] < now - self._window:
            self._done.popleft()

    def observe(
        self, now: float, waiting: int, busy: int, *, collecting: int = 0, phases_left: int = 0
    ) -> Observation:
        """What can be observed at a control step; starts counting arrivals from zero."""
        done = self._done
        self._expire(now)
        since = now - self._looked
        rate = self._arrivals / since if since > 0 else 0.0
        self._looked, self._arrivals = now, 0
        responses = [response for _, response, _ in done] or [self._usual_response]
        return Observation(
            phases_left,
            waiting,
            collecting,
            self.completed_total - collecting,
            self.workers,
            sum(responses) / len(responses),
            max(responses),
            rate,
            sum(on_time for *_, on_time in done) / len(done) if done else 1.0,
            busy,
            self.starting - self.leaving,
        )
