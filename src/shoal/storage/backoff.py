"""`Backoff` and `Outage`: for how long, and when, to try again what a server didn't answer.

1. The second try follows at once, since a connection that was only dropped can be made anew. The
   pauses then double up to a second, with jitter: the clients of a server that is back again
   don't come all at the same moment.
2. The time is bounded from the first failure on, for all threads of a client together: who comes
   later than that tries once.
3. A pause can be ended, and with it the trying.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from shoal.errors import StoreInterrupted, StoreUnavailable
from shoal.storage.resp import Address

_SHORTEST = 0.02
_LONGEST = 1.0
_FORGOTTEN = 5.0
"""Seconds without a failure after which the next one is the first of another outage."""


class Outage:
    """Since when a server hasn't answered a client; its threads share it."""

    def __init__(self) -> None:
        self.begun = 0.0
        self._latest: float | None = None

    def noticed(self) -> None:
        """Something failed."""
        now = time.monotonic()
        if not self.lasts:
            self.begun = now
        self._latest = now

    def ended(self) -> None:
        """Something worked."""
        self._latest = None

    @property
    def lasts(self) -> bool:
        """Whether something failed a moment ago, and nothing has worked since."""
        latest = self._latest
        return latest is not None and time.monotonic() - latest < _FORGOTTEN


class Backoff:
    """The pauses between the tries of one operation."""

    def __init__(
        self, address: Address, outage: Outage, seconds: float, wait: Callable[[float], bool]
    ) -> None:
        """Try for so many seconds; `wait` lets time pass, and says whether the trying is over."""
        self._address = address
        self._outage = outage
        self._seconds = seconds
        self._wait = wait
        self._pause = 0.0

    def pause(self, error: StoreInterrupted) -> bool:
        """Wait before the next try; False if somebody has ended it.

        Raises:
            StoreUnavailable: The time is over.
        """
        self._outage.noticed()
        tried = time.monotonic() - self._outage.begun
        if tried >= self._seconds:
            raise StoreUnavailable(
                f"The store at {self._address} has not answered for {tried:.1f} s "
                f"(reconnect_seconds is {self._address.reconnect_seconds:g}): {error}"
            ) from error
        pause = min(self._pause * random.uniform(0.5, 1.0), self._seconds - tried)
        self._pause = min(max(_SHORTEST, 2 * self._pause), _LONGEST)
        return not self._wait(pause)
