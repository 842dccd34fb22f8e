"""`Tender`: keeps the workers of a gateway's runs going, whatever happens to them.

1. One thread does it all, so that nobody waits for the store: it is woken when a worker ended, and
   looks around by itself as often as the shortest lease asks for.
2. A worker that was killed is started anew, at once. One that ran out of memory gets twice as much,
   up to what the machine has. The store counts what workers end of, and says when it is too often.
   One that crashed or exited did so by itself, and would again: the client is told.
3. Runs that are over are forgotten; so are those whose store can't be reached any more. Workers of
   a farm that is over are ended: its owner may be gone, and can't.
4. Detached runs, for which nobody else waits, are kept in files where a gateway that is started
   again finds them.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.clock import RealClock
from shoal.errors import (
    RunOver,
    ShoalError,
    StoreRefused,
    StoreUnavailable,
)
from shoal.platform.base import Invocation, final_error, kind_of
from shoal.platform.kept import KeptRuns
from shoal.storage.base import Letter, Store
from shoal.storage.sharded import open_store
from shoal.types import Resources, RunId, WorkerId

log = logging.getLogger(__name__)

_PATIENCE = 300.0
"""Seconds after which a run whose store can't be reached is given up."""
_KILLED = frozenset((-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP))
"""How processes end that are ended from outside."""

Alive = Callable[[], Mapping[RunId, Sequence[tuple[WorkerId, int]]]]


