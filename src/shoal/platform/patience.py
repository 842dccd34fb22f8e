"""`Patience`: bearing with a platform that is away, for a while.

Who looks after workers loses nothing by a platform that is away: those that couldn't be started
count as lost, and are started anew later. If it stays away, the error comes out after all; at once,
if it is there and refuses the token.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from shoal.errors import GatewayUnavailable, TokenRefused
from shoal.platform.base import Platform
from shoal.types import RunId

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
        except TokenRefused:
            raise
        except GatewayUnavailable:
            now = time.monotonic()
            if self._unheard is not None and now - self._unheard > PATIENCE:
                raise
            self._unheard = self._unheard or now

    def answered(self, platform: Platform, run: RunId) -> bool:
        """Whether the platform is there; starts that are claimed while it isn't are used up."""
        with self.bearing():
            platform.active(run)
            return True
        return False
