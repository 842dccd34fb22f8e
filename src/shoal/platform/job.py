"""`Job`: what an engine runs: a gateway with a sandbox for each event that it serves at a time.

1. A worker runs in a sandbox, so the job outlives it: it sees which task was running, whether the
   memory was exceeded, what was printed, and tells through the store. It renews the worker's lease
   even while a task holds Python's lock.
2. Workers that its worker starts, and lost workers that are to restart, go elsewhere: to the board,
   or to the engine.
3. Every moment the job writes what it is doing to the board, and learns which runs were cancelled.
4. An event is done when its worker has ended and nothing is left to send: the engine may freeze the
   process then. So the job doesn't beat between two events: a store that is asked before a freeze
   and answers after it would look as if it had been away.
5. A job that can't reach the store for long ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from msgspec.structs import replace

from shoal.errors import EnvironmentMismatch, ShoalError, StoreError, StoreUnavailable
from shoal.platform.base import LogLine
from shoal.platform.environment import this_environment
from shoal.platform.events import (
    INDEX_VARIABLE,
    Deployment,
    Offer,
    Work,
    addressees,
    groups,
    opened,
    sealed,
)
from shoal.platform.gateway import LocalGateway
from shoal.platform.invocation import Invocation, RunContext, Start, kind_of
from shoal.platform.sandbox import Sandbox
from shoal.platform.sandbox_env import SandboxEnv, variable_names
from shoal.platform.server import GatewayServer
from shoal.platform.tokens import new_token
from shoal.storage.host_memory import HostMemory
from shoal.storage.job_board import JobBoard, JobRecord
from shoal.storage.letters import WorkerLost
from shoal.storage.shard_urls import url_for
from shoal.storage.sharded import open_store
from shoal.types import Loss, LossReason, Resources, RunId, WorkerId

if TYPE_CHECKING:
    from shoal.platform.remote import RemotePlatform

log = logging.getLogger(__name__)

PLATFORM_VARIABLE = "SHOAL_PLATFORM"
"""Names the engine in the environment of a function that starts others."""
PASS_VARIABLE = "SHOAL_PASS_VARIABLES"
"""Names the variables that a job passes on to tasks, as the setting does."""
_BEAT_SECONDS = 0.5
_TAKE_SECONDS = 1.0
_LAST_SECONDS = 0.01
"""How long a job that ends waits for a start that was meant for it."""
_WARM_SECONDS = 0.2
"""How long a call lasts that is only to warm a process up: the next one finds another process."""
_END_SECONDS, _END_SHARE = 5.0, 0.1
"""How long before the end of a call its worker is killed, so that the job can report it: so many
seconds, or this share of a short call."""
_OWN_MB = 96
"""What the job itself needs of the memory of a function."""
_BRANCHES = 8
"""Into how many calls the starts of an event are split."""

Elsewhere = Callable[[RunContext, Sequence[Start]], None]


class BoardLogs:
    """What tasks print, on its way to the board."""

    def __init__(self, board: JobBoard) -> None:
        self._board = board
        self._lock = threading.Lock()
        self._lines: dict[RunId, list[tuple[float, str, str, str]]] = {}
        """What was printed, with the monotonic time of it."""

    def extend(self, run: RunId, worker: str, stream: str, texts: Sequence[str]) -> None:
        """Keep lines for the next flush."""
        now = time.monotonic()
        with self._lock:
            kept = self._lines.setdefault(run, [])
            kept.extend((now, worker, stream, text) for text in texts)

    def flush(self) -> None:
        """Send what was printed, with the store's time, as in timelines."""
        with self._lock:
            printed, self._lines = self._lines, {}
        for run, lines in printed.items():
            ahead = self._board.clock(run).now() - time.monotonic()
            sent = [json.dumps([printed + ahead, *line]).encode() for printed, *line in lines]
            self._board.print(run, sent)

    def read(self, run: RunId) -> Sequence[LogLine]:
        """The lines that a run printed, anywhere."""
        self.flush()
        return log_lines(self._board, run)


