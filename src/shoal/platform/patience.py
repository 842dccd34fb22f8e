"""`Patience`: bearing with a platform that is away, for a while.

Who looks after workers loses nothing by a platform that is away: those that couldn't be started
count as lost, and are started anew later. If it stays away, the error comes out after all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from shoal.errors import GatewayUnavailable

PATIENCE = 60.0
"""Seconds that a platform may be away when workers are to be started anew."""


class Patience:
    """How long somebody has been bearing with it."""

    def __init__(self) -> None:
        self._unheard: float | None = None
        """Since when the platform hasn't been reached."""

    @contextlib.contextmanager
    def bearing(self) -> Iterator[None]:
        """Go on behind what couldn't be said to the platform."""
        try:
            yield
            self._unheard = None
        except GatewayUnavailable:
            now = time.monotonic()
            if self._unheard is not None and now - self._unheard > PATIENCE:
                raise
            self._unheard = self._unheard or now
