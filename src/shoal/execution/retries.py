"""`Retries`: which tasks of a worker have failed, how often, and which wait for their next try."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from shoal.execution.effects import SetTimer
from shoal.types import TaskId

FIRST_RETRY = 0.1
"""Seconds before the first retry; each further pause is twice as long, give or take a half."""

TIMER = "retry"
"""The kind of timer that ends a pause."""


def retry_pause(task: TaskId, tried: int) -> float:
    """Seconds before a task is tried again; tasks that failed together aren't tried together."""
    jitter = crc32(f"{task} {tried}".encode()) / 2**32
    return FIRST_RETRY * 2.0**tried * (0.5 + jitter)


class Retries:
    """Counts tries."""

    def __init__(self, allowed: Mapping[TaskId, int]) -> None:
        self.pausing: set[TaskId] = set()
        """Tasks that wait for their next try."""
        self._allowed = allowed
        self._tried: dict[TaskId, int] = {}

    def failed(self, task: TaskId, *, final: bool) -> SetTimer | None:
        """A task failed; the timer until its next try, or None if it has none."""
        tried = self._tried.get(task, 0)
        if final or tried >= self._allowed.get(task, 0):
            return None
        self._tried[task] = tried + 1
        self.pausing.add(task)
        return SetTimer(f"{TIMER} {task}", retry_pause(task, tried))

    def resumed(self, task: TaskId) -> bool:
        """A pause is over; whether the task was waiting for that."""
        waited = task in self.pausing
        self.pausing.discard(task)
        return waited
