"""`LocalGateway`: a FaaS platform on this machine: sandboxes, a queue, logs, limits.

1. Sandboxes are kept as `WarmPool` says; invocations beyond its capacity, or beyond the workers
   that a run may have at work at once, wait in its queue.
2. Whoever invokes hands the job to the sandbox directly; a thread of the gateway's own only
   listens: to sandboxes that are done, to what they print, to zygotes that report an end.
3. A worker whose sandbox ends in the middle of a job is started anew, with more memory if it ran
   out of it. What ends it again and again is reported to the run's client through the store, with
   the reason and the tasks that were running.
4. A tender renews the leases of workers that are alive, and starts those anew that aren't.
5. Nothing is unpickled here. Whatever a sandbox says or does, at most that sandbox is ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.clock import RealClock
from shoal.errors import GatewayBusy, GatewayRefused
from shoal.execution.pool import Acquired, Queue, WarmPool
from shoal.platform.base import INLINE_NBYTES, Invocation, LogLine
from shoal.platform.housing import Housing
from shoal.platform.invoker import Invoker
from shoal.platform.kept import KeptRuns
from shoal.platform.limits import machine_memory_mb, openable
from shoal.platform.logs import RunLogs
from shoal.platform.sandbox import PAGE, RunningTasks
from shoal.platform.sandboxes import BEGIN_SECONDS, Kind, Sandbox
from shoal.platform.tending import Tender
from shoal.platform.tokens import run_token
from shoal.platform.zygotes import Zygotes
from shoal.system import cores, shared_page, this_host
from shoal.types import Resources, RunId, WorkerId

log = logging.getLogger(__name__)

_CANCEL_SECONDS = 5.0
_MOST_WAITING = 100_000
"""Invocations in the queue."""
_LINE = 64 * 1024
"""A longer line is cut, so that one without an end isn't collected for ever."""
_READ = 1 << 16
_FILES = 6
"""That a sandbox takes of what this process may open: its control, its streams, its requests."""
_DRAINS = 32
"""How often a stream is read after a job, should something go on printing."""
_END_SECONDS = 1.0
"""How long a sandbox that has hung up may take to end."""

_DEFAULT = Housing()


