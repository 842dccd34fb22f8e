"""`Restarter`: starts lost workers again, on a platform that may be out of reach for a while.

1. A worker that couldn't be started counts as lost: its lease expires, and a later attempt starts
   it. So a platform that is out of reach costs time, but no worker.
2. A claimed start that never happens uses up one of the worker's restarts. So the platform must
   answer before the store is asked whose lease has expired.
3. If the platform stays away, its error is raised after all; at once, if it rejects the token.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from shoal.errors import GatewayUnavailable, StoreUnavailable, TokenRefused
from shoal.execution import restart_policy
from shoal.execution.restart_policy import GiveUp
from shoal.platform.base import Platform
from shoal.platform.invocation import RunContext, Start
from shoal.storage.base import Claim, Store
from shoal.types import RunId


class GracePeriod:
    """Tolerates a platform that is out of reach, for as long as the restart policy waits."""

    def __init__(self) -> None:
        self._since: float | None = None
        """Since when the platform has been out of reach."""

    @contextlib.contextmanager
    def tolerated(self) -> Iterator[None]:
        """Suppress the error of a platform that doesn't answer, during the grace period."""
        try:
            yield
            self._since = None
        except GatewayUnavailable as error:
            now = time.monotonic()
            self._since = now if self._since is None else self._since
            decision = restart_policy.while_unreachable(
                now - self._since,
                restart_policy.PLATFORM_GRACE_PERIOD,
                rejected=isinstance(error, TokenRefused),
            )
            if isinstance(decision, GiveUp):
                raise


class Restarter:
    """Starts workers of one run again; safe to use from several threads."""

    def __init__(self, store: Store, platform: Platform, context: RunContext) -> None:
        self._store = store
        self._platform = platform
        self._context = context
        self._run: RunId = context.run
        self.grace_period = GracePeriod()
        """Of everything that is asked of the platform, but for the question whether it answers."""
        self._probing = GracePeriod()

    def starts(self, claims: Sequence[Claim]) -> list[Start]:
        """The starts that carry out these claims."""
        now = self._store.clock(self._run).now()
        return [Start.claimed(claim, now) for claim in claims]

    def start(self, claims: Sequence[Claim]) -> None:
        """Start workers; those that can't be started now count as lost, and start later."""
        with self.grace_period.tolerated():
            self._platform.invoke(self._context, self.starts(claims))

    def restart_lost(self) -> None:
        """Start the workers again whose leases have expired."""
        if not self._platform_answers():
            return
        try:
            claims = self._store.supervise(self._run)
        except StoreUnavailable:
            return  # the reader of the client's mailbox waits for the store, and reports it
        if claims:
            self.start(claims)

    def _platform_answers(self) -> bool:
        with self._probing.tolerated():
            self._platform.active(self._run)
            return True
        return False
