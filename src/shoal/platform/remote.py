"""`RemotePlatform`: makes a platform of any engine.

1. On an engine whose jobs stay, starts of workers wait on the board for a job (`job_starter.py`).
   On any other engine, each start is a call of the engine's function (`calls.py`). If the function
   can call itself, many starts travel in a few calls, whose jobs start the others. Starts that a
   job can't make, or not at once, it leaves on the board, and the client makes them (`relay.py`).
2. The client watches over the workers as a gateway does (`supervisor.py`). So does every job for
   the runs it works for, so a run goes on without its client.
3. A cancelled run is written on the board, where jobs find it, and its starts are taken away. A job
   that doesn't end its worker then is killed, if the engine can.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from shoal.errors import PlatformError, StoreError
from shoal.execution.pool import WarmPool
from shoal.platform.base import LogLine
from shoal.platform.calls import Calls
from shoal.platform.engine import Ended, Engine
from shoal.platform.environment import ANY, Expected
from shoal.platform.events import Deployment, Work, groups, opened, sealed
from shoal.platform.invocation import (
    INLINE_INPUTS,
    Invocation,
    RunContext,
    Start,
    resources_of,
)
from shoal.platform.job import board_of, log_lines, pushed, waiting_starts
from shoal.platform.job_starter import JobStarter, loss_of
from shoal.platform.relay import Relay
from shoal.platform.supervisor import GatewaySupervisor
from shoal.storage.job_board import JobRecord
from shoal.types import Loss, LossReason, Resources, RunId, WorkerId

_CANCEL_SECONDS = 5.0
_KILL_SECONDS = 2.0
"""How long a job may take to end the worker of a cancelled run."""
_LOOK_SECONDS = 0.05
_SEND_SECONDS = 5.0
"""How long to wait for calls to be sent when the client closes."""
_CALLS = 16
"""Calls of an engine's function at a time."""
_ENCODED = 2
"""How many times as large an event is as what it carries, at most."""


