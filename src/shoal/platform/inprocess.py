"""`InProcessPlatform`: a platform for tests, whose sandboxes are threads of this process.

A thread can't be killed: a cancelled worker's goes on unseen until its entry returns. Idle
sandboxes are removed when somebody asks for something. What workers print isn't kept.
"""

from __future__ import annotations

import logging
import mmap
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.clock import RealClock
from shoal.execution.pool import Acquired, Queue, WarmPool
from shoal.platform.base import Invocation, LogLine
from shoal.platform.sandbox import PAGE, Entry, RunningTasks
from shoal.system import this_host
from shoal.types import Resources, RunId, WorkerId

log = logging.getLogger(__name__)


@dataclass
class _Sandbox:
    number: int
    job: Invocation | None = None
    frames: queue.SimpleQueue[dict[str, Any] | None] = field(default_factory=queue.SimpleQueue)
    """Jobs as its entry gets them; None ends it."""


class InProcessPlatform:
    """Runs workers in threads, with the pool and the queue of a gateway."""

    def __init__(self, entry: Entry, *, capacity: int = 32, idle_seconds: float = 7.0) -> None:
        """Make a platform whose sandboxes call `entry` with each job, as processes would."""
        self.host = this_host()
        self.memory_mb: int | None = None
        self.cpus: float | None = None
        self.inline_nbytes: int | None = None
        self._entry = entry
        self._clock = RealClock()
        self._pool: WarmPool[tuple[Resources, str]] = WarmPool(capacity, idle_seconds)
        self._lock = threading.RLock()
        self._queue: Queue[Invocation, tuple[Resources, str]] = Queue(
            self._pool, lambda job: (job.resources, job.session), lambda job: job.bound
        )
        self._sandboxes: dict[int, _Sandbox] = {}

    def invoke(self, invocations: Sequence[Invocation]) -> None:
        """Start workers, at once or when there is room."""
        with self._lock:
            self._queue.extend(invocations)
            self._serve_queue()

    def fan_out(self, like: Invocation, workers: Sequence[WorkerId]) -> None:
        """Start workers that differ from one by their names only."""
        self.invoke([replace(like, worker=worker) for worker in workers])

    def prewarm(self, invocation: Invocation, count: int) -> None:
        """Have idle sandboxes ready for workers like this one."""
        with self._lock:
            now = self._expired()
            kind = (invocation.resources, invocation.session)
            ready = filter(None, [self._pool.acquire(kind, now) for _ in range(count)])
            for sandbox in [self._made(acquired) for acquired in ready]:
                self._pool.release(sandbox.number, now)

    def _serve_queue(self) -> None:
        while (served := self._queue.serve(self._expired())) is not None:
            job, acquired = served
            sandbox = self._made(acquired)
            sandbox.job = job
            frame = {"invocation": job.to_dict(), "gateway": "", "token": ""}
            sandbox.frames.put(frame | {"start": acquired.start})

    def _expired(self) -> float:
        """Remove what has been idle for too long; what time it is."""
        now = self._clock.now()
        for number in self._pool.expire(now):
            self._discard(number)
        return now

    def _made(self, acquired: Acquired) -> _Sandbox:
        """The sandbox that the pool gave."""
        if acquired.evicted is not None:
            self._discard(acquired.evicted)
        if acquired.start == "cold":
            sandbox = self._sandboxes[acquired.sandbox] = _Sandbox(acquired.sandbox)
            threading.Thread(target=self._live, args=(sandbox,), daemon=True).start()
        return self._sandboxes[acquired.sandbox]

    def _live(self, sandbox: _Sandbox) -> None:
        running = RunningTasks(mmap.mmap(-1, PAGE))
        while (frame := sandbox.frames.get()) is not None:
            reusable = False
            try:
                reusable = self._entry(frame, running)
            except BaseException:
                log.exception("worker %s broke", frame["invocation"]["worker"])
            with self._lock:
                if sandbox.number in self._sandboxes:
                    sandbox.job = None
                    self._pool.release(sandbox.number, self._clock.now())
                    if not reusable:
                        self._discard(sandbox.number)
                    self._serve_queue()

    def _discard(self, number: int) -> None:
        self._pool.remove(number)
        self._sandboxes.pop(number).frames.put(None)

    def cancel(self, run: RunId) -> None:
        """Forget the run's workers."""
        with self._lock:
            self._queue.drop(lambda job: job.run == run)
            for sandbox in [s for s in self._sandboxes.values() if s.job and s.job.run == run]:
                self._discard(sandbox.number)
            self._serve_queue()

    def pool(self, session: str) -> WarmPool[Resources]:
        """The sandboxes that a session's workers would find now."""
        with self._lock:
            return self._pool.copied(self._clock.now(), lambda k: k[0] if k[1] == session else None)

    def running(self, run: RunId) -> Sequence[int]:
        """Task 0, while a worker is at work: more isn't known."""
        return (0,) if self.active(run) else ()

    def active(self, run: RunId) -> bool:
        """Whether a worker of the run is at work or waits to be."""
        with self._lock:
            jobs = [*self._queue, *(sandbox.job for sandbox in self._sandboxes.values())]
            return any(job is not None and job.run == run for job in jobs)

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """Nothing: it isn't kept."""
        return ()

    def close(self) -> None:
        """Forget all workers; the threads of idle sandboxes end."""
        with self._lock:
            self._queue.drop(lambda _: True)
            for number in list(self._sandboxes):
                self._discard(number)