class LocalGateway:
    """Runs workers in sandboxes on this machine."""

    def __init__(
        self,
        entry: str,
        logs: RunLogs,
        *,
        capacity: int = 32,
        idle_seconds: float = 7.0,
        latency: float = 0.0,
        function_seconds: float | None = None,
        housing: Housing = _DEFAULT,
    ) -> None:
        """Start a gateway; its first zygote begins to load at once.

        Args:
            entry: `module:function` of what a sandbox does with a job.
            logs: Where user code's output is kept.
            capacity: How many sandboxes there may be at once.
            idle_seconds: After how long an idle sandbox is removed.
            latency: Seconds added to each invocation from this process, for experiments.
            function_seconds: After how long a worker is killed, as other platforms do.
            housing: What sandboxes get of the machine.
        """
        self._housing = housing
        self.host = this_host()
        self.memory_mb = machine_memory_mb()
        self.cpus: float = cores()
        self.inline_nbytes = INLINE_NBYTES
        self.address = ("", "")
        """URL and token at which workers reach this gateway."""
        self._logs = logs
        self._latency = latency
        self._limit = function_seconds
        self._longest_wait = min(BEGIN_SECONDS, function_seconds or BEGIN_SECONDS)
        self._clock = RealClock()
        self._pool: WarmPool[Kind] = WarmPool(capacity, idle_seconds)
        self._lock = threading.RLock()
        self._quieter = threading.Condition(self._lock)
        self._queue: Queue[Invocation, Kind] = Queue(
            self._pool, lambda job: (job.resources, job.session), lambda job: job.bound
        )
        self._sandboxes: dict[int, Sandbox] = {}
        self._due: dict[int, float] = {}
        """When to look at a sandbox, by its number: it may have to be ended."""
        self._counts = {"cold": 0, "warm": 0, "died": 0, "out_of_memory": 0}
        self._busy_seconds = 0.0
        self._logs_failed = False
        self._unlimited = False
        """It has been said that there are no control groups."""
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_wake)
        self._zygotes = Zygotes(entry, self._selector, housing)
        self._zygotes.start(1)
        self._tender = Tender(self.alive, self.take, self.cancel)
        self.invoker = Invoker(self.invoke)
        """Its own: a gateway needs none beside it."""
        self._thread = threading.Thread(target=self._listen, name="shoal-gateway", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        """How many sandboxes there may be at once."""
        return self._pool.capacity

    def make_room(self, workers: int) -> int:
        """Have room for so many workers at once, if files can be opened for them; for how many."""
        with self._lock:
            if workers > self._pool.capacity:
                self._pool.capacity = max(self._pool.capacity, openable(workers, _FILES))
            return self._pool.capacity

    def invoke(self, invocations: Sequence[Invocation]) -> None:
        """Start workers, at once or when there is room."""
        if self._latency:
            threading.Event().wait(self._latency)
        self.take(invocations)

    def take(self, invocations: Sequence[Invocation]) -> None:
        """Start workers, for who isn't in this process, and has waited for the round trip."""
        with self._lock:
            self._check_open()
            if len(self._queue) + len(invocations) > _MOST_WAITING:
                raise GatewayBusy(f"{len(self._queue)} workers wait for a sandbox already.")
            for job in invocations:
                self._supersede(job)
            self._tender.know(invocations)
            self._queue.extend(invocations)
            self._serve_queue(waited=False)

    def fan_out(self, like: Invocation, workers: Sequence[WorkerId]) -> None:
        """Have the fan-out invoker start workers."""
        self.invoker.fan_out(like, workers)

    def _supersede(self, job: Invocation) -> None:
        """Whoever is at work in an earlier start of the worker, or waits to be, was given up."""
        if job.epoch > 1 and not job.beside:
            worker = (job.run, job.worker)
            self._queue.drop(lambda j: (j.run, j.worker) == worker and j.epoch < job.epoch)
            for sandbox in self._of(job.run):
                earlier = sandbox.job
                if earlier and earlier.worker == job.worker and earlier.epoch < job.epoch:
                    self._kill(sandbox)

    def remember(self, kept: KeptRuns) -> None:
        """Go on with detached runs should this gateway be killed, and with those kept before."""
        self._tender.remember(kept)

    def alive(self) -> dict[RunId, list[tuple[WorkerId, int]]]:
        """The starts of workers that are at work or wait to be, by run."""
        found: dict[RunId, list[tuple[WorkerId, int]]] = {}
        with self._lock:
            jobs = [s.job for s in self._sandboxes.values() if s.job and not s.paused]
            for job in (*jobs, *self._queue):
                found.setdefault(job.run, []).append((job.worker, job.epoch))
        return found

    def prewarm(self, invocation: Invocation, count: int) -> None:
        """Have idle sandboxes ready for workers like this one."""
        with self._lock:
            self._check_open()
            kind = (invocation.resources, invocation.session)
            ready: list[int] = []
            for _ in range(count):
                acquired = self._pool.acquire(kind, self._clock.now())
                if acquired is None or not self._ensure(acquired, kind, invocation.preload):
                    break
                ready.append(acquired.sandbox)
            for sandbox in ready:
                self._pool.release(sandbox, self._clock.now())
            self._wake_up()

    def pool(self, session: str) -> WarmPool[Resources]:
        """The sandboxes that a session's workers would find now."""
        with self._lock:
            return self._pool.copied(
                self._clock.now(), lambda kind: kind[0] if kind[1] == session else None
            )

    def cool(self) -> None:
        """Remove the sandboxes that are idle now, so that the next starts are cold."""
        with self._lock:
            for number in self._pool.expire(float("inf")):
                self._kill(self._sandboxes[number])

    def cancel(self, run: RunId) -> None:
        """Stop the run's workers; they are gone when this returns."""
        with self._lock:
            self._tender.forget(run)
            self._queue.drop(lambda job: job.run == run)
            for sandbox in self._of(run):
                self._kill(sandbox)
            self._quieter.wait_for(lambda: not self._of(run), _CANCEL_SECONDS)

    def running(self, run: RunId) -> Sequence[int]:
        """The numbers of the tasks that the run's workers are executing."""
        with self._lock:
            waiting = [-1 for job in self._queue if job.run == run]
            at_work = [s for s in self._of(run) if not s.paused]
            return waiting + [number for s in at_work for number in s.running.numbers()]

    def active(self, run: RunId) -> bool:
        """Whether a worker of the run is at work or waits to be."""
        with self._lock:
            return bool(self._of(run)) or any(job.run == run for job in self._queue)

    def _of(self, run: RunId) -> list[Sandbox]:
        return [s for s in self._sandboxes.values() if s.job is not None and s.job.run == run]

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """What the run's user code has printed."""
        with self._lock:
            for sandbox in self._of(run):
                self._drain(sandbox, unfinished=False)
        return self._logs.read(run)

    def status(self) -> dict[str, Any]:
        """What the gateway is doing."""
        with self._lock:
            return {
                "capacity": self._pool.capacity,
                "busy": self._pool.busy,
                "idle": self._pool.idle,
                "queued": len(self._queue),
                "limits": self._zygotes.limits,
                "isolation": self._zygotes.isolation,
                "memory_mb": self.memory_mb,
                "cpus": self.cpus,
                "invocations": dict(self._counts),
                "busy_seconds": round(self._busy_seconds, 6),
                "runs": sorted({s.job.run for s in self._sandboxes.values() if s.job}),
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
            self._wake_up()
        self.invoker.close()
        self._tender.close()
        self._thread.join()
        self._zygotes.close()
        for sandbox in list(self._sandboxes.values()):
            self._discard(sandbox)
        self._selector.close()
        self._wake.close()
        self._waker.close()

    def _check_open(self) -> None:
        if self._closed:
            raise GatewayRefused("The gateway has been closed.")

    def _serve_queue(self, *, waited: bool = True) -> None:
        """Give sandboxes to those that are next; `waited`: they didn't come just now."""
        while not self._closed and (served := self._queue.serve(self._clock.now())) is not None:
            job, acquired = served
            if waited:  # a start is timed from when there is room for it
                job = replace(job, sent=self._clock.now())
            if not self._ensure(acquired, (job.resources, job.session), job.preload):
                detail = "no sandbox could be made for it; the gateway's log says why"
                self._report(job, [], {"reason": "error", "detail": detail})
                continue
            self._counts[acquired.start] += 1
            self._give(self._sandboxes[acquired.sandbox], job, acquired.start)

    def _ensure(self, acquired: Acquired, kind: Kind, preload: Sequence[str]) -> bool:
        """Make the sandbox that the pool gave if it is a new one; False if that isn't possible."""
        if acquired.evicted is not None:
            self._kill(self._sandboxes[acquired.evicted])
        if acquired.start == "cold":
            try:
                self._create(acquired.sandbox, kind, preload)
            except OSError as error:
                log.warning("no sandbox could be made: %s", error)
                self._pool.remove(acquired.sandbox)
                return False
        return True

    def _create(self, number: int, kind: Kind, preload: Sequence[str]) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            control, inside = socket.socketpair()
            ours.callback(control.close)
            theirs.callback(inside.close)
            out, out_inside = _pipe(ours, theirs)
            err, err_inside = _pipe(ours, theirs)
            page = shared_page(PAGE)
            theirs.callback(os.close, page)
            running = RunningTasks(mmap.mmap(page, PAGE))
            key = (min(kind[0].slots, os.cpu_count() or 1), kind[1])
            zygote = self._zygotes.get(key, preload)
            zygote.fork(number, kind[0], (inside.fileno(), out_inside, err_inside, page))
            ours.pop_all()
        streams = {"stdout": out, "stderr": err}
        sandbox = Sandbox(number, kind, control, streams, running, key)
        self._sandboxes[number] = sandbox
        control.setblocking(False)
        self._watch(sandbox, control, self._on_control)
        for stream, descriptor in sandbox.streams.items():
            os.set_blocking(descriptor, False)
            self._watch(sandbox, descriptor, partial(self._on_print, stream=stream))

    def _give(self, sandbox: Sandbox, job: Invocation, start: str) -> None:
        sandbox.job = job
        sandbox.last_run = (job.run, job.worker)
        sandbox.began, sandbox.late = self._clock.now(), False
        sandbox.jobs += 1
        self._look_after(sandbox)
        url, token = self.address
        token = run_token(token, job.run, job.session)
        if self._housing.own_folder:
            job = replace(job, folder="")
        frame = {"invocation": job.to_dict(), "gateway": url, "token": token, "start": start}
        if not sandbox.send(json.dumps(frame, separators=(",", ":")).encode()):
            self._watch_also(sandbox, selectors.EVENT_WRITE)

    def _kill(self, sandbox: Sandbox) -> None:
        sandbox.doomed = True
        self._zygotes.kill(sandbox.zygote, sandbox.number)

    def _watch(self, sandbox: Sandbox, file: Any, callback: Callable[[Sandbox], None]) -> None:
        def carefully() -> None:
            try:
                callback(sandbox)
            except Exception:
                log.exception("sandbox %d", sandbox.number)
                self._expel(sandbox)

        self._selector.register(file, selectors.EVENT_READ, carefully)

    def _watch_also(self, sandbox: Sandbox, events: int) -> None:
        """Listen to a sandbox's answers, and to other events of its socket."""
        key = self._selector.get_map().get(sandbox.control.fileno())
        if key is not None:
            self._selector.modify(sandbox.control, selectors.EVENT_READ | events, key.data)

    def _stop_listening(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _wake_up(self) -> None:
        try:
            self._waker.send(b"!")
        except BlockingIOError:
            return

    def _on_wake(self) -> None:
        try:
            self._wake.recv(4096)
        except BlockingIOError:
            return

    def _listen(self) -> None:
        while not self._closed:
            with self._lock:
                soonest = min((*self._due.values(), self._pool.next_expiry() or float("inf")))
            timeout = min(max(0.0, soonest - self._clock.now()), self._longest_wait)
            ready = self._selector.select(timeout)
            with self._lock:
                for key, _ in ready:
                    if self._selector.get_map().get(key.fd) is key:
                        key.data()
                for message in self._zygotes.messages():
                    self._on_zygote(message)
                now = self._clock.now()
                for number in [number for number, due in self._due.items() if due <= now]:
                    self._look_after(self._sandboxes[number])
                for number in self._pool.expire(now):
                    self._kill(self._sandboxes[number])

    def _look_after(self, sandbox: Sandbox) -> None:
        """End a sandbox that is due to be; else note when it will be."""
        now, due = self._clock.now(), sandbox.due(self._limit)
        self._due.pop(sandbox.number, None)
        if due <= now:
            sandbox.late = self._limit is not None and sandbox.began + self._limit <= now
            self._zygotes.kill(sandbox.zygote, sandbox.number)
        elif due < float("inf"):
            self._due[sandbox.number] = due

    def _expel(self, sandbox: Sandbox, within: float = 0.0) -> None:
        """End a sandbox that can't be spoken to; a job that it has counts as lost."""
        self._stop_listening(sandbox.control.fileno())
        if sandbox.job is None:
            self._pool.remove(sandbox.number)
        sandbox.ends = self._clock.now() + within
        self._look_after(sandbox)

    def _on_control(self, sandbox: Sandbox) -> None:
        if sandbox.flush():
            self._watch_also(sandbox, 0)
        try:
            answer = sandbox.receive()
        except EOFError:
            self._expel(sandbox, within=_END_SECONDS)
            return
        except ValueError as error:
            log.warning("sandbox %d is ended: %s", sandbox.number, error)
            sandbox.fault = f"its sandbox was ended: {error}"
            self._expel(sandbox)
            return
        if answer is not None:
            self._on_done(sandbox, answer)

    def _on_done(self, sandbox: Sandbox, answer: dict[str, Any]) -> None:
        job = sandbox.job
        self._due.pop(sandbox.number, None)
        self._drain(sandbox)
        self._busy_seconds += self._clock.now() - sandbox.began
        sandbox.job = None
        if job is not None and "error" in answer and not sandbox.doomed:
            running = sandbox.running.numbers()
            self._report(job, running, {"reason": "error", "detail": answer["error"]})
        if "changed" in answer:
            log.info("sandbox %d is discarded: its %s changed", sandbox.number, answer["changed"])
        if answer["reusable"] and not sandbox.doomed:
            self._pool.release(sandbox.number, self._clock.now())
        else:
            self._kill(sandbox)
        self._quieter.notify_all()
        self._serve_queue()

    def _on_print(self, sandbox: Sandbox, stream: str) -> None:
        descriptor = sandbox.streams[stream]
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return
        if not data:
            self._stop_listening(descriptor)
            return
        self._take_print(sandbox, stream, data)

    def _take_print(self, sandbox: Sandbox, stream: str, data: bytes) -> None:
        *lines, rest = (sandbox.rest.get(stream, b"") + data).split(b"\n")
        if len(rest) > _LINE:
            lines.append(rest)
            rest = b""
        sandbox.rest[stream] = rest
        self._keep(sandbox, stream, lines)

    def _keep(self, sandbox: Sandbox, stream: str, lines: Sequence[bytes]) -> None:
        run, worker = sandbox.last_run
        if not run or not lines:
            return
        try:
            self._logs.extend(
                run, worker, stream, [line.decode(errors="replace") for line in lines]
            )
        except OSError as error:
            if not self._logs_failed:
                log.warning("what tasks print can't be kept: %s", error)
            self._logs_failed = True

    def _drain(self, sandbox: Sandbox, *, unfinished: bool = True) -> None:
        """Take what a sandbox has printed so far, unfinished lines too unless told otherwise."""
        for stream, descriptor in sandbox.streams.items():
            for _ in range(_DRAINS):
                try:
                    data = os.read(descriptor, _READ)
                except OSError:
                    break
                if not data:
                    break
                self._take_print(sandbox, stream, data)
            if unfinished:
                rest = sandbox.rest.pop(stream, b"")
                self._keep(sandbox, stream, [rest] if rest else [])

    def _on_zygote(self, message: dict[str, Any]) -> None:
        sandbox = self._sandboxes.get(message.get("sandbox", -1))
        if message["op"] == "exited" and sandbox is not None:
            self._on_exit(sandbox, message)
        elif message["op"] == "forked" and sandbox is not None:
            sandbox.pid = message["pid"]
        elif message["op"] == "paused" and sandbox is not None:
            sandbox.paused = message["paused"]
        elif message["op"] == "gone":
            for lost in [s for s in self._sandboxes.values() if s.zygote == message["zygote"]]:
                _kill_group(lost.pid)
                self._on_exit(lost, {"code": -9, "out_of_memory": False})
        elif message["op"] == "ready" and message["warning"] and not self._unlimited:
            self._unlimited = True
            log.warning("%s", message["warning"])

    def _on_exit(self, sandbox: Sandbox, message: dict[str, Any]) -> None:
        self._drain(sandbox)
        job = sandbox.job
        if job is not None and sandbox.unbegun and not sandbox.doomed:
            log.info("sandbox %d could not begin worker %s", sandbox.number, job.worker)
            self._queue.put_back(job)
        elif job is not None and not sandbox.doomed:
            self._counts["out_of_memory" if message["out_of_memory"] else "died"] += 1
            reason = "out of memory" if message["out_of_memory"] else "died"
            reason = "time limit" if sandbox.late else reason
            facts = {"reason": reason, "code": message["code"]}
            if sandbox.fault:
                facts |= {"reason": "error", "detail": sandbox.fault}
            self._report(job, sandbox.running.numbers(), facts)
        self._discard(sandbox)
        self._quieter.notify_all()
        self._serve_queue()

    def _discard(self, sandbox: Sandbox) -> None:
        sandbox.job = None
        self._due.pop(sandbox.number, None)
        self._pool.remove(sandbox.number)
        del self._sandboxes[sandbox.number]
        if all(other.zygote != sandbox.zygote for other in self._sandboxes.values()):
            self._zygotes.release(sandbox.zygote)
        for descriptor in (sandbox.control.fileno(), *sandbox.streams.values()):
            self._stop_listening(descriptor)
        sandbox.control.close()
        for descriptor in sandbox.streams.values():
            os.close(descriptor)

    def _report(self, job: Invocation, running: list[int], facts: dict[str, Any]) -> None:
        facts |= {"running": running, "memory_mb": job.memory_mb, "epoch": job.epoch}
        most = self.memory_mb or job.memory_mb
        self._tender.lost(job, facts, most)


def _kill_group(pid: int) -> None:
    """End what a sandbox started that its zygote can't end any more."""
    if pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with the two stacks."""
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


def import_path() -> tuple[str, ...]:
    """Where this process imports modules from, for processes that are elsewhere."""
    return tuple(os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path)
