"""Heartbeats during long transfers.

A transfer may take longer than a lease, and a worker sends nothing else meanwhile. So the thread
that transfers bytes sends heartbeats. If the transfer stalls, they stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEAST = 16 * 1024
"""Fewer bytes are no transfer: a thread that only polls sends no heartbeat."""


class Heartbeat:
    """The heartbeat of a thread's transfers."""

    def __init__(self, beat: Callable[[int], None], seconds: float) -> None:
        self._beat = beat
        self._seconds = seconds
        self._nbytes = 0
        self._due = time.monotonic() + seconds

    def moved(self, nbytes: int) -> None:
        """Count bytes that were sent or received; send a heartbeat if one is due."""
        self._nbytes += nbytes
        if self._nbytes >= _LEAST and (now := time.monotonic()) >= self._due:
            self._due = now + self._seconds
            nbytes, self._nbytes = self._nbytes, 0
            self._beat(nbytes)


_current: ContextVar[Heartbeat | None] = ContextVar("shoal.heartbeat", default=None)

current_heartbeat = _current.get
"""Return the heartbeat of this thread, if it has one."""


@contextmanager
def beating(beat: Callable[[int], None], seconds: float) -> Iterator[None]:
    """Send heartbeats while this thread transfers bytes in the block.

    Args:
        beat: Sends one. Gets the number of bytes since the last one; must not raise.
        seconds: The least time between two.
    """
    before = _current.set(Heartbeat(beat, seconds))
    try:
        yield
    finally:
        _current.reset(before)
