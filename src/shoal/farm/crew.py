"""`Crew`: the workers of a farm, of all its stages: hired, let go, counted, kept going.

1. A worker that the platform gives up is replaced, up to a point: when many are lost one after the
   other and no task is completed between, something is wrong that another one won't mend.
2. A worker that leaves without having been asked to, because its platform would end it, is
   replaced too.
3. A platform that is away is borne with for a while: who couldn't be started counts as lost.
4. What is due falls at times of its own: the farm is renewed and lost workers are looked for thrice
   in a lease; each autoscaler decides as often as its stage says.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shoal.clock import RealClock
from shoal.errors import PlatformError, StoreUnavailable
from shoal.farm.model import Observation
from shoal.farm.stage import Stage
from shoal.platform.base import Invocation, Platform, kind_of
from shoal.platform.patience import Patience
from shoal.storage.base import Letter
from shoal.storage.queues import FarmStore
from shoal.types import WorkerId
from shoal.worker.farming import death, stage_of

log = logging.getLogger(__name__)

_LOSSES = 10
"""Workers that may be lost for good one after the other, with no task completed between."""
_LEASES = 4
"""A farm is over if its owner hasn't renewed it for so many leases of a worker."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a farm is at work."""

    platform: Platform
    like: Invocation
    """What its workers are invoked with, but for names and resources."""
    restarts: int
    """How often a worker is started anew that ended of the same thing."""
    limit: float | None
    """How long the platform lets a function run."""

    @property
    def ttl(self) -> float:
        """Seconds after which a farm is over that its owner hasn't renewed."""
        return _LEASES * self.like.lease


class Crew:
    """The workers of a farm; safe to use from several threads."""

    def __init__(
        self, stages: Sequence[Stage], place: Place, store: FarmStore, now: Callable[[], float]
    ) -> None:
        self._stages = stages
        self._place = place
        self._run = place.like.run
        self._store = store
        self._now = now
        self._clock = RealClock()
        self._lock = threading.Lock()
        self._hired = self._losses = 0
        self._patience, self._probing = Patience(), Patience()
        self._renewal = 0.0
        self._steps = [stage.spec.every for stage in stages]
        """When each stage's autoscaler decides next."""

    def hire(self, stage: Stage, workers: int) -> None:
        """Have more workers started for a stage."""
        with self._lock:
            first = self._hired
            self._hired += workers
        names = [WorkerId(f"{stage.number}:{first + i}") for i in range(workers)]
        resources = stage.spec.resources
        self._store.hire(self._run, dict.fromkeys(names, kind_of(resources)))
        like = replace(
            self._place.like,
            memory_mb=resources.memory_mb,
            cpus=resources.cpu_share,
            sent=self._clock.now(),
        )
        self._place.platform.invoke([replace(like, worker=name) for name in names])

    def scale_by(self, number: int, workers: int) -> int:
        """Ask for a change of a stage's workers; what the limits leave of it."""
        stage = self._stages[number]
        allowed = stage.ask(workers)
        if allowed > 0:
            with self._patience.bearing():
                self.hire(stage, allowed)
        elif allowed < 0:
            self._store.dismiss(self._run, number, -allowed)
        return allowed

    def let_go(self) -> None:
        """Tell all workers to leave once they have nothing to do."""
        for stage in self._stages:
            self._store.dismiss(self._run, stage.number, stage.team)

    @property
    def present(self) -> int:
        """Workers that have entered and not left."""
        return sum(stage.present for stage in self._stages)

    def stage_of(self, worker: str) -> Stage:
        """The stage that a worker's name begins with."""
        return self._stages[stage_of(worker)]

    def completed(self) -> None:
        """Tasks were completed: whatever workers were lost of, it isn't all of them."""
        self._losses = 0

    def left(self, worker: str, *, replaced: bool) -> None:
        """A worker is gone; if it wasn't asked to be, another one comes, unless nobody should."""
        stage = self.stage_of(worker)
        if not stage.left(worker) and replaced:
            with self._patience.bearing():
                self.hire(stage, 1)

    def lost(self, letter: Letter) -> None:
        """The platform has given up a worker."""
        worker, facts = WorkerId(letter.name), json.loads(bytes(letter.parts[0]))
        log.warning("farm %s: worker %s is lost: %s", self._run, worker, facts["reason"])
        self._losses += 1
        if self._losses > _LOSSES:
            raise PlatformError(
                f"{self._losses} workers of farm {self._run} were lost one after the other "
                f"({facts['reason']}: {facts.get('detail', 'no detail')}), and no task was "
                f"completed between. `shoal logs {self._run}` shows what they printed."
            )
        self._store.bury(self._run, worker, death(worker))
        self.left(worker, replaced=True)

    def look(self) -> list[Observation]:
        """What is to be seen of each stage now."""
        self._renew()
        return [stage.observe() for stage in self._stages]

    def attend(self) -> float:
        """Do what is due; when something is due again."""
        self._renew()
        if self._now() >= self._renewal:
            self._renewal = self._now() + self._place.like.lease / 3
            self._tend()
        for number, stage in enumerate(self._stages):
            if stage.spec.autoscaler is not None and self._now() >= self._steps[number]:
                self._steps[number] += stage.spec.every
                self.scale_by(number, stage.spec.autoscaler.decide(stage.observe()))
        scaled = [step for step, s in zip(self._steps, self._stages, strict=True)
                  if s.spec.autoscaler is not None]  # fmt: skip
        return min([self._renewal, *scaled])

    def _renew(self) -> None:
        found = self._store.renew(self._run, self._place.ttl, len(self._stages))
        for stage, (waiting, busy) in zip(self._stages, found, strict=True):
            stage.waiting, stage.busy = waiting, busy

    def _tend(self) -> None:
        """Start workers anew whose lease is over; a store that is away is asked again later."""
        if not self._probing.answered(self._place.platform, self._run):
            return
        with contextlib.suppress(StoreUnavailable):
            claims, now = self._store.tend(self._run), self._clock.now()
            if claims:
                with self._patience.bearing():
                    starts = [self._place.like.of(claim, now) for claim in claims]
                    self._place.platform.invoke(starts)
