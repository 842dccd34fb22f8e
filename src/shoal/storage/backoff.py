"""`Backoff`: when to retry an operation that a server didn't answer, and for how long.

1. The first retry is immediate, since a dropped connection can simply be replaced. Pauses then
   double up to a second, with jitter, so that clients don't all return at once after an outage.
2. The time limit applies to the server's outage, which all threads and clients of the process
   share. An operation that starts after the limit is tried once.
3. A server that answers others but keeps failing the same operation will never carry it out. For
   this case the limit applies to the operation itself.
4. A pause can be ended early, and the retries with it.
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
"""An operation is tried at least this often while its server answers others."""


class Backoff:
    """The pauses between retries of one operation."""

    def __init__(self, address: Address, seconds: float, wait: Callable[[float], bool]) -> None:
        """Retry for so many seconds; `wait` sleeps, and returns True to end the retries."""
        self._address = address
        self._seconds = seconds
        self._wait = wait
        self._pause = 0.0
        self._begun: float | None = None
        """When the operation first failed."""
        self._since = 0.0
        """When it first failed after the server's last reply to this process."""
        self._heard: tuple[str, int] | None = None
        """Which server failed, and how many replies it had sent by then."""
        self._failures = 0

    def pause(self, error: StoreInterrupted) -> bool:
        """Wait before the next try; return False if the retries were ended.

        Raises:
            StoreUnavailable: The time limit is exceeded.
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
        """Return how long the server has been silent, and how long the operation has been tried."""
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
