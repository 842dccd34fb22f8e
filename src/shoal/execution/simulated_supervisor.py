"""`SimulatedSupervisor`: finds the lost workers of a simulated run, and restarts them.

It puts together what real supervisors use: leases and losses (`lease_model.py`) say who is lost and
who was lost too often, and the restart policy (`restart_policy.py`) says what is next.

1. The gateway sees a process end, and asks the policy at once. Nobody sees an invocation that is
   lost, or a worker that vanishes with its gateway: then the lease has to expire.
2. Three checks in each lease renew the leases of starts that are alive, and restart workers whose
   leases have expired.
3. A worker that is given up ends the simulation with an error.
4. Checks end when nothing else is left to happen, and no lease of a lost worker is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.clock import VirtualClock
from shoal.errors import WorkflowError
from shoal.execution import restart_policy
from shoal.execution.lease_model import Leases, Losses
from shoal.execution.restart_policy import GiveUp, WorkerEnded
from shoal.execution.simulated_worker import Faults, SimulatedWorker
from shoal.types import Loss, LossReason, WorkerId


class SimulatedSupervisor:
    """Gateway, client and store of a simulated run, as far as lost workers are concerned."""

    def __init__(
        self,
        clock: VirtualClock,
        workers: Mapping[WorkerId, SimulatedWorker],
        restart: Callable[[SimulatedWorker], None],
        faults: Faults | None,
    ) -> None:
        """Begin with no leases.

        Args:
            clock: Tells the time.
            workers: The workers of the run, also those that are to come.
            restart: Claims the next start of a worker, and invokes it.
            faults: What goes wrong; None: nothing does, so nobody checks the leases.
        """
        self._leases = Leases()
        self._clock = clock
        self._workers = workers
        self._restart = restart
        if faults is not None:
            self._leases = Leases(faults.lease, faults.waiting)
            self._losses = Losses(faults.restarts)
            self._limit_mb = faults.memory_limit_mb
            self._interval = faults.lease / 3
            self._after(self._interval, self._check)

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now() + seconds, callback)

    def _check(self) -> None:
        """Renew the leases of starts that are alive, and restart the workers that are lost."""
        now = self._clock.now()
        for name, worker in self._workers.items():
            if worker.alive and name in self._leases:
                self._leases.renew(name, now)
        for name in self._leases.expired(now):
            self._count(name, Loss(LossReason.VANISHED), name)
            self._restart(self._workers[name])
        if self._clock.pending or any(name in self._leases for name in self._lost()):
            self._after(self._interval, self._check)

    def _lost(self) -> list[WorkerId]:
        return [name for name, worker in self._workers.items() if not worker.alive]

    def launched(self, worker: SimulatedWorker) -> None:
        """The client has claimed the first start of a worker, and has yet to invoke it."""
        self._leases.grant(worker.part.worker)

    def claimed(self, worker: SimulatedWorker) -> None:
        """A start of a worker was claimed."""
        self._leases.begin(worker.part.worker, self._clock.now())

    def heard_from(self, worker: SimulatedWorker) -> None:
        """The store heard from a worker."""
        self._leases.renew(worker.part.worker, self._clock.now())

    def left(self, worker: SimulatedWorker) -> None:
        """A worker has parked or finished."""
        worker.alive = False
        self._leases.end(worker.part.worker)

    def ended(self, worker: SimulatedWorker, loss: Loss) -> None:
        """The gateway sees a worker end before it is done."""
        part, epoch = worker.part, worker.epoch
        ended = WorkerEnded(part.worker, loss, part.resources.cpu_share, self._limit_mb)
        decision = restart_policy.after_end(ended)
        if isinstance(decision, GiveUp):
            raise self._given_up(part.worker, loss)
        self._count(decision.cause, loss, part.worker)
        if decision.resources is not None:
            worker.grow(decision.resources)

        def restart() -> None:
            if worker.accepts(epoch):
                self._restart(worker)

        self._after(0.0, restart)

    def _count(self, cause: str, loss: Loss, worker: WorkerId) -> None:
        if not self._losses.add(cause):
            raise self._given_up(worker, loss)

    def _given_up(self, worker: WorkerId, loss: Loss) -> WorkflowError:
        return WorkflowError(f"Worker {worker} is given up: {loss.reason}.")
