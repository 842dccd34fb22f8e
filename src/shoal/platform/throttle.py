"""`Throttle`: so many requests a second for each caller, and a burst beyond that.

Of each caller it keeps one number: when the requests so far would have been spread out evenly.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

_MOST_CALLERS = 4096


class Throttle:
    """Says how long a caller has to wait; safe to use from several threads."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._interval = 1 / per_second
        self._ahead = burst / per_second
        """Seconds by which a caller may be early."""
        self._due: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def delay(self, caller: Hashable, now: float) -> float:
        """Seconds until the caller may ask again; 0 if it may now, which counts as asking."""
        with self._lock:
            due = max(self._due.pop(caller, now), now)
            early = due - now - self._ahead
            self._due[caller] = due if early > 0 else due + self._interval
            if len(self._due) > _MOST_CALLERS:
                self._forget(now)
            return max(0.0, early)

    def _forget(self, now: float) -> None:
        """Forget who has caught up, and if need be who asked the longest ago."""
        self._due = {caller: due for caller, due in self._due.items() if due > now}
        while len(self._due) > _MOST_CALLERS:
            del self._due[next(iter(self._due))]
