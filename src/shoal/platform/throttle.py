"""`Throttle`: limits the requests a second of each caller, and allows a burst.

It stores one number per caller: when the requests so far would have ended at the permitted rate.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

_MAX_CALLERS = 4096


class Throttle:
    """Tells callers how long to wait; safe to use from several threads."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._interval = 1 / per_second
        self._ahead = burst / per_second
        """Seconds that a caller may be ahead of the rate."""
        self._due: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def delay(self, caller: Hashable, now: float) -> float:
        """Seconds until the caller may ask again; 0: it may now, and this counts as a request."""
        with self._lock:
            due = max(self._due.pop(caller, now), now)
            early = due - now - self._ahead
            self._due[caller] = due if early > 0 else due + self._interval
            if len(self._due) > _MAX_CALLERS:
                self._evict(now)
            return max(0.0, early)

    def _evict(self, now: float) -> None:
        """Drop callers that are within the rate, then those that asked the longest ago."""
        self._due = {caller: due for caller, due in self._due.items() if due > now}
        while len(self._due) > _MAX_CALLERS:
            del self._due[next(iter(self._due))]
