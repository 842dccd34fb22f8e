"""`Retries`: which tasks of a worker have failed, how often, and which wait for a retry."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from shoal.execution.effects import SetTimer
from shoal.execution.timers import RetryTimer
from shoal.types import TaskId

FIRST_RETRY = 0.1
"""Seconds before the first retry. Each further pause is twice as long, plus or minus half."""


def retry_pause(task: TaskId, tried: int) -> float:
    """Seconds before a task is retried; jitter keeps tasks apart that failed together."""
    jitter = crc32(f"{task} {tried}".encode()) / 2**32
    return FIRST_RETRY * 2.0**tried * (0.5 + jitter)


class Retries:
    """The failures and retries of one worker's tasks."""

    def __init__(self, allowed: Mapping[TaskId, int]) -> None:
        self.pausing: set[TaskId] = set()
        """Tasks that wait for a retry; their inputs stay in memory."""
        self._allowed = allowed
        self._tried: dict[TaskId, int] = {}

    def failed(self, task: TaskId, *, final: bool) -> SetTimer | None:
        """Note a failure; the timer until the retry, or None if there is none."""
        tried = self._tried.get(task, 0)
        if final or tried >= self._allowed.get(task, 0):
            return None
        self._tried[task] = tried + 1
        self.pausing.add(task)
        return SetTimer(RetryTimer(task), retry_pause(task, tried))

    def resumed(self, task: TaskId) -> bool:
        """End the pause of a task; whether it was waiting for a retry."""
        waited = task in self.pausing
        self.pausing.discard(task)
        return waited