class RemotePlatform:
    """Runs workers as jobs of an engine."""

    def __init__(self, engine: Engine, deployment: Deployment, entry: str) -> None:
        """Connect to the board of a deployment.

        Args:
            engine: What runs jobs.
            deployment: What its jobs share with this client.
            entry: `module:function` that their sandboxes call with each message.
        """
        self._engine = engine
        self._deployment = deployment
        self._entry = entry
        self.expected: Expected = getattr(engine, "expected", ANY)
        """The environment that its workers were deployed with."""
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
        self.function_seconds = facts.worker_seconds
        self._board = board_of(deployment, stays=facts.stays, known=False)
        waiting = board_of(deployment, stays=facts.stays)
        self._supervisor = GatewaySupervisor(self._alive, self.send, self.cancel)
        own = self._supervisor.context_of
        self._starter = JobStarter(engine, deployment, entry, waiting, self._lost, own)
        self._relay: Relay | None = None
        self._under_way = Calls(engine, self._on_failed_call)
        self._calls = ThreadPoolExecutor(_CALLS, "shoal-calls")
        self._called: dict[RunId, float] = {}
        """When the engine's function was last called for a run."""
        self._lock = threading.Lock()

    def probed(self, nonce: str) -> str | None:
        """None: jobs may be on any machine."""
        return None

    def sees_folders(self, nonce: str) -> bool:
        """False, for the same reason."""
        return False

    def check_environment(self) -> None:
        """Do nothing: workers compare their environment with the client's before they begin."""

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers of a run, at once or when a job is free."""
        self.supervise(context)
        self.send(context, starts)

    def supervise(self, context: RunContext) -> None:
        """Look after a run's workers, which another client may have started."""
        if self._supervisor.context_of(context.run) is None:
            self._board.revive(context.run)  # it may have been cancelled, and is resumed now
        self._supervisor.supervise(context)
        if self._engine.facts.stays:
            self._starter.wake()
            return
        with self._lock:
            if self._relay is None:
                board = board_of(self._deployment, stays=False)
                self._relay = Relay(board, self._deployment, self.send)

    def fan_out(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start many workers of a run in the background."""
        self.invoke(context, starts)

    def send(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers, without looking after their run."""
        if not starts:
            return
        if self._engine.facts.stays:
            self._board.push(pushed(context, starts, self._deployment, self._entry))
            self._starter.wake()
            return
        at_once = groups(starts, _CALLS) if self._engine.facts.nests else [(s,) for s in starts]
        calls = [self._calls.submit(self._call, context, group) for group in at_once]
        for call in calls:
            call.result()
        self._called[context.run] = time.monotonic()

    def _call(self, context: RunContext, starts: Sequence[Start]) -> None:
        work = Work(entry=self._entry, context=context, starts=tuple(starts))
        event = sealed(work, self._deployment)
        most = self._engine.facts.payload_nbytes
        if most is not None and len(event) > most and len(starts) > 1:
            for half in groups(starts, 2):
                self._call(context, half)
            return
        handle = self._engine.start(event, starts[0].resources)
        self._under_way.add(handle, context, tuple(starts))

    def settle(self) -> None:
        """Leave calls that can't be sent at once to the client: this process may be frozen."""
        self._leave_unsent()

    def _leave_unsent(self, seconds: float = 0.0) -> None:
        """Leave calls on the board that can't be sent within so many seconds."""
        for context, starts in self._under_way.withdraw_unsent(seconds):
            self._board.push(pushed(context, starts, self._deployment, self._entry))

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        """Have jobs ready, as many as the engine runs; returns how many."""
        count = min(count, self._engine.facts.capacity)
        memory_mb, cpus = resources.memory_mb, resources.cpu_share
        nothing = Start(worker=WorkerId(""), epoch=0, memory_mb=memory_mb, cpus=cpus)
        self.send(context, [nothing] * count)
        return count

    def cancel(self, run: RunId) -> None:
        """Have jobs end the run's workers; none is left afterwards, as far as the engine can."""
        self._supervisor.release(run)
        with self._lock:
            self._called.pop(run, None)
        self._board.cancel(run)
        self._under_way.kill(run, sent=False)
        begin = time.monotonic()
        killed = False
        while self._withdraw(run) or self._at_work(run) or self._under_way.of(run):
            waited = time.monotonic() - begin
            if waited > _CANCEL_SECONDS:
                break
            if waited > _KILL_SECONDS and not killed:
                self._starter.kill(run)
                self._under_way.kill(run, sent=True)
                killed = True
            time.sleep(_LOOK_SECONDS)
        self._starter.end_surplus()

    def _withdraw(self, run: RunId) -> bool:
        """Take a run's starts from the board; whether there were any."""
        withdrawn = 0
        for kind, events in self._board.waiting().items():
            works = [(event, opened(event, self._deployment)) for event in events]
            of_run = [e for e, work in works if isinstance(work, Work) and work.context.run == run]
            withdrawn += len(self._board.withdraw(kind, of_run))
        return bool(withdrawn)

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
        if self._at_work(run) or self._under_way.of(run):
            return True
        return run in waiting_starts(self._board, self._deployment)

    def _at_work(self, run: RunId) -> list[JobRecord]:
        return [record for record in self._board.jobs().values() if record.run == run]

    def _alive(self) -> dict[RunId, list[tuple[WorkerId, int]]]:
        """The starts that wait for a job: those at work are looked after by their jobs."""
        found = self._under_way.alive()
        with contextlib.suppress(StoreError):  # then nothing is known of those that wait
            for run, starts in waiting_starts(self._board, self._deployment).items():
                found.setdefault(run, []).extend(starts)
            self._report_silent()
        return found

    def _report_silent(self) -> None:
        """Report the workers of functions that have died without a word."""
        if self._engine.facts.stays:
            return
        for name, record in self._board.records().silent.items():
            context = self._supervisor.context_of(RunId(record.run))
            if context is not None:
                self._board.remove(name)
                self._lost(*loss_of(context, record, Ended(LossReason.VANISHED)))

    def _on_failed_call(self, lost: Invocation, loss: Loss) -> None:
        """Report a worker whose call has failed, with the tasks that its job has told of."""
        with contextlib.suppress(StoreError):  # then they aren't known
            current, silent = self._board.records()
            for name, record in (current | silent).items():
                if (record.run, record.worker, record.epoch) == (lost.run, lost.worker, lost.epoch):
                    self._board.remove(name)
                    loss = replace(loss, running=record.running)
        self._lost(lost, loss)

    def failed(self, context: RunContext, starts: Sequence[Start], how: Ended) -> None:
        """Restart workers whose call has failed, as the engine says; returns when that is done."""
        for start in starts:
            if start.epoch:
                loss = Loss(how.reason, (), start.memory_mb, start.epoch, how.code, how.detail)
                self._on_failed_call(Invocation(context=context, start=start), loss)
        self._supervisor.settle()

    def _lost(self, lost: Invocation, loss: Loss) -> None:
        self._supervisor.lost(lost, loss, self.memory_mb or loss.memory_mb)

    def pool(self, session: str) -> WarmPool[Resources] | None:
        """The jobs that are idle now, which any session finds; None if only the engine knows."""
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
        with contextlib.suppress(PlatformError, StoreError):
            self._leave_unsent(_SEND_SECONDS)
        self._under_way.close()
        self._supervisor.close()
        self._calls.shutdown(cancel_futures=True)
        self._engine.close()
        self._board.disconnect()
