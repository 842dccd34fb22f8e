"""Time as an interface: real time passes, virtual time jumps.

Time is float seconds. `RealClock` counts seconds since the epoch and never jumps. By default it
tells the time of this process. Times that several processes compare come from `Store.clock`.
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


_WALL_AHEAD = time.time() - time.monotonic()
"""How far the wall clock was ahead of the monotonic clock when the process started."""


class RealClock:
    """The monotonic clock, advanced by a fixed number of seconds."""

    __slots__ = ("_ahead",)

    def __init__(self, ahead: float = _WALL_AHEAD) -> None:
        """Make a clock that is `ahead` seconds ahead of the monotonic clock."""
        self._ahead = ahead

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._ahead + time.monotonic()


class VirtualClock:
    """A clock that jumps to the next callback; those due at the same time run in call order."""

    def __init__(self) -> None:
        self._now = 0.0
        self._count = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback` when the clock reaches `when`; at once if that has passed."""
        self._count += 1
        heapq.heappush(self._due, (max(when, self._now), self._count, callback))

    @property
    def count(self) -> int:
        """The number of callbacks so far."""
        return self._count

    @property
    def pending(self) -> bool:
        """Whether any callback is left."""
        return bool(self._due)

    def run(self) -> None:
        """Jump from callback to callback until none is left."""
        while self._due:
            self._now, _, callback = heapq.heappop(self._due)
            callback()
