"""`StoreClock`: tells a server's time, by which all processes of a run measure.

1. The time is the monotonic clock plus an offset. A clock keeps its offset once it is handed out,
   so a step of the wall clock never changes a duration that one worker measures.
2. To measure the offset, a process asks the server for its time, up to five times. The answer with
   the shortest round trip counts: its offset is wrong by at most half of that round trip.
3. A process measures again when the offset may have become wrong. `_doubtful` lists the signs; to
   look for them takes no round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from shoal.clock import RealClock

_SAMPLES = 5
_SHORT = 0.0002
"""Seconds of a round trip after which no better one is sought."""
_LONG = 0.02
"""Seconds after which to stop asking, because a cold start waits for the answers."""
_AGE = 60.0
"""Seconds after which clocks may have drifted apart: by 3 ms, if they differ by 50 ppm."""
_STEP = 0.01
"""Seconds by which the wall clock may deviate from the monotonic clock. If it deviates more, the
machine was suspended, which stops the monotonic clock, or the wall clock was set."""
_EARLY = 0.01
"""Seconds, plus a round trip, by which a message may seem to arrive before it was sent."""
_LATE = 1.0
"""Seconds that a message may seem to take."""


class Offset(NamedTuple):
    """How far a server's clock is ahead of this machine's monotonic clock."""

    ahead: float
    round_trip: float
    """The seconds that the answer took; the offset is wrong by half of them at most."""


def measured(ask: Callable[[], float]) -> Offset:
    """Measure the offset of a clock; `ask` returns what it shows."""
    samples: list[Offset] = []
    first = time.monotonic()
    while len(samples) < _SAMPLES:
        begin = time.monotonic()
        shown = ask()
        end = time.monotonic()
        samples.append(Offset(shown - (begin + end) / 2, end - begin))
        if end - begin <= _SHORT or end - first >= _LONG:
            break
    return min(samples, key=lambda sample: sample.round_trip)


def local_clock() -> RealClock:
    """Return a clock that tells the time of a server on this machine, by its wall clock."""
    return RealClock(measured(time.time).ahead)


class StoreClock:
    """The clock of a server; safe to use from several threads."""

    def __init__(self, measure: Callable[[], Offset]) -> None:
        """Create a clock that calls `measure` when it is first needed, and when it is in doubt."""
        self._measure = measure
        self._known: tuple[Offset, float, float] | None = None
        """The offset, and the wall and the monotonic time at which it was measured."""

    def current(self, sent: float | None = None) -> RealClock:
        """Return a clock that tells the server's time; measure the offset first if in doubt.

        Args:
            sent: The server's time at which a message was sent that has just arrived, if any. If
                it contradicts the clock, this may be a virtual machine that was paused: both its
                clocks stood still.
        """
        known = self._known
        if known is None or _doubtful(*known, sent):
            known = self._known = (self._measure(), time.time(), time.monotonic())
        return RealClock(known[0].ahead)


def _doubtful(offset: Offset, wall: float, monotonic: float, sent: float | None) -> bool:
    """Return whether an offset that was measured at these times may have become wrong."""
    now = time.monotonic()
    age = now - monotonic
    if age > _AGE or abs(time.time() - wall - age) > _STEP:
        return True
    if sent is None:
        return False
    return not -_EARLY - offset.round_trip <= now + offset.ahead - sent <= _LATE
