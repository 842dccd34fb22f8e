"""Define `SleepingFarm`, which runs a workload on real workers that sleep.

It has the interface of `SimulatedFarm`, so that the two can be compared, and environment and
autoscalers work with either. To shorten an experiment, time can be compressed: arrivals, processing
times, deadlines and the decision interval are divided by a factor, and observations are scaled
back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Self

from shoal.farm.model import Autoscaler, Deadline, FarmModel, Limits, Observation, nearest
from shoal.farm.orders import QueueOrder
from shoal.farm.streams import Farm
from shoal.farm.workloads import Workload
from shoal.session import Session
from shoal.types import Resources

_START_SECONDS = 60.0
"""How many seconds the first workers may take to start."""


class Decompressed:
    """Shows an autoscaler of a compressed farm times and rates as they would be without it."""

    def __init__(self, autoscaler: Autoscaler, factor: float, actions: Sequence[int]) -> None:
        self._autoscaler = autoscaler
        self._factor = factor
        self._actions = actions
        self.begun = False
        """Whether the stream has begun; before, nothing changes."""

    def reset(self) -> None:
        """Begin a new stream."""
        self._autoscaler.reset()

    def decide(self, observation: Iterable[float]) -> int:
        """Return the action closest to the autoscaler's decision."""
        if not self.begun:
            return 0
        seen = decompressed(Observation.of(observation), self._factor)
        return nearest(self._autoscaler.decide(seen), self._actions)


def decompressed(seen: Observation, factor: float) -> Observation:
    """Return an observation as it would be without the compression of time."""
    return seen._replace(
        mean_response=factor * seen.mean_response,
        max_response=factor * seen.max_response,
        arrival_rate=seen.arrival_rate / factor,
    )


class SleepingFarm:
    """A deployed farm that processes a workload; use it in a `with` block."""

    def __init__(
        self,
        workload: Workload,
        *,
        workers: int = 12,
        limits: Limits | None = None,
        order: QueueOrder | None = None,
        deadline: Deadline | None = None,
        step: float = 8.0,
        factor: float = 1.0,
        autoscaler: Autoscaler | None = None,
        actions: Sequence[int] = (-1, 0, 1),
        session: Session | None = None,
    ) -> None:
        """Describe the farm; all times are uncompressed.

        Args:
            workload: When tasks arrive, and how long each sleeps.
            workers: The initial number of workers.
            limits: The bounds on the number of workers.
            order: The order in which waiting tasks are taken.
            deadline: The rule of the workload's deadlines.
            step: Seconds between decisions.
            factor: The factor by which time is compressed.
            autoscaler: Controls the farm from within, every `step`, as in any farm.
            actions: The changes that the autoscaler may make.
            session: The session to use; default: the one that `compute()` uses.
        """
        limits, due = limits or Limits(), deadline or Deadline()
        self.workload = workload
        self._factor = factor
        self._autoscaler = Decompressed(autoscaler, factor, actions) if autoscaler else None
        self._farm = Farm(
            time.sleep,
            workers=(limits.least, limits.most),
            start=workers,
            resources=Resources(memory_mb=128),
            deadline=Deadline(due.factor, due.least / factor, due.most / factor),
            order=order,
            autoscaler=self._autoscaler,
            expected=float,
            every=step / factor,
            capacity=max(1, len(workload.arrivals)),
            session=session,
        )
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        self._farm.__enter__()
        stage = self._farm.deployed.stages[0]
        deadline = time.monotonic() + _START_SECONDS
        while stage.present < stage.spec.workers and time.monotonic() < deadline:
            time.sleep(0.01)
        self._began = self._until = time.monotonic()
        self.advance(0.0)
        self._paid = self.model.worker_seconds
        if self._autoscaler is not None:
            self._autoscaler.begun = True
        self._feeder = threading.Thread(target=self._feed, name="shoal-workload", daemon=True)
        self._feeder.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        self._feeder.join()
        self._farm.__exit__(kind)

    def _feed(self) -> None:
        for arrival, seconds in zip(
            self.workload.arrivals.tolist(), self.workload.processing.tolist(), strict=True
        ):
            left = self._began + arrival / self._factor - time.monotonic()
            if self._stopped.wait(max(0.0, left)):
                return
            self._farm.submit(seconds / self._factor)

    @property
    def model(self) -> FarmModel:
        """The farm's model, in compressed time."""
        return self._farm.model

    @property
    def finished(self) -> bool:
        """Whether every task is completed."""
        return self.unfinished == 0

    @property
    def unfinished(self) -> int:
        """The number of tasks that are not completed yet."""
        return len(self.workload.arrivals) - self.model.completed_total

    @property
    def mean_workers(self) -> float:
        """The time average of workers since the stream began."""
        seconds = time.monotonic() - self._began
        return (self.model.worker_seconds - self._paid) / seconds if seconds > 0 else 0.0

    def scale_by(self, workers: int) -> int:
        """Request a change in the number of workers; return the change that the limits allow."""
        return self._farm.scale_by(workers)

    def advance(self, seconds: float) -> Observation:
        """Wait, counting from when the last observation was due, then observe the farm."""
        self._until += seconds / self._factor
        time.sleep(max(0.0, self._until - time.monotonic()))
        seen = self._farm.deployed.crew.observe()[0]
        elapsed = self._factor * (time.monotonic() - self._began)
        left = sum(start > elapsed for start in self.workload.phase_starts)
        return decompressed(seen, self._factor)._replace(phases_left=left)

    def wait(self, seconds: float) -> None:
        """Let the farm's own autoscaler work until the stream is finished, or for `seconds`."""
        end = self._began + seconds / self._factor
        while not self.finished and time.monotonic() < end:
            time.sleep(0.01)
        self._farm.deployed.crew.observe()  # settles the cost

    def drain(self, timeout: float = 600.0) -> None:
        """Complete the remaining tasks without further changes, for at most `timeout` seconds."""
        end = time.monotonic() + timeout / self._factor
        while not self.finished and time.monotonic() < end:
            time.sleep(0.01)
