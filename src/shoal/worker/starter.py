"""`Starter`: starts other workers on behalf of one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from shoal.errors import PlatformError
from shoal.platform.base import Platform
from shoal.platform.invocation import NO_INPUTS, RunContext, Start
from shoal.storage.base import Claim
from shoal.types import Resources, WorkerId

log = logging.getLogger(__name__)


class Starter:
    """Asks the platform for workers. If that fails, the run's supervisor starts them later."""

    def __init__(self, platform: Platform, context: RunContext, now: Callable[[], float]) -> None:
        """Start workers of a run; `now` tells the store's time."""
        self._platform = platform
        self._context = context
        self._now = now

    def start(self, claims: Sequence[Claim], given: Mapping[WorkerId, bytes]) -> None:
        """Start the claimed workers, each with what it is given."""
        if not claims:
            return
        now = self._now()
        starts = [Start.claimed(claim, now, inputs=self._carried(given, claim)) for claim in claims]
        try:
            self._platform.invoke(self._context, starts)
        except PlatformError as error:
            log.warning("could not start workers: %s", error)

    def _carried(self, given: Mapping[WorkerId, bytes], claim: Claim) -> bytes | None:
        """What a worker is given, unless it exceeds what a start carries: the store has it, too."""
        inputs, most = given.get(claim.worker), self._platform.inline_nbytes
        return None if inputs is None or (most is not None and len(inputs) > most) else inputs

    def fan_out(self, claims: Sequence[Claim], *, given: bool) -> None:
        """Start many workers in the background; those given something find it in the store."""
        if not claims:
            return
        inputs, now = None if given else NO_INPUTS, self._now()
        starts = [Start.claimed(claim, now, inputs=inputs) for claim in claims]
        try:
            self._platform.fan_out(self._context, starts)
        except PlatformError as error:
            log.warning("could not fan out, starting workers one by one: %s", error)
            self.start(claims, {})

    def warm_up(self, resources: Resources, count: int) -> None:
        """Have idle sandboxes made ready."""
        try:
            self._platform.prewarm(self._context, resources, count)
        except PlatformError as error:
            log.warning("could not warm up a sandbox with %s: %s", resources, error)
