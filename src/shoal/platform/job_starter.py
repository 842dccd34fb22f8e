"""`JobStarter`: keeps as many jobs of an engine as the waiting starts need, and watches them.

1. A start that waits needs a job, unless an idle one will take it. Jobs that were started and
   haven't come up yet count as idle.
2. A run has no more jobs than it may have workers at work.
3. The engine is asked every moment how the jobs are. A worker whose job has ended is lost. If the
   engine can't tell, a job that stays silent for long is lost.
4. If jobs end before they come up, again and again, starting more is of no use: the waiting workers
   are reported as lost, with what the engine says.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from shoal.errors import PlatformError, StoreError
from shoal.platform.engine import Ended, Engine
from shoal.platform.events import Deployment, Offer, Work, opened, sealed
from shoal.platform.invocation import kind_of
from shoal.storage.job_board import JobBoard, JobRecord
from shoal.types import Loss, LossReason, Resources, RunId, WorkerId

log = logging.getLogger(__name__)

_BUSY_SECONDS = 0.2
"""Seconds between two looks at the jobs while one of them is at work."""
_IDLE_SECONDS = 5.0
_RECENT_SECONDS = 2.0
"""How long after a push an idle job may be at work without having said so."""
_SILENT_SECONDS = 10.0
"""Seconds of silence after which a job of an engine that can't tell is lost."""
_STILLBORN = 3
"""Jobs that may end before they come up, in a row."""
_AT_ONCE = 16
"""Jobs that are being started at a time."""

Lost = Callable[[RunId, WorkerId, int, Loss], None]
"""Called with a worker whose job has ended: its run, its name, its epoch, and what is known."""


@dataclass
class _Job:
    resources: Resources
    handle: str | None = None
    """The engine's name for it, once it has been started."""
    record: JobRecord | None = None
    """What it wrote last, once it has come up."""
    heard: float = 0.0
    """When it last wrote, on this process's clock."""


