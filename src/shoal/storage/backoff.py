"""`Backoff`: for how long, and when, to try again what a server didn't answer.

1. The second try follows at once, since a connection that was only dropped can be made anew. The
   pauses then double up to a second, with jitter: the clients of a server that is back again
   don't come all at the same moment.
2. The time is bounded by the server's outage, which all threads and clients of the process share:
   who comes later than that tries once.
3. A server that answers others, and breaks off the same operation again and again, won't carry it
   out: that is bounded by the operation's own time.
4. A pause can be ended, and with it the trying.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from shoal.errors import StoreInterrupted, StoreUnavailable
from shoal.storage.outage import outage_of
from shoal.storage.resp import Address

_SHORTEST = 0.02
_LONGEST = 1.0
_LEAST_TRIES = 6
"""So often an operation is tried at least whose server answers meanwhile."""


class Backoff:
    """The pauses between the tries of one operation."""

    def __init__(self, address: Address, seconds: float, wait: Callable[[float], bool]) -> None:
        """Try for so many seconds; `wait` lets time pass, and says whether the trying is over."""
        self._address = address
        self._seconds = seconds
        self._wait = wait
        self._pause = 0.0
        self._begun: float | None = None
        """When this operation first failed."""
        self._since = 0.0
        """When it first failed after the server's last reply to anybody."""
        self._heard: tuple[str, int] | None = None
        """Which server failed, and how many replies it had given by then."""
        self._failures = 0

    def pause(self, error: StoreInterrupted) -> bool:
        """Wait before the next try; False if somebody has ended it.

        Raises:
            StoreUnavailable: The time is over.
        """
        now = time.monotonic()
        server = error.server or str(self._address)
        silent, tried = self._noticed(server, now)
        if silent >= self._seconds:
            raise self._given_up(f"{server} has not answered for {silent:.1f} s", error)
        if tried >= self._seconds and self._failures >= _LEAST_TRIES:
            tries = f"{self._failures} tries over {tried:.1f} s"
            what = f"{server} answers, but has not carried out the same operation in {tries}"
            raise self._given_up(what, error)
        pause = min(self._pause * random.uniform(0.5, 1.0), self._seconds - silent)
        self._pause = min(max(_SHORTEST, 2 * self._pause), _LONGEST)
        return not self._wait(pause)

    def _noticed(self, server: str, now: float) -> tuple[float, float]:
        """For how long a server that failed has been silent, and this operation been tried."""
        outage = outage_of(server)
        outage.noticed()
        if self._heard != (server, outage.replies):
            self._heard, self._since = (server, outage.replies), now
        self._begun = now if self._begun is None else self._begun
        self._failures += 1
        return now - min(outage.begun, self._since), now - self._begun

    def _given_up(self, what: str, error: StoreInterrupted) -> StoreUnavailable:
        limit = f"reconnect_seconds is {self._address.reconnect_seconds:g}"
        problem = StoreUnavailable(f"The store at {what} ({limit}): {error}")
        problem.__cause__ = error
        return problem
