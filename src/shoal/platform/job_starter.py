"""`JobStarter`: keeps as many jobs of an engine as the waiting starts need, and watches them.

1. A start that waits needs a job, unless an idle one will take it. Jobs that were started and
   haven't come up yet count as idle.
2. A run has no more jobs than it may have workers at work, and the spare jobs that the engine is
   to have: these stand by while others are at work.
3. The engine is asked every moment how the jobs are. A worker whose job has ended is lost. If the
   engine can't tell, or another client started the job, a job that stays silent for long is lost.
4. If jobs end before they come up, again and again, starting more is of no use: the waiting workers
   are reported as lost, with what the engine says. Those of another client's runs are left to it.
5. Jobs that haven't come up are ended when no start waits for them any more: their run was
   cancelled.
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
from shoal.platform.calls import OnLost
from shoal.platform.engine import Ended, Engine
from shoal.platform.events import Deployment, Offer, Work, opened, sealed
from shoal.platform.invocation import Invocation, RunContext, Start, kind_of, resources_of
from shoal.storage.job_board import SILENT_SECONDS, JobBoard, JobRecord
from shoal.types import Loss, LossReason, Resources, RunId, WorkerId

log = logging.getLogger(__name__)

_BUSY_SECONDS = 0.1
"""Seconds between two looks at the jobs while one of them is at work."""
_IDLE_SECONDS = 5.0
_RECENT_SECONDS = 2.0
"""How long after a push an idle job may be at work without having said so."""
_STILLBORN = 3
"""Jobs that may end before they come up, in a row."""
_AT_ONCE = 16
"""Jobs that are being started at a time."""

_DESPAIR_SECONDS = 60.0
"""How long no job is started for other clients' runs after jobs have failed to come up."""
_REMEMBERED = 1000
"""Runs of other clients that are remembered."""

Own = Callable[[RunId], RunContext | None]
"""The context of a run that this client looks after; None if it doesn't."""


@dataclass(eq=False)
class _RequestedJob:
    resources: Resources
    handle: str | None = None
    """The engine's name for it, once it has been started."""
    record: JobRecord | None = None
    """What it wrote last, once it has come up."""
    heard: float = 0.0
    """When it last wrote, on this process's clock."""
    unwanted: bool = False
    """It is to end: nothing waits for it any more."""

    @property
    def coming(self) -> bool:
        """Whether it will take work when it comes up."""
        return self.record is None and not self.unwanted


_Waiting = Mapping[str, list[tuple[bytes, Work]]]
"""The starts that wait for jobs, by kind: the events, and what they ask for."""


