"""`Stage`: a stage of a deployed farm; `StageSpec`: what the user wants of it.

1. A stage reports everything that happens to its `FarmModel`, under a lock, with the time since the
   farm was opened.
2. The user may say how long a task is expected to take, as a number or as a function of its input.
   Otherwise the stage expects what recent tasks took.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from shoal.errors import UsageError
from shoal.farm.model import Autoscaler, Deadline, FarmModel, Limits, Observation
from shoal.farm.orders import QueueOrder
from shoal.types import Resources

_USUAL_RESPONSE = 1.5 / 8
"""The response time to assume before any task is completed, as a fraction of the time between two
decisions. The value is the farm paper's."""
_LEARNING_RATE = 0.1
"""The weight of the latest task in the time that a task is expected to take."""


@dataclass(frozen=True, slots=True)
class StageSpec:
    """What the user wants of a stage."""

    function: Callable[[Any], Any]
    limits: Limits
    workers: int
    """How many workers it starts with."""
    resources: Resources
    order: QueueOrder
    deadline: Deadline | None = None
    autoscaler: Autoscaler | None = None
    expected: float | Callable[[Any], float] | None = None
    """How many seconds a task takes; None: as long as recent tasks took."""
    every: float = 8.0
    """Seconds between two decisions of the autoscaler, and the window of what it observes."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"A farm's worker must be a function, not {self.function!r}.")
        if not self.every > 0:
            raise UsageError(f"every={self.every!r}: give the seconds between two decisions.")


class Stage:
    """A stage of a deployed farm; safe to use from several threads."""

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
        """Guards the attributes below, and the model."""
        self._arrived: dict[str, float] = {}
        """When each task arrived."""
        self._due: dict[str, float] = {}
        self._absent = spec.workers
        """Workers that the model counts from the beginning, and that haven't entered yet."""
        self._entered: set[str] = set()
        self._usual_seconds: float | None = None
        """How long recent tasks took."""
        self.waiting = self.busy = 0
        """Tasks in the queue, and workers with a task, when the farm was last renewed."""

    def expected(self, value: Any) -> float:
        """How many seconds a task is expected to take."""
        known = self.spec.expected
        if callable(known):
            return float(known(value))
        return known if known is not None else self._usual_seconds or 0.0

    def arrived(self, task: str, due: float = inf) -> None:
        """A task was put into the stage's queue."""
        with self._lock:
            self.model.arrived()
            self._arrived[task], self._due[task] = self._now(), due

    def completed(self, task: str, seconds: float | None = None) -> float:
        """A task left the stage; returns when it was due.

        Args:
            task: Its id.
            seconds: How long it took; None: it was given up.
        """
        with self._lock:
            arrived, due = self._arrived.pop(task, 0.0), self._due.pop(task, inf)
            if seconds is None:
                self.model.completed(self._now(), arrived, -inf)
                return due
            self.model.completed(self._now(), arrived, due)
            usual = seconds if self._usual_seconds is None else self._usual_seconds
            self._usual_seconds = usual + _LEARNING_RATE * (seconds - usual)
            return due

    def entered(self, worker: str) -> None:
        """A worker started, or restarted."""
        with self._lock:
            if worker in self._entered:
                return
            self._entered.add(worker)
            if self._absent:
                self._absent -= 1
            else:
                self.model.started(self._now())

    def left(self, worker: str) -> bool:
        """A worker left; returns whether it was dismissed."""
        with self._lock:
            there = worker in self._entered
            self._entered.discard(worker)
            if not self.model.leaving:
                self._absent += there  # its replacement changes nothing for the model
                return False
            if there or self._absent:
                self._absent -= not there
                self.model.left(self._now())
            else:
                self.model.never_started()
            return True

    def ask(self, change: int) -> int:
        """Ask for a change of the number of workers; returns what the limits allow."""
        with self._lock:
            return self.model.ask(change)

    def observe(self) -> Observation:
        """What an autoscaler observes now."""
        with self._lock:
            self.model.settle(self._now())
            return self.model.observe(self._now(), self.waiting, self.busy)

    @property
    def team(self) -> int:
        """How many workers there will be once all changes are carried out."""
        with self._lock:
            model = self.model
            return model.workers + model.starting - model.leaving

    @property
    def present(self) -> int:
        """Workers that have entered and not left."""
        with self._lock:
            return len(self._entered)
