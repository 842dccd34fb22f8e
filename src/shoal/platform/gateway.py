"""`LocalGateway`: a FaaS platform on this machine: sandboxes, a queue, logs, limits.

1. `WarmPool` decides which sandboxes stay warm. Invocations beyond its capacity, or beyond the
   workers that their run may have at once, wait in a queue.
2. The caller's thread hands an invocation to its sandbox. The gateway's own thread only listens: to
   sandboxes that answer or print, and to zygotes that report an end.
3. A worker whose sandbox ends in the middle of an invocation is lost: `GatewaySupervisor` restarts
   it, or reports it to the run's client through the store.
4. The gateway unpickles nothing. Whatever a sandbox sends or does, at most that sandbox is killed.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, assert_never

from msgspec.structs import replace

from shoal.clock import RealClock
from shoal.errors import GatewayBusy, GatewayRefused, PlatformError
from shoal.execution.pool import IDLE_SECONDS, SANDBOXES, Acquired, Queue, WarmPool
from shoal.platform.base import LogLine
from shoal.platform.detached_runs import DetachedRuns
from shoal.platform.invocation import (
    INLINE_INPUTS,
    Invocation,
    RunContext,
    SandboxMessage,
    Start,
    to_json,
)
from shoal.platform.limits import machine_memory_mb, openable
from shoal.platform.listener import Listener
from shoal.platform.logs import Logs
from shoal.platform.sandbox import BEGIN_SECONDS, PoolKey, Sandbox
from shoal.platform.sandbox_env import SandboxEnv
from shoal.platform.sandbox_messages import (
    SandboxAnswer,
    SandboxExited,
    SandboxForked,
    SandboxPaused,
    SandboxReport,
    ZygoteReady,
    ZygoteReport,
)
from shoal.platform.supervisor import GatewaySupervisor
from shoal.platform.tokens import run_token
from shoal.platform.zygotes import BranchLost, Zygotes
from shoal.storage.shared_memory import probed, sees_folders
from shoal.system import cores
from shoal.types import Loss, LossReason, Resources, RunId, WorkerId

log = logging.getLogger(__name__)

_CANCEL_SECONDS = 5.0
_MAX_QUEUED = 100_000
_FILES = 6
"""Files that this process opens for a sandbox: its control, its streams, its requests."""
_END_SECONDS = 1.0
"""How long a sandbox that has hung up may take to end."""

_DEFAULT = SandboxEnv()


class LocalGateway:
    """Runs workers in sandboxes on this machine."""

    queue_seconds = 0.0
    memory_steps: Sequence[int] = ()
    prices: str | None = None

    def __init__(
        self,
        entry: str,
        logs: Logs,
        *,
        capacity: int = SANDBOXES,
        idle_seconds: float = IDLE_SECONDS,
        latency: float = 0.0,
        function_seconds: float | None = None,
        sandbox_env: SandboxEnv = _DEFAULT,
    ) -> None:
        """Start a gateway; its first zygote begins to load at once.

        Args:
            entry: `module:function` that a sandbox calls with each message.
            logs: Stores what user code prints.
            capacity: How many sandboxes there may be at once.
            idle_seconds: How long a sandbox may be idle before it is removed.
            latency: Seconds added to each invocation from this process, for experiments.
            function_seconds: How long a worker may run before it is killed, as on other platforms.
            sandbox_env: What sandboxes get of the machine.
        """
        self._sandbox_env = sandbox_env
        self.shares_memory = True
        """Whether clients of this machine share memory with workers; false for experiments."""
        self.memory_mb = machine_memory_mb()
        self.cpus: float = cores()
        self.default_workers = cores()
        self.inline_nbytes = INLINE_INPUTS
        self.address = ("", "")
        """URL and token at which workers reach this gateway."""
        self._logs = logs
        self._latency = latency
        self.function_seconds = self._limit = function_seconds
        self._longest_wait = min(BEGIN_SECONDS, function_seconds or BEGIN_SECONDS)
        self._clock = RealClock()
        self._lock = threading.RLock()
        self._quieter = threading.Condition(self._lock)
        self._pool: WarmPool[PoolKey] = WarmPool(capacity, idle_seconds)
        self._queue: Queue[Invocation, PoolKey] = Queue(
            self._pool, lambda waiting: waiting.pool_key, lambda waiting: waiting.bound
        )
        self._sandboxes: dict[int, Sandbox] = {}
        self._due: dict[int, float] = {}
        """When to check a sandbox, by its number: it may have to be killed."""
        self._counts = {"cold": 0, "warm": 0, "died": 0, "out_of_memory": 0}
        self._busy_seconds = 0.0
        self._warned = False
        """The warning that there are no control groups has been logged."""
        self._closed = False
        self._listener = Listener()
        self._zygotes = Zygotes(entry, self._listener, sandbox_env)
        self._zygotes.start(1)
        self._supervisor = GatewaySupervisor(self.alive, self.take, self.cancel)
        self._fan_outs = ThreadPoolExecutor(1, "shoal-fan-out")
        self._thread = threading.Thread(target=self._listen, name="shoal-gateway", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        """How many sandboxes there may be at once."""
        return self._pool.capacity

    @property
    def idle_seconds(self) -> float:
        """How long an idle sandbox is kept."""
        return self._pool.idle_seconds

    def make_room(self, workers: int) -> int:
        """Raise the capacity to a number of workers, or to as many as files can be opened for."""
        with self._lock:
            if workers > self._pool.capacity:
                self._pool.capacity = max(self._pool.capacity, openable(workers, _FILES))
            return self._pool.capacity

    def probed(self, nonce: str) -> str | None:
        """Where sandboxes see a probe in shared memory: where this process does."""
        return probed(nonce) if self.shares_memory else None

    def sees_folders(self, nonce: str) -> bool:
        """Whether sandboxes see the folders that a probe names: whether this process does."""
        return self.shares_memory and sees_folders(nonce)

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers of a run, at once or when there is room."""
        if self._latency:
            threading.Event().wait(self._latency)
        self.take(context, starts)

    def supervise(self, context: RunContext) -> None:
        """Look after a run's workers as if they had been started here."""
        self._supervisor.supervise(context)

    def take(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers for remote callers; adds no latency."""
        with self._lock:
            self._check_open()
            if len(self._queue) + len(starts) > _MAX_QUEUED:
                raise GatewayBusy(f"{len(self._queue)} workers already wait for a sandbox.")
            invocations = [Invocation(context=context, start=start) for start in starts]
            for invocation in invocations:
                self._supersede(invocation)
            self._supervisor.supervise(context)
            self._queue.extend(invocations)
            self._serve_queue(waited=False)

    def fan_out(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start many workers of a run in the background; returns at once."""
        self._check_open()
        self._fan_outs.submit(self._fan_out, context, starts, self._clock.now())

    def _fan_out(self, context: RunContext, starts: Sequence[Start], came: float) -> None:
        waited = self._clock.now() - came
        try:
            self.invoke(context, [start.after(waited) for start in starts])
        except PlatformError as error:  # their leases expire, and the supervisor starts them
            log.warning("run %s: %d workers not started: %s", context.run, len(starts), error)

    def _supersede(self, new: Invocation) -> None:
        """Drop or kill earlier starts of a worker, which count as lost."""
        if new.epoch > 1 and not new.start.beside:

            def earlier(old: Invocation) -> bool:
                same = (old.run, old.worker) == (new.run, new.worker)
                return same and old.epoch < new.epoch

            self._queue.drop(earlier)
            for sandbox in self._of(new.run):
                if sandbox.invocation and earlier(sandbox.invocation):
                    self._kill(sandbox)

    def remember(self, kept: DetachedRuns) -> None:
        """Resume the detached runs of an earlier gateway, and record those of this one."""
        self._supervisor.resume(kept)

    def alive(self) -> dict[RunId, list[tuple[WorkerId, int]]]:
        """The workers that run or wait for a sandbox, with their epochs, by run."""
        found: dict[RunId, list[tuple[WorkerId, int]]] = {}
        with self._lock:
            running = [s.invocation for s in self._sandboxes.values() if not s.paused]
            for each in (*filter(None, running), *self._queue):
                found.setdefault(each.run, []).append((each.worker, each.epoch))
        return found

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        """Have idle sandboxes ready for workers like this one; returns how many."""
        with self._lock:
            self._check_open()
            pool_key = (resources, context.code.session)
            ready: list[int] = []
            for _ in range(count):
                acquired = self._pool.acquire(pool_key, self._clock.now())
                if acquired is None or not self._ensure(acquired, pool_key, context.code.preload):
                    break
                ready.append(acquired.sandbox)
            for sandbox in ready:
                self._pool.release(sandbox, self._clock.now())
            self._listener.wake()
            return len(ready)

    def pool(self, session: str) -> WarmPool[Resources]:
        """The sandboxes that a session's workers would find now."""
        with self._lock:
            keys = [sandbox.pool_key for sandbox in self._sandboxes.values()]
            own = {key: key[0] for key in keys if key[1] == session}
            return self._pool.copied(self._clock.now(), own.get)

    def cool(self) -> None:
        """Remove the sandboxes that are idle now, so that the next starts are cold."""
        with self._lock:
            for number in self._pool.expire(float("inf")):
                self._kill(self._sandboxes[number])

    def cancel(self, run: RunId) -> None:
        """Stop the run's workers; none is left when this returns."""
        with self._lock:
            self._supervisor.release(run)
            self._queue.drop(lambda waiting: waiting.run == run)
            for sandbox in self._of(run):
                self._kill(sandbox)
            self._quieter.wait_for(lambda: not self._of(run), _CANCEL_SECONDS)

    def forget(self, run: RunId) -> None:
        """Stop looking after a run that has ended; its workers end by themselves."""
        self._supervisor.release(run)

    def running(self, run: RunId) -> Sequence[int]:
        """The numbers of the tasks that the run's workers are executing."""
        with self._lock:
            queued = [-1 for waiting in self._queue if waiting.run == run]
            active = [s for s in self._of(run) if not s.paused]
            return queued + [number for s in active for number in s.running.numbers()]

    def active(self, run: RunId) -> bool:
        """Whether a worker of the run is running or waits for a sandbox."""
        with self._lock:
            return bool(self._of(run)) or any(waiting.run == run for waiting in self._queue)

    def _of(self, run: RunId) -> list[Sandbox]:
        return [s for s in self._sandboxes.values() if s.invocation and s.invocation.run == run]

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """What the run's user code has printed."""
        with self._lock:
            for sandbox in self._of(run):
                sandbox.output.drain(unfinished=False)
        return self._logs.read(run)

    def status(self) -> dict[str, Any]:
        """What the gateway is doing."""
        with self._lock:
            current = [sandbox.invocation for sandbox in self._sandboxes.values()]
            return {
                "capacity": self._pool.capacity,
                "idle_seconds": self._pool.idle_seconds,
                "busy": self._pool.busy,
                "idle": self._pool.idle,
                "queued": len(self._queue),
                "limits": self._zygotes.limits,
                "isolation": self._zygotes.isolation,
                "memory_mb": self.memory_mb,
                "cpus": self.cpus,
                "invocations": dict(self._counts),
                "busy_seconds": round(self._busy_seconds, 6),
                "runs": sorted({each.run for each in current if each}),
            }

    def close(self) -> None:
        """Kill the sandboxes and end the zygotes."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.drop(lambda _: True)
            for sandbox in self._sandboxes.values():
                sandbox.doomed = True
            self._listener.wake()
        self._fan_outs.shutdown(wait=False, cancel_futures=True)
        self._supervisor.close()
        self._thread.join()
        self._zygotes.close()
        for sandbox in list(self._sandboxes.values()):
            sandbox.output.drain()  # of a run whose result was there before its last lines
            self._discard(sandbox)
        self._listener.close()

    def _check_open(self) -> None:
        if self._closed:
            raise GatewayRefused("The gateway has been closed.")

    def _serve_queue(self, *, waited: bool = True) -> None:
        """Give sandboxes to the next invocations; `waited`: these were queued before."""
        while not self._closed and (served := self._queue.serve(self._clock.now())) is not None:
            invocation, acquired = served
            if waited or not invocation.start.sent:  # it is timed from when there is room for it
                invocation = replace(invocation, served=time.monotonic())
            if not self._ensure(acquired, invocation.pool_key, invocation.context.code.preload):
                detail = "could not create a sandbox for it; see the gateway's log"
                self._report_loss(invocation, LossReason.ERROR, detail=detail)
                continue
            self._counts[acquired.start] += 1
            self._give(self._sandboxes[acquired.sandbox], invocation, acquired.start)

    def _ensure(self, acquired: Acquired, pool_key: PoolKey, preload: Sequence[str]) -> bool:
        """Create the sandbox that the pool granted if it is new; False if that fails."""
        if acquired.evicted is not None:
            self._kill(self._sandboxes[acquired.evicted])
        if acquired.start == "cold":
            number = acquired.sandbox
            try:
                made = Sandbox.create(number, pool_key, preload, self._zygotes, self._logs)
            except OSError as error:
                log.warning("could not create a sandbox: %s", error)
                self._pool.remove(number)
                return False
            self._sandboxes[number] = made
            self._watch(made, made.control, self._on_control)
            for stream, descriptor in made.output.streams.items():
                self._watch(made, descriptor, partial(self._on_output, stream=stream))
        return True

    def _give(
        self, sandbox: Sandbox, invocation: Invocation, acquired: Literal["cold", "warm"]
    ) -> None:
        (url, token), context = self.address, invocation.context
        if self._sandbox_env.own_folder:
            context = replace(context, code=replace(context.code, folder=""))
        message = SandboxMessage(
            context=context,
            start=invocation.start,
            served=invocation.served,
            gateway=url,
            token=run_token(token, invocation.run, context.code.session),
            sandbox=acquired,
        )
        if not sandbox.give(invocation, to_json(message), self._clock.now()):
            self._listener.await_writable(sandbox.control, True)
        self._check_due(sandbox)

    def _kill(self, sandbox: Sandbox) -> None:
        """Kill a sandbox on purpose, which isn't reported."""
        sandbox.doomed = True
        self._zygotes.kill(sandbox.zygote, sandbox.number)

    def _watch(self, sandbox: Sandbox, file: Any, callback: Callable[[Sandbox], None]) -> None:
        def guarded() -> None:
            try:
                callback(sandbox)
            except Exception:  # the loop's outermost edge: one sandbox must not end the others
                log.exception("sandbox %d: internal error", sandbox.number)
                self._expel(sandbox)

        self._listener.add(file, guarded)

    def _listen(self) -> None:
        while not self._closed:
            with self._lock:
                soonest = min((*self._due.values(), self._pool.next_expiry() or float("inf")))
            timeout = min(max(0.0, soonest - self._clock.now()), self._longest_wait)
            ready = self._listener.wait(timeout)
            with self._lock:
                self._listener.call(ready)
                for report in self._zygotes.reports():
                    self._on_report(report)
                now = self._clock.now()
                for number in [number for number, due in self._due.items() if due <= now]:
                    self._check_due(self._sandboxes[number])
                for number in self._pool.expire(now):
                    self._kill(self._sandboxes[number])

    def _check_due(self, sandbox: Sandbox) -> None:
        """Kill a sandbox whose time is up; else note when to check it again."""
        now, due = self._clock.now(), sandbox.due(self._limit)
        self._due.pop(sandbox.number, None)
        if due <= now:
            sandbox.late = self._limit is not None and sandbox.began + self._limit <= now
            self._zygotes.kill(sandbox.zygote, sandbox.number)
        elif due < float("inf"):
            self._due[sandbox.number] = due

    def _expel(self, sandbox: Sandbox, within: float = 0.0) -> None:
        """Kill a sandbox that has broken the protocol; its worker counts as lost."""
        self._listener.remove(sandbox.control)
        if sandbox.invocation is None:
            self._pool.remove(sandbox.number)
        sandbox.ends = self._clock.now() + within
        self._check_due(sandbox)

    def _on_control(self, sandbox: Sandbox) -> None:
        if sandbox.flush():
            self._listener.await_writable(sandbox.control, False)
        try:
            answer = sandbox.receive()
        except EOFError:
            self._expel(sandbox, within=_END_SECONDS)
            return
        except ValueError as error:
            log.warning("killing sandbox %d: %s", sandbox.number, error)
            sandbox.fault = f"its sandbox was killed: {error}"
            self._expel(sandbox)
            return
        if answer is not None:
            self._on_answer(sandbox, answer)

    def _on_answer(self, sandbox: Sandbox, answer: SandboxAnswer) -> None:
        invocation = sandbox.invocation
        self._due.pop(sandbox.number, None)
        sandbox.output.drain()
        self._busy_seconds += self._clock.now() - sandbox.began
        sandbox.invocation = None
        if invocation is not None and answer.error and not sandbox.doomed:
            running = sandbox.running.numbers()
            self._report_loss(invocation, LossReason.ERROR, running, detail=answer.error)
        if answer.changed:
            log.info("discarding sandbox %d: %s changed", sandbox.number, answer.changed)
        if answer.reusable and not sandbox.doomed:
            self._pool.release(sandbox.number, self._clock.now())
        else:
            self._kill(sandbox)
        self._quieter.notify_all()
        self._serve_queue()

    def _on_output(self, sandbox: Sandbox, stream: str) -> None:
        if not sandbox.output.read(stream):
            self._listener.remove(sandbox.output.streams[stream])

    def _on_report(self, report: ZygoteReport | BranchLost) -> None:
        match report:
            case BranchLost(key):
                for lost in [s for s in self._sandboxes.values() if s.zygote == key]:
                    lost.kill_group()
                    self._on_exit(lost, code=-signal.SIGKILL, out_of_memory=False)
            case ZygoteReady():
                if report.warning and not self._warned:
                    self._warned = True
                    log.warning("%s", report.warning)
            case _:
                sandbox = self._sandboxes.get(report.sandbox)
                if sandbox is not None:
                    self._on_sandbox_report(sandbox, report)

    def _on_sandbox_report(self, sandbox: Sandbox, report: SandboxReport) -> None:
        match report:
            case SandboxExited(_, code, out_of_memory):
                self._on_exit(sandbox, code=code, out_of_memory=out_of_memory)
            case SandboxForked(_, pid):
                sandbox.pid = pid
            case SandboxPaused(_, paused):
                sandbox.paused = paused
            case _:
                assert_never(report)

    def _on_exit(self, sandbox: Sandbox, *, code: int, out_of_memory: bool) -> None:
        sandbox.output.drain()
        invocation = sandbox.invocation
        if invocation is not None and sandbox.unbegun and not sandbox.doomed:
            log.info("sandbox %d did not begin worker %s", sandbox.number, invocation.worker)
            self._queue.put_back(invocation)
        elif invocation is not None and not sandbox.doomed:
            self._counts["out_of_memory" if out_of_memory else "died"] += 1
            reason = LossReason.OUT_OF_MEMORY if out_of_memory else LossReason.DIED
            reason = LossReason.TIME_LIMIT if sandbox.late else reason
            reason = LossReason.ERROR if sandbox.fault else reason
            running = sandbox.running.numbers()
            self._report_loss(invocation, reason, running, code=code, detail=sandbox.fault)
        self._discard(sandbox)
        self._quieter.notify_all()
        self._serve_queue()

    def _discard(self, sandbox: Sandbox) -> None:
        """Leave nothing of a sandbox that has ended."""
        sandbox.invocation = None
        self._due.pop(sandbox.number, None)
        self._pool.remove(sandbox.number)
        del self._sandboxes[sandbox.number]
        if all(other.zygote != sandbox.zygote for other in self._sandboxes.values()):
            self._zygotes.release(sandbox.zygote)
        for file in (sandbox.control, *sandbox.output.streams.values()):
            self._listener.remove(file)
        sandbox.close()

    def _report_loss(
        self,
        lost: Invocation,
        reason: LossReason,
        running: Sequence[int] = (),
        *,
        code: int | None = None,
        detail: str = "",
    ) -> None:
        start = lost.start
        loss = Loss(reason, tuple(running), start.memory_mb, start.epoch, code, detail)
        self._supervisor.lost(lost, loss, self.memory_mb or start.memory_mb)
