"""`Outage`: since when a server has not answered this process.

An outage starts with the first failure after the server's last reply on any connection of the
process. If no failure has been seen for a while, the next one starts a new outage, since nobody
knows whether the server answered in between.
"""

from __future__ import annotations

import time

_QUIET_SECONDS = 5.0
"""After so many seconds without a failure, the next one starts a new outage."""


class Outage:
    """What this process knows about a server's silence."""

    def __init__(self) -> None:
        self.begun = 0.0
        self.replies = 0
        """The number of replies so far; unchanged means none in between."""
        self._latest: float | None = None

    def noticed(self) -> None:
        """Record a failure."""
        now = time.monotonic()
        if not self.lasts:
            self.begun = now
        self._latest = now

    def ended(self) -> None:
        """Record a reply."""
        self.replies += 1
        self._latest = None

    @property
    def lasts(self) -> bool:
        """Whether there was a failure recently and no reply since."""
        latest = self._latest
        return latest is not None and time.monotonic() - latest < _QUIET_SECONDS


_outages: dict[str, Outage] = {}


def outage_of(server: str) -> Outage:
    """Return the outage of the server at an address."""
    return _outages.setdefault(server, Outage())