def log_lines(board: JobBoard, run: RunId) -> list[LogLine]:
    """The lines that a run printed."""
    return [LogLine(*json.loads(line)) for line in board.printed(run)]


class JobGateway(LocalGateway):
    """A gateway whose own sandboxes run what the job takes; all else starts elsewhere."""

    def __init__(
        self,
        entry: str,
        deployment: Deployment,
        board: JobBoard,
        logs: BoardLogs,
        elsewhere: Elsewhere,
    ) -> None:
        self._deployment = deployment
        self._board = board
        self._elsewhere = elsewhere
        self.up = False
        """Whether the job was there before its next worker."""
        self._callers = 0
        """Callers of `run_here` that wait for their workers."""
        passed = variable_names(os.environ.get(PASS_VARIABLE, ""))
        env = SandboxEnv(isolation=False, own_folder=True, variables=passed)
        super().__init__(entry, logs, capacity=1, idle_seconds=float("inf"), sandbox_env=env)

    def take(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers elsewhere: its worker or its supervisor asks for them."""
        self._elsewhere(context, starts)

    def run_here(
        self,
        context: RunContext,
        start: Start,
        begun: Callable[[], None],
        seconds: float | None = None,
    ) -> None:
        """Run a worker in a sandbox until it has ended and its end is dealt with.

        Args:
            context: Its run.
            start: The start.
            begun: Called when it has been started.
            seconds: How long it may run before it is killed; None: no limit.
        """
        with self._lock:
            self._limit = seconds
            self._callers += 1
            self.make_room(self._callers)
        try:
            super().take(context, [start])
            begun()
            with self._lock:
                self._quieter.wait_for(lambda: self._closed or not self._has(context.run, start))
            self._supervisor.settle()
        finally:
            with self._lock:
                self._callers -= 1

    def _give(
        self, sandbox: Sandbox, invocation: Invocation, acquired: Literal["cold", "warm"]
    ) -> None:
        """A start counts as warm if the job was there: a sandbox takes no time beside a job."""
        super()._give(sandbox, invocation, "warm" if self.up else acquired)
        self.up = True

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        """Have jobs ready elsewhere; returns how many were asked for."""
        memory_mb, cpus = resources.memory_mb, resources.cpu_share
        nothing = Start(worker=WorkerId(""), epoch=0, memory_mb=memory_mb, cpus=cpus)
        self._elsewhere(context, [nothing] * count)
        return count

    def alive(self) -> dict[RunId, list[tuple[WorkerId, int]]]:
        """Its own worker, and those that wait for a job: waiting isn't dying."""
        found = super().alive()
        with contextlib.suppress(StoreError):  # then only its own worker is known to live
            for run, starts in waiting_starts(self._board, self._deployment).items():
                found.setdefault(run, []).extend(starts)
        return found

    def _has(self, run: RunId, start: Start) -> bool:
        """Whether a start of a worker runs or waits here."""
        here = [s.invocation for s in self._sandboxes.values() if s.invocation]
        wanted = (run, start.worker, start.epoch)
        return any((each.run, each.worker, each.epoch) == wanted for each in (*here, *self._queue))

    @property
    def current(self) -> list[tuple[Invocation, tuple[int, ...]]]:
        """What its sandboxes are doing, and the numbers of the tasks that are running."""
        with self._lock:
            return [
                (sandbox.invocation, () if sandbox.paused else tuple(sandbox.running.numbers()))
                for sandbox in self._sandboxes.values()
                if sandbox.invocation is not None
            ]

    def close(self) -> None:
        """Kill the sandboxes; `run_here` returns."""
        super().close()
        with self._lock:
            self._quieter.notify_all()


class Job:
    """A job's process; safe to use from several threads, one for each event."""

    def __init__(
        self,
        deployment: Deployment,
        name: str,
        entry: str,
        *,
        stays: bool,
        elsewhere: Elsewhere | None = None,
        settle: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
        memory_mb: int | None = None,
    ) -> None:
        """Begin without work.

        Args:
            deployment: What it shares with its clients.
            name: Its name on the board.
            entry: `module:function` that its sandboxes call with each message.
            stays: Whether it takes work from the board.
            elsewhere: Starts workers on an engine that takes work in its events; None: they wait on
                the board.
            settle: Sees to it that all that goes elsewhere has left this process.
            close: Ends what starts workers elsewhere.
            memory_mb: The most memory that a worker gets there; None: that of this machine.
        """
        self._deployment = deployment
        self._name = name
        self._entry = entry
        self._board = board_of(deployment, stays=stays)
        self._taking = board_of(deployment, stays=stays)
        self._logs = BoardLogs(self._board)
        self._elsewhere = elsewhere or self._push
        self._gateway = JobGateway(entry, deployment, self._board, self._logs, self._elsewhere)
        if memory_mb is not None:
            self._gateway.memory_mb = memory_mb
        self._settle = settle
        self._close_elsewhere = close
        self._server = GatewayServer(self._gateway, new_token())
        self._kind = ""
        """The work that it takes from the board; empty: none."""
        self._reporting = threading.Lock()
        self._reported = 0
        """How many records it has on the board."""
        self._cancelled: frozenset[str] = frozenset()
        self._closed = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="shoal-beat", daemon=True)
        self._beating.start()

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed.is_set()

    def _push(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Have jobs that stay take starts."""
        self._board.push(pushed(context, starts, self._deployment, self._entry))

    def serve(self, offer: Offer) -> None:
        """Take work from the board until there is none for a while, or time is running out."""
        self._kind = kind_of(offer.resources)
        ends = float("inf") if offer.seconds is None else time.monotonic() + offer.seconds
        late = ends if offer.taking_seconds is None else time.monotonic() + offer.taking_seconds
        self._report()
        with contextlib.closing(HostMemory(self._deployment.id)) as host:
            while (event := self._next(offer, late, host)) is not None:
                asked = opened(event, self._deployment)
                if isinstance(asked, Work):
                    left = None if offer.seconds is None else ends - time.monotonic()
                    copies = host.folder(asked.context.run)
                    context = replace(asked.context, copies=copies)
                    self.perform(replace(asked, context=context), left)

    def _next(self, offer: Offer, late: float, host: HostMemory) -> bytes | None:
        """The next start for this job; None if none comes in time."""
        until = min(time.monotonic() + offer.idle_seconds, late)
        while not self._closed.is_set():
            now = time.monotonic()
            if now >= until:
                if now >= late or not self._stands_by(offer.spares):
                    break
                until = min(now + offer.idle_seconds, late)
            event = self._taking.take(self._kind, min(until - now, _TAKE_SECONDS))
            if event is not None:
                return event
            self._gateway.up = True
            host.leave()
        if self._closed.is_set():
            return None
        with self._reporting:  # from now on, who starts jobs doesn't count on this one
            self._board.remove(self._name, max(1, self._reported))
            self._reported = 0
        return None if time.monotonic() >= late else self._taking.take(self._kind, _LAST_SECONDS)

    def _stands_by(self, spares: int) -> bool:
        """Whether this idle job is to replace others that are at work."""
        if not spares:
            return False
        alike = [each for each in self._board.jobs().values() if each.kind == self._kind]
        idle = sum(not each.run for each in alike)
        return idle <= spares and idle < len(alike)

    def perform(
        self, work: Work, seconds: float | None = None, memory_mb: int | None = None
    ) -> None:
        """Run the first worker here, and have the others started elsewhere.

        Args:
            work: What is asked for.
            seconds: How long the engine lets this call run; None: no limit.
            memory_mb: The memory of the function; None: unknown.
        """
        if not work.starts or self._was_cancelled(work.context.run):
            return
        first, *others = work.starts
        for group in groups(others, _BRANCHES) if others else ():
            self._elsewhere(work.context, group)
        if first.epoch:
            if memory_mb is not None:  # it is killed instead of the whole function
                first = replace(first, memory_mb=min(first.memory_mb, memory_mb - _OWN_MB))
            if self._kind and self._gateway.up:  # it may have waited for room
                first = replace(first, sent=0.0)
            limit = None if seconds is None else seconds - min(_END_SECONDS, _END_SHARE * seconds)
            self._gateway.run_here(work.context, first, self._report, limit)
            if self.closed:
                return
            self._report()
        elif not self._kind:
            time.sleep(_WARM_SECONDS)
        self._gateway.up = True
        self._settle()

    def _was_cancelled(self, run: RunId) -> bool:
        """Whether a run was cancelled, and isn't resumed."""
        return run in self._cancelled and run in self._board.cancelled()

    def _beat(self) -> None:
        """Tell what the job is doing, every moment."""
        while not self._closed.wait(_BEAT_SECONDS):
            try:
                if self._reported:
                    self._report()
            except StoreError as error:
                log.warning("the job ends: %s", error)
                self._closed.set()
                self._gateway.close()
                return

    def _report(self) -> None:
        with self._reporting:
            self._logs.flush()
            records = self._records()
            self._cancelled = self._board.report(self._name, *records, before=self._reported)
            self._reported = len(records)
        for run in {record.run for record in records} & self._cancelled:
            self._gateway.cancel(RunId(run))

    def _records(self) -> list[JobRecord]:
        """What the job is doing: a record for each of its workers, or that it waits for work."""
        now = self._board.now()
        current = [
            JobRecord(
                kind=kind_of(each.start.resources),
                at=now,
                run=each.run,
                worker=each.worker,
                epoch=each.epoch,
                running=running,
            )
            for each, running in self._gateway.current
        ]
        return current or ([JobRecord(kind=self._kind, at=now)] if self._kind else [])

    def close(self) -> None:
        """End the sandboxes, and leave the board, unless workers are lost with the job."""
        busy = bool(self._gateway.current)
        self._closed.set()
        self._server.close()
        self._gateway.close()
        self._beating.join()
        try:
            self._logs.flush()
            if not busy:  # else who watches the job finds out which workers are lost
                self._board.remove(self._name, max(1, self._reported))
        except StoreError as error:
            log.warning("the job ends without the board: %s", error)
        self._board.disconnect()
        self._taking.disconnect()
        self._close_elsewhere()


def board_of(deployment: Deployment, *, stays: bool, known: bool = True) -> JobBoard:
    """The board of a deployment's jobs of this version of Shoal.

    Those that stay take nothing that is left to functions.
    """
    version = this_environment().shoal
    name = f"{deployment.id}-{version}" if stays else f"{deployment.id}-{version}-calls"
    return JobBoard(url_for(deployment.store, deployment.id), name, known=known)


def pushed(
    context: RunContext, starts: Sequence[Start], deployment: Deployment, entry: str
) -> dict[str, list[bytes]]:
    """Starts as events on the board, by the kind of job that they wait for.

    Args:
        context: Their run.
        starts: The starts.
        deployment: Whose board this is.
        entry: `module:function` that sandboxes call with each message.
    """
    events: dict[str, list[bytes]] = {}
    for start in starts:
        work = Work(entry=entry, context=context, starts=(start,))
        events.setdefault(kind_of(start.resources), []).append(sealed(work, deployment))
    return events


def waiting_starts(
    board: JobBoard, deployment: Deployment
) -> dict[RunId, list[tuple[WorkerId, int]]]:
    """The starts that wait for a job, by run."""
    found: dict[RunId, list[tuple[WorkerId, int]]] = {}
    for events in board.waiting().values():
        for event in events:
            work = opened(event, deployment)
            if isinstance(work, Work):
                starts = [(start.worker, start.epoch) for start in work.starts]
                found.setdefault(work.context.run, []).extend(starts)
    return found


_job: Job | None = None
"""The job of this process, for engines that call a function again and again."""
_making = threading.Lock()


def run(
    event: bytes | str | Mapping[str, Any],
    *,
    seconds: float | None = None,
    memory_mb: int | None = None,
) -> dict[str, Any]:
    """Do what an event asks for; the function that an engine calls, in several threads if it likes.

    Args:
        event: What the engine was given to start the job with.
        seconds: How long the engine lets this call run; None: no limit.
        memory_mb: The memory of the function; None: unknown.

    Returns:
        What was done, for the engine's log.
    """
    deployment = Deployment.of_environment()
    try:
        asked = opened(event, deployment)
    except EnvironmentMismatch as error:
        _refuse(event, deployment, str(error))
        raise
    if isinstance(asked, Offer):
        check_store(deployment)
        name = asked.name(os.environ.get(INDEX_VARIABLE))
        job = Job(deployment, name, asked.entry, stays=True)
        try:
            job.serve(asked)
        finally:
            job.close()
        return {"served": asked.job}
    job = _job_of_process(deployment, asked.entry)
    job.perform(asked, seconds, memory_mb)
    if job.closed:
        raise StoreUnavailable("The job has ended, because it can't reach the store.")
    return {"ran": [start.worker for start in asked.starts]}


def _refuse(event: bytes | str | Mapping[str, Any], deployment: Deployment, why: str) -> None:
    """Tell the client of a run that its workers can't start here: it may not hear the engine."""
    run, workers = addressees(event, deployment)
    if not workers:
        return
    with contextlib.suppress(ShoalError):  # the run may be over
        store = open_store(deployment.store)
        try:
            for worker, epoch, memory_mb in workers:
                loss = Loss(LossReason.ERROR, (), memory_mb, epoch, 1, why)
                store.post(run, WorkerLost(worker, loss))
        finally:
            store.disconnect()


def check_store(deployment: Deployment) -> None:
    """Fail at once if the store can't be reached from here: waiting wouldn't help."""
    board = JobBoard(url_for(deployment.store, deployment.id), deployment.id)
    board.now()
    board.disconnect()


def _job_of_process(deployment: Deployment, entry: str) -> Job:
    global _job
    with _making:
        if _job is None or _job.closed:
            _job = _function_job(deployment, entry)
        return _job


def _function_job(deployment: Deployment, entry: str) -> Job:
    """The job of a function: it starts others on the engine that its environment names."""
    name, platform = secrets.token_hex(8), elsewhere(deployment, entry)
    if platform is None:
        return Job(deployment, name, entry, stays=False)
    largest = platform.memory_mb
    return Job(
        deployment,
        name,
        entry,
        stays=False,
        elsewhere=platform.send,
        settle=platform.settle,
        close=platform.close,
        memory_mb=None if largest is None else largest - _OWN_MB,
    )


def close() -> None:
    """End the job of this process."""
    with _making:
        if _job is not None:
            _job.close()


def elsewhere(deployment: Deployment, entry: str) -> RemotePlatform | None:
    """How a job of an engine that calls functions starts others; None: through the board."""
    from shoal.platform.engine import maker_of
    from shoal.platform.remote import RemotePlatform

    url = os.environ.get(PLATFORM_VARIABLE)
    if url is None:
        return None
    folder = Path(tempfile.gettempdir())  # a function's home may be read-only
    return RemotePlatform(maker_of(url)(url, deployment, folder), deployment, entry)


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    """Run a job as a process: the event is the first argument."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    signal.signal(signal.SIGTERM, _terminated)
    try:
        run(sys.argv[1])
    except ShoalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
