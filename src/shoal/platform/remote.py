"""`RemotePlatform`: makes a platform of any engine.

1. On an engine whose jobs stay, starts of workers wait on the board for a job (`job_starter.py`).
   On any other engine, each start is a call of the engine's function (`calls.py`). If the function
   can call itself, many starts travel in a few calls, whose jobs start the others. Starts that a
   job can't make, or not at once, it leaves on the board, and the client makes them (`relay.py`).
2. The client watches over the workers as a gateway does (`supervisor.py`). So does every job for
   the runs it works for, so a run goes on without its client.
3. A cancelled run is written on the board, where jobs find it. A job that doesn't end its worker
   then is killed, if the engine can.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from shoal.errors import StoreError
from shoal.execution.pool import WarmPool
from shoal.platform.base import LogLine
from shoal.platform.calls import Calls
from shoal.platform.engine import Engine
from shoal.platform.events import Deployment, Work, groups, sealed
from shoal.platform.invocation import INLINE_INPUTS, Invocation, RunContext, Start
from shoal.platform.job import board_of, log_lines, pushed, waiting_starts
from shoal.platform.job_starter import JobStarter
from shoal.platform.relay import Relay
from shoal.platform.supervisor import GatewaySupervisor
from shoal.storage.job_board import JobRecord
from shoal.types import Loss, Resources, RunId, WorkerId

_CANCEL_SECONDS = 5.0
_KILL_SECONDS = 2.0
"""How long a job may take to end the worker of a cancelled run."""
_LOOK_SECONDS = 0.05
_SILENT_SECONDS = 10.0
"""Seconds of silence after which a function's job is lost."""
_CALLS = 16
"""Calls of an engine's function at a time."""
_ENCODED = 2
"""How many times as large an event is as what it carries, at most."""