class JobStarter:
    """Starts and watches the jobs of one client; safe to use from several threads."""

    def __init__(
        self,
        engine: Engine,
        deployment: Deployment,
        entry: str,
        board: JobBoard,
        lost: OnLost,
        own: Own,
    ) -> None:
        self._engine = engine
        self._deployment = deployment
        self._entry = entry
        self._board = board
        self._lost = lost
        self._own = own
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        """Held while jobs are started or ended because of what waits."""
        self._jobs: dict[str, _RequestedJob] = {}
        """The jobs that this client has started and that haven't ended, by their names."""
        self._seen: dict[RunId, RunContext] = {}
        """The runs of other clients that jobs were started for."""
        self._stillborn = 0
        self._trouble = ""
        """What the engine said when a job last failed to come up."""
        self._despaired = float("-inf")
        """When jobs last failed to come up."""
        self._pushed = float("-inf")
        """When starts were last pushed."""
        self._starting = ThreadPoolExecutor(_AT_ONCE, "shoal-jobs")
        self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Look after jobs from now on."""
        self._pushed = time.monotonic()
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="shoal-job-starter", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Stop; the jobs end by themselves when they have been idle for a while.

        Starts that wait now get their jobs: a detached run may just have begun.
        """
        with self._lock:
            self._closed = True
        self._board.disconnect()
        if self._thread is not None:
            self._thread.join()
            with contextlib.suppress(PlatformError, StoreError):
                self._look()
                self.end_surplus()
        self._starting.shutdown()

    def kill(self, run: RunId) -> None:
        """End the jobs that still work for a run."""
        with self._lock:
            busy = [job for job in self._jobs.values() if job.record and job.record.run == run]
        for job in busy:
            self._end(job)

    def end_surplus(self) -> None:
        """End the jobs that haven't come up and that no start waits for any more."""
        surplus: list[_RequestedJob] = []
        with self._lock:
            if not any(job.coming for job in self._jobs.values()):
                return
        with self._looking:
            waiting = self._waiting()  # before the records: whoever takes a start has written one
            everywhere = self._hear()
            with self._lock:
                for kind in {kind_of(job.resources) for job in self._jobs.values() if job.coming}:
                    needed = self._missing(kind, waiting.get(kind, []), everywhere)
                    surplus += self._coming(kind)[max(0, needed) :]
                for job in surplus:
                    job.unwanted = True
        for job in surplus:
            self._end(job)

    def _end(self, job: _RequestedJob) -> None:
        if job.handle is not None:
            with contextlib.suppress(PlatformError):
                self._engine.kill(job.handle)
        if job.unwanted and not self._engine.facts.watches:  # nobody will tell that it has ended
            with self._lock:
                self._jobs = {name: each for name, each in self._jobs.items() if each is not job}

    def _run(self) -> None:
        while not self._closed:
            try:
                if self._board.await_push(_BUSY_SECONDS if self._busy() else _IDLE_SECONDS):
                    self._pushed = time.monotonic()
                self._look()
            except (PlatformError, StoreError) as error:
                if not self._closed:
                    log.warning("jobs can't be looked after: %s", error)
                    time.sleep(1.0)
            except Exception:  # the thread's outermost edge
                log.exception("jobs can't be looked after")
                time.sleep(1.0)

    def _look(self) -> None:
        with self._looking:
            self._hear()
            self._watch()
            self._start_missing()

    def _busy(self) -> bool:
        """Whether a job comes up, is at work, or may just have taken work."""
        with self._lock:
            jobs = list(self._jobs.values())
        recent = time.monotonic() - self._pushed < _RECENT_SECONDS
        return recent or any(job.record is None or job.record.run for job in jobs)

    def _hear(self) -> Mapping[str, JobRecord]:
        """Note what the jobs have written, and which jobs of other clients write no more.

        Returns:
            What all jobs that are up are doing.
        """
        now, records = time.monotonic(), self._board.records()
        with self._lock:
            for name, job in self._jobs.items():
                record = records.current.get(name)
                if record is not None and record != job.record:
                    job.record, job.heard = record, now
                    self._stillborn = 0
            strange = {n: record for n, record in records.silent.items() if n not in self._jobs}
        for name, record in strange.items():
            if self._own(RunId(record.run)) is not None:
                self._lose(name, record, Ended(LossReason.VANISHED))
        return records.current

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
        late = time.monotonic() - SILENT_SECONDS
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
        current = self._board.record(name)
        if current is not None:
            self._lose(name, current, how)
        elif job.coming:
            self._stillborn += 1
            self._trouble = how.detail or f"a job ended with exit code {how.code}"
            log.warning("a job ended before it came up: %s", self._trouble)

    def _lose(self, name: str, record: JobRecord, how: Ended) -> None:
        """Report the worker of a job that has ended."""
        run = RunId(record.run)
        context = self._own(run) or self._seen.get(run)
        if run and context is None:
            return  # its client finds the record, and that the job is silent
        self._board.remove(name)
        if context is not None:
            self._lost(*loss_of(context, record, how))

    def _waiting(self) -> _Waiting:
        """The starts that wait for a job, without those of runs that were cancelled."""
        found = {
            kind: [(e, work) for e in events if isinstance(work := self._opened(e), Work)]
            for kind, events in self._board.waiting().items()
        }
        cancelled = self._board.cancelled() if found else frozenset()
        for kind, works in found.items():
            dropped = [event for event, work in works if work.context.run in cancelled]
            self._board.withdraw(kind, dropped)
            found[kind] = [each for each in works if each[1].context.run not in cancelled]
        return {kind: works for kind, works in found.items() if works}

    def _opened(self, event: bytes) -> object:
        return opened(event, self._deployment)

    def _start_missing(self) -> None:
        """Start the jobs that waiting starts need."""
        waiting = self._waiting()
        if not (waiting or self._engine.facts.spares):
            return
        everywhere = self._board.jobs()
        kinds = set(waiting) | self._guarded(everywhere)
        if self._stillborn >= _STILLBORN:
            self._give_up(waiting)
            return
        if time.monotonic() < self._despaired + _DESPAIR_SECONDS:
            waiting = {kind: self._of_own(works) for kind, works in waiting.items()}
            kinds = set(waiting)
        room = self._engine.facts.capacity - max(len(everywhere), len(self._jobs))
        for kind in kinds:
            works = waiting.get(kind, [])
            self._remember(works)
            with self._lock:
                coming = len(self._coming(kind))
            missing = min(self._missing(kind, works, everywhere) - coming, room)
            if missing > 0:
                self._start(resources_of(kind), missing)
                room -= missing

    def _guarded(self, everywhere: Mapping[str, JobRecord]) -> frozenset[str]:
        """The kinds of jobs that spare ones stand by for: those at work for this client's runs."""
        if not self._engine.facts.spares:
            return frozenset()
        at_work = [record for record in everywhere.values() if record.run]
        return frozenset(r.kind for r in at_work if self._own(RunId(r.run)) is not None)

    def _missing(
        self, kind: str, works: list[tuple[bytes, Work]], everywhere: Mapping[str, JobRecord]
    ) -> int:
        """How many jobs of a kind these starts and the spares need, beside the idle ones."""
        at_work = Counter(record.run for record in everywhere.values() if record.run)
        idle = sum(record.kind == kind and not record.run for record in everywhere.values())
        spares = self._engine.facts.spares if kind in self._guarded(everywhere) else 0
        return _admitted([work for _, work in works], at_work) + spares - idle

    def _coming(self, kind: str) -> list[_RequestedJob]:
        """The jobs of a kind that haven't come up yet, the oldest first."""
        return [job for job in self._jobs.values() if job.coming and kind_of(job.resources) == kind]

    def _of_own(self, works: list[tuple[bytes, Work]]) -> list[tuple[bytes, Work]]:
        return [each for each in works if self._own(each[1].context.run) is not None]

    def _remember(self, works: list[tuple[bytes, Work]]) -> None:
        """Note the runs that jobs are started for, so that their losses can be reported."""
        for _, work in works:
            if self._seen.get(work.context.run) is None:
                self._seen[work.context.run] = work.context
        while len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _start(self, resources: Resources, count: int) -> None:
        many = getattr(self._engine, "start_many", None)
        groups = [(count, True)] if many is not None else [(1, False)] * count
        for size, indexed in groups:
            offer = Offer(
                job=secrets.token_hex(8),
                entry=self._entry,
                memory_mb=resources.memory_mb,
                cpus=resources.cpu_share,
                idle_seconds=self._engine.facts.idle_seconds,
                seconds=self._engine.facts.seconds,
                spares=self._engine.facts.spares,
            )
            jobs = {
                offer.name(i if indexed else None): _RequestedJob(resources) for i in range(size)
            }
            with self._lock:
                self._jobs |= jobs
            with contextlib.suppress(RuntimeError):  # it is being closed
                self._starting.submit(self._submit, offer, resources, jobs)

    def _submit(
        self, offer: Offer, resources: Resources, jobs: Mapping[str, _RequestedJob]
    ) -> None:
        """Have the engine start jobs."""
        if all(job.unwanted for job in jobs.values()):
            with self._lock:
                self._jobs = {name: job for name, job in self._jobs.items() if name not in jobs}
            return
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
        for job in jobs.values():
            if job.unwanted:
                self._end(job)

    def _give_up(self, waiting: _Waiting) -> None:
        """Report the waiting workers of this client's runs as lost: no job comes up."""
        self._stillborn, self._despaired = 0, time.monotonic()
        detail = f"the engine's jobs end before they begin: {self._trouble}"
        for kind, works in waiting.items():
            own = dict(self._of_own(works))
            for event in self._board.withdraw(kind, list(own)):
                work = own[event]
                for start in filter(lambda start: start.epoch, work.starts):
                    loss = Loss(LossReason.ERROR, (), start.memory_mb, start.epoch, 1, detail)
                    self._lost(Invocation(context=work.context, start=start), loss)


def loss_of(context: RunContext, record: JobRecord, how: Ended) -> tuple[Invocation, Loss]:
    """The worker that a job was running when it ended, and what is known of its loss."""
    resources = resources_of(record.kind)
    start = Start(
        worker=WorkerId(record.worker),
        epoch=record.epoch,
        memory_mb=resources.memory_mb,
        cpus=resources.cpu_share,
    )
    memory_mb, code = resources.memory_mb, how.code
    loss = Loss(how.reason, record.running, memory_mb, record.epoch, code, how.detail)
    return Invocation(context=context, start=start), loss


def _admitted(works: list[Work], at_work: Counter[str]) -> int:
    """How many of these may be at work, beside those that are."""
    waiting = Counter(work.context.run for work in works)
    most = {work.context.run: work.context.settings.workers for work in works}
    return sum(
        count if not most[run] else min(count, max(0, most[run] - at_work[run]))
        for run, count in waiting.items()
    )
