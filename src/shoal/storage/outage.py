"""`Outage`: since when a server hasn't answered anybody of this process.

It begins with the first failure after the last reply, whichever connection had that; all of the
process's connections to a server share it. A failure after a while in which nobody asked anything
is the first of another one: nobody knows what was in between.
"""

from __future__ import annotations

import time

_FORGOTTEN = 5.0
"""Seconds without a failure after which the next one is the first of another outage."""


class Outage:
    """What this process knows of a server's silence."""

    def __init__(self) -> None:
        self.begun = 0.0
        self.replies = 0
        """How many there were: who sees the same number twice knows that there was none."""
        self._latest: float | None = None

    def noticed(self) -> None:
        """Something failed."""
        now = time.monotonic()
        if not self.lasts:
            self.begun = now
        self._latest = now

    def ended(self) -> None:
        """The server answered."""
        self.replies += 1
        self._latest = None

    @property
    def lasts(self) -> bool:
        """Whether something failed a moment ago, and nothing has worked since."""
        latest = self._latest
        return latest is not None and time.monotonic() - latest < _FORGOTTEN


_outages: dict[str, Outage] = {}


def outage_of(server: str) -> Outage:
    """The one of the server at an address."""
    return _outages.setdefault(server, Outage())