class RemotePlatform:
    """Runs workers as jobs of an engine."""

    def __init__(self, engine: Engine, deployment: Deployment) -> None:
        """Connect to the board of a deployment."""
        self._engine = engine
        self._deployment = deployment
        facts = engine.facts
        self.memory_mb = facts.memory_mb
        self.cpus = facts.cpus
        self.memory_steps = facts.memory_steps
        self.prices: str | None = facts.prices or "none"
        self.capacity: int | None = facts.capacity
        self.default_workers: int | None = facts.capacity
        self.idle_seconds = facts.idle_seconds if facts.stays else None
        payload = facts.payload_nbytes
        limit = INLINE_INPUTS if payload is None else min(INLINE_INPUTS, payload // _ENCODED)
        self.inline_nbytes: int | None = limit
        self.queue_seconds = facts.queue_seconds
        self.function_seconds = facts.seconds
        self._board = board_of(deployment, stays=facts.stays, known=False)
        waiting = board_of(deployment, stays=facts.stays)
        self._starter = JobStarter(engine, deployment, waiting, self._lost)
        self._relay: Relay | None = None
        self._under_way = Calls(engine, self._on_failed_call)
        self._supervisor = GatewaySupervisor(self._alive, self.send, self.cancel)
        self._contexts: dict[RunId, RunContext] = {}
        """The runs whose workers this client has started."""
        self._calls = ThreadPoolExecutor(_CALLS, "shoal-calls")
        self._called: dict[RunId, float] = {}
        """When the engine's function was last called for a run."""
        self._lock = threading.Lock()

    def probed(self, nonce: str) -> str | None:
        """None: jobs may be on any machine."""
        return None

    def check_environment(self) -> None:
        """Do nothing: workers compare their environment with the client's before they begin."""

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers of a run, at once or when a job is free."""
        with self._lock:
            self._contexts[context.run] = context
            if self._relay is None and not self._engine.facts.stays:
                board = board_of(self._deployment, stays=False)
                self._relay = Relay(board, self._deployment, self.send)
        self._supervisor.supervise(context)
        self.send(context, starts)

    def fan_out(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start many workers of a run in the background."""
        self.invoke(context, starts)

    def send(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers, without looking after their run."""
        if self._engine.facts.stays:
            self._board.push(pushed(context, starts, self._deployment))
            self._starter.wake()
            return
        at_once = groups(starts, _CALLS) if self._engine.facts.nests else [(s,) for s in starts]
        calls = [self._calls.submit(self._call, context, group) for group in at_once]
        for call in calls:
            call.result()
        self._called[context.run] = time.monotonic()

    def _call(self, context: RunContext, starts: Sequence[Start]) -> None:
        event = sealed(Work(context=context, starts=tuple(starts)), self._deployment)
        most = self._engine.facts.payload_nbytes
        if most is not None and len(event) > most and len(starts) > 1:
            for half in groups(starts, 2):
                self._call(context, half)
            return
        handle = self._engine.start(event, starts[0].resources)
        self._under_way.add(handle, context, tuple(starts))

    def settle(self) -> None:
        """Leave calls that can't be sent at once to the client: this process may be frozen."""
        for context, starts in self._under_way.withdraw_unsent():
            self._board.push(pushed(context, starts, self._deployment))

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> None:
        """Have jobs ready."""
        memory_mb, cpus = resources.memory_mb, resources.cpu_share
        nothing = Start(worker=WorkerId(""), epoch=0, memory_mb=memory_mb, cpus=cpus)
        self.send(context, [nothing] * count)

    def cancel(self, run: RunId) -> None:
        """Have jobs end the run's workers; none is left afterwards, as far as the engine can."""
        self._supervisor.release(run)
        with self._lock:
            self._contexts.pop(run, None)
            self._called.pop(run, None)
        self._board.cancel(run)
        self._under_way.kill(run, sent=False)
        begin = time.monotonic()
        killed = False
        while self.active(run):
            waited = time.monotonic() - begin
            if waited > _CANCEL_SECONDS:
                return
            if waited > _KILL_SECONDS and not killed:
                self._starter.kill(run)
                self._under_way.kill(run, sent=True)
                killed = True
            time.sleep(_LOOK_SECONDS)

    def running(self, run: RunId) -> Sequence[int]:
        """The numbers of the tasks that the run's workers are executing."""
        queued = len(waiting_starts(self._board, self._deployment).get(run, ()))
        at_work = self._at_work(run)
        coming = max(0, self._under_way.of(run) - len(at_work))
        called = self._called.get(run, float("-inf"))
        if not at_work and time.monotonic() - called < self._engine.facts.queue_seconds:
            coming = max(1, coming)  # it may wait in the engine, unseen
        return [-1] * (queued + coming) + [number for each in at_work for number in each.running]

    def active(self, run: RunId) -> bool:
        """Whether a worker of the run is running or waits for a job."""
        return bool(self._at_work(run)) or bool(self._under_way.of(run))

    def _at_work(self, run: RunId) -> list[JobRecord]:
        found = [record for record in self._board.jobs().values() if record.run == run]
        if not found or self._engine.facts.stays:
            return found
        late = self._board.now() - _SILENT_SECONDS  # nobody removes what a lost instance wrote
        return [record for record in found if record.at > late]

    def _alive(self) -> dict[RunId, list[tuple[WorkerId, int]]]:
        """The starts that wait for a job: those at work are looked after by their jobs."""
        found = self._under_way.alive()
        with contextlib.suppress(StoreError):  # then nothing is known of those that wait
            for run, starts in waiting_starts(self._board, self._deployment).items():
                found.setdefault(run, []).extend(starts)
        return found

    def _on_failed_call(self, lost: Invocation, loss: Loss) -> None:
        self._supervisor.lost(lost, loss, self.memory_mb or loss.memory_mb)

    def _lost(self, run: RunId, worker: WorkerId, epoch: int, loss: Loss) -> None:
        with self._lock:
            context = self._contexts.get(run)
        if context is None:
            return
        memory_mb = loss.memory_mb
        start = Start(worker=worker, epoch=epoch, memory_mb=memory_mb, cpus=1.0)
        invocation = Invocation(context=context, start=start)
        self._supervisor.lost(invocation, loss, self.memory_mb or memory_mb)

    def pool(self, session: str) -> WarmPool[Resources] | None:
        """The jobs that are idle now; None if only the engine knows."""
        if not self._engine.facts.stays:
            return None
        pool: WarmPool[Resources] = WarmPool(self._engine.facts.capacity)
        idle = [record.kind for record in self._board.jobs().values() if not record.run]
        ready = [pool.acquire(resources_of(kind), 0.0) for kind in idle]
        for acquired in filter(None, ready):
            pool.release(acquired.sandbox, 0.0)
        return pool

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """What the run's user code has printed."""
        return log_lines(self._board, run)

    def close(self) -> None:
        """Stop looking after jobs; they end by themselves when they have nothing to do."""
        self._starter.close()
        if self._relay is not None:
            self._relay.close()
        self._under_way.close()
        self._supervisor.close()
        self._calls.shutdown(cancel_futures=True)
        self._engine.close()
        self._board.disconnect()


def resources_of(kind: str) -> Resources:
    """The resources that a kind of job stands for."""
    memory_mb, cpus = kind.split()
    follows = float(cpus) == Resources(int(memory_mb)).cpu_share
    return Resources(int(memory_mb), None if follows else float(cpus))