class JobStarter:
    """Starts and watches the jobs of one client; safe to use from several threads."""

    def __init__(self, engine: Engine, deployment: Deployment, board: JobBoard, lost: Lost) -> None:
        self._engine = engine
        self._deployment = deployment
        self._board = board
        self._lost = lost
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        """The jobs that this client has started and that haven't ended, by their names."""
        self._stillborn = 0
        self._trouble = ""
        """What the engine said when a job last failed to come up."""
        self._pushed = float("-inf")
        """When starts were last pushed."""
        self._starting = ThreadPoolExecutor(_AT_ONCE, "shoal-jobs")
        self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Look after jobs from now on."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="shoal-job-starter", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Stop; the jobs end by themselves when they have been idle for a while."""
        with self._lock:
            self._closed = True
        self._board.disconnect()
        if self._thread is not None:
            self._thread.join()
        self._starting.shutdown(cancel_futures=True)

    def kill(self, run: RunId) -> None:
        """End the jobs that still work for a run."""
        with self._lock:
            busy = [job for job in self._jobs.values() if job.record and job.record.run == run]
        for job in busy:
            if job.handle is not None:
                with contextlib.suppress(PlatformError):
                    self._engine.kill(job.handle)

    def _run(self) -> None:
        while not self._closed:
            try:
                if self._board.await_push(_BUSY_SECONDS if self._busy() else _IDLE_SECONDS):
                    self._pushed = time.monotonic()
                self._hear()
                self._watch()
                self._start_missing()
            except (PlatformError, StoreError) as error:
                if not self._closed:
                    log.warning("jobs can't be looked after: %s", error)
                    time.sleep(1.0)
            except Exception:  # the thread's outermost edge
                log.exception("jobs can't be looked after")
                time.sleep(1.0)

    def _busy(self) -> bool:
        """Whether a job comes up, is at work, or may just have taken work."""
        with self._lock:
            jobs = list(self._jobs.values())
        recent = time.monotonic() - self._pushed < _RECENT_SECONDS
        return recent or any(job.record is None or job.record.run for job in jobs)

    def _hear(self) -> None:
        """Note what the jobs have written."""
        now, records = time.monotonic(), self._board.jobs()
        with self._lock:
            for name, job in self._jobs.items():
                record = records.get(name)
                if record is not None and record != job.record:
                    job.record, job.heard = record, now
                    self._stillborn = 0

    def _watch(self) -> None:
        """Find the jobs that have ended."""
        with self._lock:
            started = {job.handle: name for name, job in self._jobs.items() if job.handle}
        if self._engine.facts.watches and started:
            states = self._engine.states(list(started))
            ended = {started[h]: state for h, state in states.items() if isinstance(state, Ended)}
        else:
            ended = self._silent()
        for name, how in ended.items():
            self._on_end(name, how)

    def _silent(self) -> dict[str, Ended]:
        late = time.monotonic() - _SILENT_SECONDS
        with self._lock:
            return {
                name: Ended(LossReason.VANISHED)
                for name, job in self._jobs.items()
                if job.record is not None and job.heard < late
            }

    def _on_end(self, name: str, how: Ended) -> None:
        with self._lock:
            job = self._jobs.pop(name, None)
        if job is None:
            return
        current = self._board.jobs().get(name)
        if current is None and job.record is None:
            self._stillborn += 1
            self._trouble = how.detail or f"a job ended with exit code {how.code}"
            log.warning("a job ended before it came up: %s", self._trouble)
            return
        self._board.remove(name)
        if current is not None and current.run:
            memory_mb = job.resources.memory_mb
            loss = Loss(how.reason, current.running, memory_mb, current.epoch, how.code, how.detail)
            self._lost(RunId(current.run), WorkerId(current.worker), current.epoch, loss)

    def _start_missing(self) -> None:
        """Start the jobs that waiting starts need."""
        waiting = {
            kind: [work for event in events if isinstance(work := self._opened(event), Work)]
            for kind, events in self._board.waiting().items()
        }
        if not waiting:
            return
        if self._stillborn >= _STILLBORN:
            self._give_up(waiting)
            return
        everywhere = self._board.jobs()
        at_work = Counter(record.run for record in everywhere.values() if record.run)
        room = self._engine.facts.capacity - max(len(everywhere), len(self._jobs))
        for kind, works in waiting.items():
            idle = sum(r.kind == kind and not r.run for r in everywhere.values())
            with self._lock:
                coming = sum(
                    job.record is None and kind_of(job.resources) == kind
                    for job in self._jobs.values()
                )
            wanted = _admitted(works, at_work)
            missing = min(wanted - idle - coming, room)
            if missing > 0:
                self._start(works[0].starts[0].resources, missing)
                room -= missing

    def _opened(self, event: bytes) -> object:
        return opened(event, self._deployment)

    def _start(self, resources: Resources, count: int) -> None:
        many = getattr(self._engine, "start_many", None)
        groups = [(count, True)] if many is not None else [(1, False)] * count
        for size, indexed in groups:
            offer = Offer(
                job=secrets.token_hex(8),
                memory_mb=resources.memory_mb,
                cpus=resources.cpu_share,
                idle_seconds=self._engine.facts.idle_seconds,
            )
            jobs = {offer.name(i if indexed else None): _Job(resources) for i in range(size)}
            with self._lock:
                self._jobs |= jobs
            with contextlib.suppress(RuntimeError):  # it is being closed
                self._starting.submit(self._submit, offer, resources, jobs)

    def _submit(self, offer: Offer, resources: Resources, jobs: Mapping[str, _Job]) -> None:
        """Have the engine start jobs."""
        event = sealed(offer, self._deployment)
        many = getattr(self._engine, "start_many", None)
        try:
            if many is None:
                handles = [self._engine.start(event, resources)]
            else:
                handles = many(event, resources, len(jobs))
            for job, handle in zip(jobs.values(), handles, strict=True):
                job.handle = handle
        except Exception as error:  # noqa: BLE001 - the edge to a plug-in: told below
            for name in jobs:
                self._on_end(name, Ended(LossReason.ERROR, None, str(error)))

    def _give_up(self, waiting: Mapping[str, list[Work]]) -> None:
        """Report the waiting workers as lost: no job comes up."""
        self._stillborn = 0
        detail = f"the engine's jobs end before they begin: {self._trouble}"
        for kind, events in self._board.waiting().items():
            self._board.withdraw(kind, events)
        for works in waiting.values():
            for work in works:
                for start in work.starts:
                    loss = Loss(LossReason.ERROR, (), start.memory_mb, start.epoch, 1, detail)
                    self._lost(work.context.run, start.worker, start.epoch, loss)


def _admitted(works: list[Work], at_work: Counter[str]) -> int:
    """How many of these may be at work, beside those that are."""
    waiting = Counter(work.context.run for work in works)
    most = {work.context.run: work.context.settings.workers for work in works}
    return sum(
        count if not most[run] else min(count, max(0, most[run] - at_work[run]))
        for run, count in waiting.items()
    )
