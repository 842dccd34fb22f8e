"""Time as an interface: the real clock sleeps, the virtual clock jumps.

Seconds as float. `RealClock` counts seconds since the epoch, but never goes backwards within a
process and is the same for all processes of a machine to within microseconds.
"""

import heapq
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Something that tells the time."""

    def now(self) -> float:
        """Seconds since this clock's start."""
        ...


class RealClock:
    """Wall time at the process's start, advanced by the monotonic clock."""

    _offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._offset + time.monotonic()


class VirtualClock:
    """A clock that jumps to the next thing due; ties keep the order of the asking."""

    def __init__(self) -> None:
        self._now = 0.0
        self._count = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback` when the clock reaches `when` (now, if that has passed)."""
        self._count += 1
        heapq.heappush(self._due, (max(when, self._now), self._count, callback))

    def run(self) -> None:
        """Jump from one due callback to the next until none is left."""
        while self._due:
            self._now, _, callback = heapq.heappop(self._due)
            callback()
