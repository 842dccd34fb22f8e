"""Signs of life for as long as bytes move.

A transfer may take longer than a lease, and whoever is in the middle of one says nothing else. So
the thread that moves the bytes gives a sign of life meanwhile; if the transfer stalls, it gives
none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEAST = 16 * 1024
"""Bytes that are a transfer, and not only talk: who says that nothing has come isn't at work."""


class Pulse:
    """The signs of life of what a thread does."""

    def __init__(self, beat: Callable[[int], None], seconds: float) -> None:
        self._beat = beat
        self._seconds = seconds
        self._nbytes = 0
        self._due = time.monotonic() + seconds

    def moved(self, nbytes: int) -> None:
        """Bytes were sent or have come."""
        self._nbytes += nbytes
        if self._nbytes >= _LEAST and (now := time.monotonic()) >= self._due:
            self._due = now + self._seconds
            told, self._nbytes = self._nbytes, 0
            self._beat(told)


_present: ContextVar[Pulse | None] = ContextVar("shoal.pulse", default=None)

present_pulse = _present.get
"""The pulse of whoever moves bytes in this thread, if there is one."""


@contextmanager
def beating(beat: Callable[[int], None], seconds: float) -> Iterator[None]:
    """Bytes that this thread moves in the block are signs of life.

    Args:
        beat: Gives one; is told how many bytes have moved since the last, and must not raise.
        seconds: How much time is between two, at least.
    """
    before = _present.set(Pulse(beat, seconds))
    try:
        yield
    finally:
        _present.reset(before)