class Tender:
    """Tends the runs that a gateway has been asked to do something for."""

    def __init__(
        self,
        alive: Alive,
        invoke: Callable[[Sequence[Invocation]], None],
        cancel: Callable[[RunId], None],
    ) -> None:
        self._alive = alive
        self._invoke = invoke
        self._cancel = cancel
        self._clock = RealClock()
        self._known: dict[RunId, Invocation] = {}
        """An invocation of each run, for others like it."""
        self._kept: KeptRuns | None = None
        self._since: dict[RunId, float] = {}
        """Since when the stores of runs haven't been reached."""
        self._ends: deque[tuple[Invocation, dict[str, Any], int]] = deque()
        self._stores: dict[str, Store] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def know(self, invocations: Sequence[Invocation]) -> None:
        """Tend these runs from now on."""
        with self._changed:
            new = {job.run: job for job in invocations if job.run not in self._known}
            self._keep(new.values())
            self._known.update({job.run: job for job in invocations})
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="shoal-tender", daemon=True)
                self._thread.start()

    def _keep(self, jobs: Iterable[Invocation]) -> None:
        for job in jobs:
            if job.detached and self._kept is not None:
                self._kept.keep(job)

    def remember(self, kept: KeptRuns) -> None:
        """Keep detached runs from now on, and tend those that were kept before."""
        with self._changed:
            self._kept = kept
            self._keep(self._known.values())
        left = [job for job in kept.all() if job.run not in self._known]
        if left:
            log.info("%d runs without a client are gone on with", len(left))
            self.know(left)

    def forget(self, run: RunId) -> None:
        """Tend a run no more."""
        with self._changed:
            if self._known.pop(run, None) is not None and self._kept is not None:
                self._kept.forget(run)

    def lost(self, job: Invocation, facts: dict[str, Any], most_mb: int) -> None:
        """A worker ended in the middle of its job.

        Args:
            job: The worker's.
            facts: Why, and what was running.
            most_mb: The memory that a worker may be given.
        """
        with self._changed:
            self._ends.append((job, facts, most_mb))
            self._changed.notify()

    def close(self) -> None:
        """Do no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._disconnect()
        if self._thread is not None:
            self._thread.join()
            self._disconnect()  # from what the thread has opened meanwhile

    def _disconnect(self) -> None:
        for store in list(self._stores.values()):
            store.disconnect()

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            with self._changed:
                shortest = min((job.lease for job in self._known.values()), default=60.0)
                wait = max(0.0, looked + shortest / 3 - time.monotonic())
                self._changed.wait_for(lambda: self._ends or self._closed, wait)
                if self._closed:
                    return
                ends = list(self._ends)
                self._ends.clear()
            for job, facts, most_mb in ends:
                self._see_to(job, lambda job=job, f=facts, m=most_mb: self._rescue(job, f, m))  # type: ignore[misc]
            if time.monotonic() - looked >= shortest / 3:
                looked = time.monotonic()
                self._look_around()

    def _look_around(self) -> None:
        alive = self._alive()
        with self._changed:
            known = list(self._known.values())
        for job in known:
            self._see_to(job, lambda job=job: self._tend(job, alive.get(job.run, ())))  # type: ignore[misc]

    def _see_to(self, job: Invocation, what: Callable[[], None]) -> None:
        """Do something for a run; a run that is over, or out of reach for long, is forgotten."""
        try:
            what()
            self._since.pop(job.run, None)
        except RunOver:
            self.forget(job.run)
            if job.farm:
                self._cancel(job.run)
        except StoreUnavailable as error:
            self._give_up(job.store)
            if job.run not in self._since:
                self._since[job.run] = time.monotonic()
                log.warning("run %s can't be tended: %s", job.run, error)
            elif time.monotonic() - self._since[job.run] > _PATIENCE:
                del self._since[job.run]
                self.forget(job.run)
        except ShoalError as error:
            if job.run not in self._since:
                self._since[job.run] = time.monotonic()
                log.warning("run %s can't be tended: %s", job.run, error)
        except Exception:  # a store that tells nonsense ends the tending of its own runs only
            log.exception("run %s can't be tended", job.run)
            self.forget(job.run)

    def _give_up(self, url: str) -> None:
        store = self._stores.pop(url, None)
        if store is not None:
            store.disconnect()

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = open_store(url, known=True)
        return self._stores[url]

    def _tend(self, job: Invocation, alive: Sequence[tuple[WorkerId, int]]) -> None:
        claims = self._store(job.store).tend(job.run, alive)
        if claims:
            log.info("run %s: %d workers are started anew", job.run, len(claims))
            now = self._clock.now()
            self._invoke([job.of(claim, now) for claim in claims])

    def _rescue(self, job: Invocation, facts: dict[str, Any], most_mb: int) -> None:
        """Start a worker anew, or tell the client what it ended of."""
        store = self._store(job.store)
        running = facts["running"]
        cause = f"task {running[0]}" if running else f"worker {job.worker}"
        kind, hopeless = "", facts.get("code", -signal.SIGKILL) not in _KILLED
        if facts["reason"] == "out of memory":
            grown = min(2 * job.memory_mb, most_mb)
            kind, hopeless = kind_of(Resources(grown, job.cpus)), grown <= job.memory_mb
        claim = None
        if not hopeless and final_error(facts.get("detail", "")) is None:
            try:
                claim = store.restart(job.run, job.worker, job.epoch, cause, kind)
            except RunOver:
                return  # a later start is at work; if the run is over, looking around tells
            except StoreRefused as error:  # its memory is full; a letter gets through
                facts |= {"reason": "error", "detail": _named(error)}
        if claim is None:
            letter = Letter("lost", job.worker, (json.dumps(facts).encode(),))
            store.post(job.run, letter)
            return
        log.info("run %s: worker %s is started anew: %s", job.run, job.worker, facts["reason"])
        if kind:
            found = {"running": running, "memory_mb": int(kind.split()[0])}
            store.post(job.run, Letter("grown", job.worker, (json.dumps(found).encode(),)))
        again = job.of(claim, self._clock.now())
        self._invoke([replace(again, part=job.part, inputs=job.inputs)])


def _named(error: StoreRefused) -> str:
    """An error as it stands at the end of a traceback."""
    return "".join(traceback.format_exception_only(error))
