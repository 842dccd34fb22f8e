"""A stage of a deployed farm: what is wanted of it, and what is known of it.

1. What happens to a stage is told to its `FarmModel` under the stage's lock, with the time since
   the farm was opened.
2. How long a task is expected to take is what the user says: a number, or a function of the input.
   Else it is what tasks have taken of late.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from shoal.errors import UsageError
from shoal.farm.model import Autoscaler, Deadline, FarmModel, Limits, Observation
from shoal.farm.orders import Order
from shoal.types import Resources

_USUAL_RESPONSE = 1.5 / 8
"""What is shown as the response while nothing is completed, as a part of the time between two
decisions; the farm paper's."""
_FORGETTING = 0.1
"""How much the latest task counts in the time that tasks are expected to take."""


@dataclass(frozen=True, slots=True)
class StageSpec:
    """What is wanted of a stage."""

    function: Callable[[Any], Any]
    limits: Limits
    workers: int
    """How many it starts with."""
    resources: Resources
    order: Order
    deadline: Deadline | None = None
    autoscaler: Autoscaler | None = None
    expected: float | Callable[[Any], float] | None = None
    """How many seconds a task takes; None: what tasks have taken of late."""
    every: float = 8.0
    """Seconds between the autoscaler's decisions, which see what was completed since the last."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"A farm's worker must be a function, not {self.function!r}.")
        if not self.every > 0:
            raise UsageError(f"every={self.every!r}: give the seconds between two decisions.")


class Stage:
    """A stage at work; safe to use from several threads."""

    def __init__(self, number: int, spec: StageSpec, now: Callable[[], float]) -> None:
        self.number = number
        self.spec = spec
        self.model = FarmModel(
            spec.workers,
            spec.limits,
            window=spec.every,
            usual_response=_USUAL_RESPONSE * spec.every,
        )
        self._now = now
        """Seconds since the farm was opened."""
        self._lock = threading.Lock()
        self._arrived: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._absent = spec.workers
        """Workers that the model counts from the beginning, and that haven't entered yet."""
        self._entered: set[str] = set()
        self._usual: float | None = None
        self.waiting = self.busy = 0
        """As of the latest look."""

    def expected(self, value: Any) -> float:
        """How many seconds a task is expected to take."""
        known = self.spec.expected
        if callable(known):
            return float(known(value))
        return known if known is not None else self._usual or 0.0

    def arrived(self, task: str, due: float = inf) -> None:
        """A task waits for the stage now."""
        with self._lock:
            self.model.arrived()
            self._arrived[task], self._due[task] = self._now(), due

    def completed(self, task: str, seconds: float | None = None) -> float:
        """A task is through, or given up if nobody knows how long it took; when it was due."""
        with self._lock:
            arrived, due = self._arrived.pop(task, 0.0), self._due.pop(task, inf)
            if seconds is None:
                self.model.completed(self._now(), arrived, -inf)
                return due
            self.model.completed(self._now(), arrived, due)
            usual = self._usual
            self._usual = seconds if usual is None else usual + _FORGETTING * (seconds - usual)
            return due

    def entered(self, worker: str) -> None:
        """A worker has begun, or begun again."""
        with self._lock:
            if worker in self._entered:
                return
            self._entered.add(worker)
            if self._absent:
                self._absent -= 1
            else:
                self.model.started(self._now())

    def left(self, worker: str) -> bool:
        """A worker is gone; whether it was to be."""
        with self._lock:
            there = worker in self._entered
            self._entered.discard(worker)
            if not self.model.leaving:
                self._absent += there  # the one that comes in its place changes nothing
                return False
            if there or self._absent:
                self._absent -= not there
                self.model.left(self._now())
            else:
                self.model.never_started()
            return True

    def ask(self, change: int) -> int:
        """Count a wanted change, cut to the limits."""
        with self._lock:
            return self.model.ask(change)

    def observe(self) -> Observation:
        """What is to be seen now."""
        with self._lock:
            self.model.settle(self._now())
            return self.model.observe(self._now(), self.waiting, self.busy)

    @property
    def team(self) -> int:
        """Workers that there are or will be, if nothing else is asked for."""
        with self._lock:
            model = self.model
            return model.workers + model.starting - model.leaving

    @property
    def present(self) -> int:
        """Workers that have entered and not left."""
        with self._lock:
            return len(self._entered)
