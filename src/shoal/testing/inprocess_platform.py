"""`InProcessPlatform`: a platform whose sandboxes are threads of this process.

A thread can't be killed: that of a cancelled worker runs on, unnoticed, until its entry returns.
Idle sandboxes are removed with the next call. What workers print isn't stored.
"""

from __future__ import annotations

import logging
import mmap
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.clock import RealClock
from shoal.execution.pool import IDLE_SECONDS, SANDBOXES, Acquired, Queue, WarmPool
from shoal.platform.base import LogLine
from shoal.platform.invocation import Invocation, RunContext, SandboxMessage, Start
from shoal.platform.sandbox_main import PAGE, Entry, RunningTasks
from shoal.storage.shared_memory import probed, sees_folders
from shoal.types import Resources, RunId

log = logging.getLogger(__name__)


@dataclass
class _SandboxThread:
    number: int
    invocation: Invocation | None = None
    messages: queue.SimpleQueue[SandboxMessage | None] = field(default_factory=queue.SimpleQueue)
    """What its entry is called with; None ends the thread."""


class InProcessPlatform:
    """Runs workers in threads, with a gateway's pool and queue."""

    queue_seconds = 0.0
    memory_steps: Sequence[int] = ()
    prices: str | None = None

    def __init__(
        self, entry: Entry, *, capacity: int = SANDBOXES, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """Make a platform whose sandboxes call `entry` with each message, as processes would."""
        self.memory_mb: int | None = None
        self.cpus: float | None = None
        self.default_workers: int | None = None
        self.inline_nbytes: int | None = None
        self.function_seconds: float | None = None
        self._entry = entry
        self._clock = RealClock()
        self._pool: WarmPool[tuple[Resources, str]] = WarmPool(capacity, idle_seconds)
        self._lock = threading.RLock()
        self._queue: Queue[Invocation, tuple[Resources, str]] = Queue(
            self._pool, lambda waiting: waiting.pool_key, lambda waiting: waiting.bound
        )
        self._sandboxes: dict[int, _SandboxThread] = {}

    def probed(self, nonce: str) -> str | None:
        """Where this process sees a probe in shared memory."""
        return probed(nonce)

    def sees_folders(self, nonce: str) -> bool:
        """Whether this process sees the folders that a probe names."""
        return sees_folders(nonce)

    @property
    def capacity(self) -> int:
        """How many sandboxes there may be at once."""
        return self._pool.capacity

    @property
    def idle_seconds(self) -> float:
        """How long an idle sandbox is kept."""
        return self._pool.idle_seconds

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers of a run, at once or when there is room."""
        with self._lock:
            self._queue.extend(Invocation(context=context, start=start) for start in starts)
            self._serve_queue()

    def supervise(self, context: RunContext) -> None:
        """Do nothing: nobody else starts workers here."""

    def fan_out(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers of a run, at once or when there is room."""
        self.invoke(context, starts)

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        """Prepare idle sandboxes for workers of a run's session; returns how many."""
        with self._lock:
            now = self._expired()
            pool_key = (resources, context.code.session)
            acquired = [self._pool.acquire(pool_key, now) for _ in range(count)]
            ready = [self._ensured(each) for each in acquired if each is not None]
            for sandbox in ready:
                self._pool.release(sandbox.number, now)
            return len(ready)

    def _serve_queue(self) -> None:
        while (served := self._queue.serve(self._expired())) is not None:
            invocation, acquired = served
            sandbox = self._ensured(acquired)
            sandbox.invocation = invocation
            sandbox.messages.put(
                SandboxMessage(
                    context=invocation.context, start=invocation.start, sandbox=acquired.start
                )
            )

    def _expired(self) -> float:
        """Remove sandboxes that have been idle for too long; returns the time."""
        now = self._clock.now()
        for number in self._pool.expire(now):
            self._discard(number)
        return now

    def _ensured(self, acquired: Acquired) -> _SandboxThread:
        """The sandbox that the pool granted, created if it is new."""
        if acquired.evicted is not None:
            self._discard(acquired.evicted)
        if acquired.start == "cold":
            sandbox = self._sandboxes[acquired.sandbox] = _SandboxThread(acquired.sandbox)
            threading.Thread(target=self._live, args=(sandbox,), daemon=True).start()
        return self._sandboxes[acquired.sandbox]

    def _live(self, sandbox: _SandboxThread) -> None:
        running = RunningTasks(mmap.mmap(-1, PAGE))
        while (message := sandbox.messages.get()) is not None:
            reusable = False
            try:
                reusable = self._entry(message, running)
            except BaseException:  # the sandbox's outermost edge: the log has it
                log.exception("worker %s crashed", message.worker)
            with self._lock:
                if sandbox.number in self._sandboxes:
                    sandbox.invocation = None
                    self._pool.release(sandbox.number, self._clock.now())
                    if not reusable:
                        self._discard(sandbox.number)
                    self._serve_queue()

    def _discard(self, number: int) -> None:
        self._pool.remove(number)
        self._sandboxes.pop(number).messages.put(None)

    def cancel(self, run: RunId) -> None:
        """Drop the run's workers."""
        with self._lock:
            self._queue.drop(lambda waiting: waiting.run == run)
            for sandbox in list(self._sandboxes.values()):
                if sandbox.invocation and sandbox.invocation.run == run:
                    self._discard(sandbox.number)
            self._serve_queue()

    def pool(self, session: str) -> WarmPool[Resources]:
        """The sandboxes that a session's workers would find now."""
        with self._lock:
            return self._pool.copied(self._clock.now(), lambda k: k[0] if k[1] == session else None)

    def running(self, run: RunId) -> Sequence[int]:
        """Task 0 while a worker is running: which one it is isn't known."""
        return (0,) if self.active(run) else ()

    def active(self, run: RunId) -> bool:
        """Whether a worker of the run is running or waits for a sandbox."""
        with self._lock:
            current = (sandbox.invocation for sandbox in self._sandboxes.values())
            return any(each is not None and each.run == run for each in (*self._queue, *current))

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """Nothing: output isn't stored."""
        return ()

    def close(self) -> None:
        """Drop all workers; the threads of idle sandboxes end."""
        with self._lock:
            self._queue.drop(lambda _: True)
            for number in list(self._sandboxes):
                self._discard(number)
