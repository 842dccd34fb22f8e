"""`GatewaySupervisor`: looks after the workers of a gateway's runs.

1. One thread does all the work, so that the gateway never waits for a store. It wakes up when a
   worker ends, and checks the leases of every run three times in the shortest lease.
2. What happens to a worker that ended is up to the restart policy
   (`execution/restart_policy.py`). If the policy gives up, or the store refuses the restart because
   the same cause came up too often, the client gets a message.
3. A run that has ended is released, by its client or at the next check. So is a run whose store
   stays out of reach. The workers of a farm that has ended are cancelled: its owner may be dead,
   and can't do it.
4. Detached runs, which have no client, are saved in files. A gateway that starts again resumes
   them.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from msgspec.structs import replace as with_fields

from shoal.errors import RunOver, ShoalError, StoreRefused, StoreUnavailable
from shoal.execution import restart_policy
from shoal.execution.restart_policy import GiveUp, Restart, WorkerEnded
from shoal.platform.detached_runs import DetachedRuns
from shoal.platform.invocation import Invocation, RunContext, Start, kind_of
from shoal.storage.base import Claim, Store
from shoal.storage.letters import MemoryGrown, WorkerLost
from shoal.storage.sharded import open_store
from shoal.types import Loss, LossReason, RunId, WorkerId

log = logging.getLogger(__name__)

_IDLE_SECONDS = 20.0
"""Seconds between two checks while there are no runs."""

Alive = Callable[[], Mapping[RunId, Sequence[tuple[WorkerId, int]]]]


class GatewaySupervisor:
    """Looks after the runs whose workers a gateway starts; safe to use from several threads."""

    def __init__(
        self,
        alive: Alive,
        invoke: Callable[[RunContext, Sequence[Start]], None],
        cancel: Callable[[RunId], None],
    ) -> None:
        """Begin without any runs.

        Args:
            alive: Names the starts of workers that run or wait for a sandbox, by run.
            invoke: Starts workers.
            cancel: Stops a run's workers.
        """
        self._alive = alive
        self._invoke = invoke
        self._cancel = cancel
        self._runs: dict[RunId, RunContext] = {}
        """What the workers of each run have in common."""
        self._detached: DetachedRuns | None = None
        self._failing_since: dict[RunId, float] = {}
        """Since when a run could not be looked after."""
        self._losses: deque[tuple[Invocation, Loss, int]] = deque()
        self._stores: dict[str, Store] = {}
        self._changed = threading.Condition()
        self._interval = _IDLE_SECONDS
        """Seconds between two checks of the leases."""
        self._deciding = False
        """Losses are being dealt with."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="shoal-supervisor", daemon=True)
        self._thread.start()  # now: an interpreter that is shutting down refuses new threads

    def supervise(self, context: RunContext) -> None:
        """Look after a run from now on."""
        with self._changed:
            if context.run not in self._runs:
                self._save(context)
            self._runs[context.run] = context
            if context.settings.lease / 3 < self._interval:
                self._interval = context.settings.lease / 3
                self._changed.notify_all()

    def _save(self, context: RunContext) -> None:
        if context.detached and self._detached is not None:
            self._detached.save(context)

    def resume(self, detached: DetachedRuns) -> None:
        """Resume the saved detached runs, and save those that are to come."""
        with self._changed:
            self._detached = detached
            for context in self._runs.values():
                self._save(context)
        saved = [context for context in detached.load() if context.run not in self._runs]
        if saved:
            log.info("resuming %d detached runs", len(saved))
        for context in saved:
            self.supervise(context)

    def context_of(self, run: RunId) -> RunContext | None:
        """What the workers of a run have in common; None if it isn't looked after."""
        with self._changed:
            return self._runs.get(run)

    def release(self, run: RunId) -> None:
        """Stop looking after a run."""
        with self._changed:
            self._failing_since.pop(run, None)
            if self._runs.pop(run, None) is not None and self._detached is not None:
                self._detached.delete(run)

    def lost(self, invocation: Invocation, loss: Loss, memory_limit_mb: int) -> None:
        """A worker ended before it was done.

        Args:
            invocation: What it was started with.
            loss: What the gateway saw.
            memory_limit_mb: The most memory that a worker can have.
        """
        with self._changed:
            self._losses.append((invocation, loss, memory_limit_mb))
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until all losses so far are dealt with: afterwards the process may be frozen."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._losses or self._deciding))

    def close(self) -> None:
        """Stop, and wait until the thread has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._disconnect()
        self._thread.join()
        self._disconnect()  # from stores that the thread opened in the meantime

    def _disconnect(self) -> None:
        for store in list(self._stores.values()):
            store.disconnect()

    def _run(self) -> None:
        checked = time.monotonic()
        while True:
            with self._changed:
                leases = [context.settings.lease for context in self._runs.values()]
                interval = self._interval = min(leases) / 3 if leases else _IDLE_SECONDS
                wait = max(0.0, checked + interval - time.monotonic())
                self._sleep(wait)
                if self._closed:
                    return
                losses = list(self._losses)
                self._losses.clear()
                self._deciding = bool(losses)
            for lost, loss, limit_mb in losses:
                self._guard(lost.context, partial(self._on_loss, lost, loss, limit_mb))
            self._decided()
            if time.monotonic() - checked >= interval:
                checked = time.monotonic()
                self._check_leases()

    def _decided(self) -> None:
        with self._changed:
            if self._deciding:
                self._deciding = False
                self._changed.notify_all()

    def _sleep(self, seconds: float) -> None:
        """Sleep until a worker is lost, or a run joins that has to be checked more often."""
        interval = self._interval
        self._changed.wait_for(
            lambda: self._losses or self._closed or self._interval < interval, seconds
        )

    def _check_leases(self) -> None:
        alive = self._alive()
        with self._changed:
            contexts = list(self._runs.values())
        for context in contexts:
            self._guard(context, partial(self._supervise_run, context, alive.get(context.run, ())))
        self._drop_unused_stores()

    def _drop_unused_stores(self) -> None:
        """Disconnect from stores that no run uses any more."""
        with self._changed:
            used = {context.store for context in self._runs.values()}
        for url in self._stores.keys() - used:
            self._drop_store(url)

    def _guard(self, context: RunContext, action: Callable[[], None]) -> None:
        """Do something for a run, and release the run if that is no longer possible."""
        try:
            action()
            self._failing_since.pop(context.run, None)
        except RunOver:
            self.release(context.run)
            if context.farm:
                self._cancel(context.run)
        except StoreUnavailable as error:
            self._drop_store(context.store)
            seconds = self._failing_seconds(context.run, error)
            grace_period = restart_policy.STORE_GRACE_PERIOD
            if isinstance(restart_policy.while_unreachable(seconds, grace_period), GiveUp):
                del self._failing_since[context.run]
                self.release(context.run)
        except ShoalError as error:
            self._failing_seconds(context.run, error)
        except Exception:  # the thread's outermost edge: a corrupt run must not harm the others
            log.exception("cannot supervise run %s", context.run)
            self.release(context.run)

    def _failing_seconds(self, run: RunId, error: ShoalError) -> float:
        """For how long a run could not be looked after; the first failure is logged.

        When the gateway is closed, its connections to stores are, too: that is no failure.
        """
        now = time.monotonic()
        if run not in self._failing_since:
            self._failing_since[run] = now
            if not self._closed:
                log.warning("cannot supervise run %s: %s", run, error)
        return now - self._failing_since[run]

    def _drop_store(self, url: str) -> None:
        store = self._stores.pop(url, None)
        if store is not None:
            store.disconnect()

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = open_store(url, known=True)
        return self._stores[url]

    def _supervise_run(self, context: RunContext, alive: Sequence[tuple[WorkerId, int]]) -> None:
        """Renew the leases of workers that are alive, and restart those whose leases expired."""
        store = self._store(context.store)
        claims = store.supervise(context.run, alive)
        if claims:
            log.info("run %s: restarting %d workers", context.run, len(claims))
            now = store.clock(context.run).now()
            self._invoke(context, [Start.claimed(claim, now) for claim in claims])

    def _on_loss(self, lost: Invocation, loss: Loss, memory_limit_mb: int) -> None:
        """Restart a worker that ended, or tell the client why not."""
        ended = WorkerEnded(lost.worker, loss, lost.start.cpus, memory_limit_mb)
        decision = restart_policy.after_end(ended)
        if isinstance(decision, GiveUp):
            self._report(lost, loss)
            return
        try:
            claim = self._claim(lost, decision)
        except RunOver:
            return  # a later start is running; if the run has ended, the next check finds out
        except StoreRefused as error:  # its memory is full, but a letter gets through
            detail = "".join(traceback.format_exception_only(error))
            self._report(lost, replace(loss, reason=LossReason.ERROR, detail=detail))
            return
        if claim is None:
            self._report(lost, loss)
            return
        log.info("run %s: restarting worker %s (%s)", lost.run, lost.worker, loss.reason)
        if decision.resources is not None:
            grown = MemoryGrown(lost.worker, loss.running, decision.resources.memory_mb)
            self._store(lost.context.store).post(lost.run, grown)
        now = self._store(lost.context.store).clock(lost.run).now()
        start = Start.claimed(claim, now, inputs=lost.start.inputs)
        self._invoke(lost.context, [with_fields(start, part=lost.start.part)])

    def _claim(self, lost: Invocation, restart: Restart) -> Claim | None:
        """Claim the next start of a worker; None if the same cause came up too often."""
        kind = kind_of(restart.resources) if restart.resources is not None else ""
        return self._store(lost.context.store).restart(
            lost.run, lost.worker, lost.epoch, restart.cause, kind
        )

    def _report(self, lost: Invocation, loss: Loss) -> None:
        """Tell the client that a worker is lost for good."""
        self._store(lost.context.store).post(lost.run, WorkerLost(lost.worker, loss))
