"""`Crew`: the workers of all stages of a farm. It hires, dismisses, counts and replaces them.

1. The restart policy (`execution/restart_policy.py`) decides whether a worker that its gateway gave
   up on is replaced.
2. A worker that leaves by itself, because the platform's time limit is near, is replaced.
3. A platform that is out of reach is tolerated for a while: workers that couldn't be started count
   as lost.
4. Three times in a lease the crew looks for lost workers. Each autoscaler decides as often as its
   stage says.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from shoal.client.farm_backend import FarmBackend
from shoal.errors import PlatformError
from shoal.execution import restart_policy
from shoal.execution.restart_policy import GiveUp
from shoal.farm.model import Observation
from shoal.farm.stage import Stage
from shoal.platform.invocation import Start, kind_of
from shoal.platform.restarter import Restarter
from shoal.storage.farm_queues import FarmStore
from shoal.types import Loss, WorkerId
from shoal.worker.farm_worker import death, stage_of

log = logging.getLogger(__name__)


class Crew:
    """The workers of a farm; safe to use from several threads."""

    def __init__(
        self,
        stages: Sequence[Stage],
        backend: FarmBackend,
        store: FarmStore,
        now: Callable[[], float],
    ) -> None:
        """Begin without any workers.

        Args:
            stages: The stages that they work for.
            backend: The platform, and what workers are started with.
            store: The farm's queues.
            now: Seconds since the farm was opened.
        """
        self._stages = stages
        self._backend = backend
        self._run = backend.context.run
        self._store = store
        self._now = now
        self._lock = threading.Lock()
        """Guards the number of workers that were hired."""
        self._hired = 0
        self._losses = 0
        """Workers lost since a task was last completed."""
        self._restarter = Restarter(store, backend.platform, backend.context)
        self._next_check = 0.0
        """When to look for lost workers."""
        self._next_decisions = [stage.spec.every for stage in stages]
        """When each stage's autoscaler decides."""

    def hire(self, stage: Stage, workers: int) -> None:
        """Start more workers for a stage."""
        with self._lock:
            first = self._hired
            self._hired += workers
        names = [WorkerId(f"{stage.number}:{first + i}") for i in range(workers)]
        resources = stage.spec.resources
        self._store.hire(self._run, dict.fromkeys(names, kind_of(resources)))
        now = self._store.clock(self._run).now()
        starts = [Start.first(name, resources, now) for name in names]
        self._backend.platform.invoke(self._backend.context, starts)

    def scale_by(self, number: int, workers: int) -> int:
        """Change the number of a stage's workers; returns the change that its limits allow."""
        stage = self._stages[number]
        allowed = stage.ask(workers)
        if allowed > 0:
            with self._restarter.grace_period.tolerated():
                self.hire(stage, allowed)
        elif allowed < 0:
            self._store.dismiss(self._run, number, -allowed)
        return allowed

    def dismiss_all(self) -> None:
        """Tell all workers to leave once they have nothing to do."""
        for stage in self._stages:
            self._store.dismiss(self._run, stage.number, stage.team)

    @property
    def present(self) -> int:
        """Workers that have entered and not left."""
        return sum(stage.present for stage in self._stages)

    def stage_of(self, worker: str) -> Stage:
        """The stage that a worker works for."""
        return self._stages[stage_of(worker)]

    def progressed(self) -> None:
        """Tasks were completed, so the lost workers have no cause in common."""
        self._losses = 0

    def left(self, worker: str, *, replaced: bool) -> None:
        """A worker left.

        Args:
            worker: Its name.
            replaced: Whether to hire another one, unless this one was dismissed.
        """
        stage = self.stage_of(worker)
        if not stage.left(worker) and replaced:
            with self._restarter.grace_period.tolerated():
                self.hire(stage, 1)

    def lost(self, worker: WorkerId, loss: Loss) -> None:
        """The gateway gave up on a worker."""
        log.warning("farm %s lost worker %s: %s", self._run, worker, loss.reason)
        self._losses += 1
        if isinstance(restart_policy.after_farm_loss(loss, self._losses), GiveUp):
            final = restart_policy.final_error(loss.detail)
            if final is not None:
                kind, text = final
                raise kind(f"{text} This happened on worker {worker}.")
            raise PlatformError(
                f"Farm {self._run} lost {self._losses} workers in a row, without completing a task "
                f"({loss.reason}: {loss.detail or 'no detail'}). `shoal logs {self._run}` shows "
                "what they printed."
            )
        self._store.bury(self._run, worker, death(worker))
        self.left(worker, replaced=True)

    def observe(self) -> list[Observation]:
        """What can be observed of each stage now."""
        self._renew()
        return [stage.observe() for stage in self._stages]

    def supervise(self) -> float:
        """Do what is due; returns when something is due again."""
        self._renew()
        if self._now() >= self._next_check:
            self._next_check = self._now() + self._backend.context.settings.lease / 3
            self._restarter.restart_lost()
        due = [self._next_check]
        for number, stage in enumerate(self._stages):
            if stage.spec.autoscaler is None:
                continue
            if self._now() >= self._next_decisions[number]:
                self._next_decisions[number] += stage.spec.every
                self.scale_by(number, stage.spec.autoscaler.decide(stage.observe()))
            due.append(self._next_decisions[number])
        return min(due)

    def _renew(self) -> None:
        """Renew the farm's own lease, and note how busy each stage is."""
        found = self._store.renew(self._run, self._backend.ttl, len(self._stages))
        for stage, (waiting, busy) in zip(self._stages, found, strict=True):
            stage.waiting, stage.busy = waiting, busy
