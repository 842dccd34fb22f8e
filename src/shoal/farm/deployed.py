"""`DeployedFarm`: a farm on a platform, seen from the client that owns it.

1. It has three threads. One sends submitted tasks, in batches; one receives results and news about
   workers; one keeps the crew going.
2. A task is pending from its submission to its outcome, which comes once: a result, or an error.
   The number of pending tasks and the size of their inputs are limited; a submission beyond that
   waits.
3. When the farm fails or is cancelled, that error is the outcome of every pending task.
4. However a farm ends, its workers end with it, and nothing of it stays in the store.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, assert_never

from shoal.client.farm_backend import FarmBackend
from shoal.errors import RunCancelled, RunLost, RunOver, ShoalError, TaskError
from shoal.farm.crew import Crew
from shoal.farm.stage import Stage, StageSpec
from shoal.storage.codec import Buffer, blob_nbytes, decode, encode
from shoal.storage.farm_queues import FarmOpening, FarmStore, QueuedTask
from shoal.storage.heartbeat import beating
from shoal.storage.keys import CLIENT, signed_function, signed_value
from shoal.storage.letters import (
    Failure,
    FarmOwnerLetter,
    FunctionBroken,
    Letter,
    MemoryGrown,
    TaskFailed,
    TasksDone,
    TasksPassed,
    WorkerEntered,
    WorkerLeft,
    WorkerLost,
    misaddressed,
)
from shoal.types import TaskId
from shoal.worker.failure import failure_error
from shoal.worker.farm_worker import stage_of

log = logging.getLogger(__name__)

Sink = Callable[[Any, BaseException | None], None]
"""Takes a task's outcome: its result, or its error."""

Watcher = Callable[[BaseException], None]
"""Called with the error that ended a farm, even if no task is pending."""

_BATCH, _BATCH_NBYTES = 128, 4 * 2**20
"""The most tasks, and bytes of inputs, that one round trip sends."""
_PENDING_NBYTES = 256 * 2**20
"""The most bytes that the inputs of all pending tasks may have; a single input may have more."""
_UNTRIMMED = 64
"""The most letters that stay in the store after they were read."""
_LEAVING_SECONDS = 2.0
"""How long to wait for idle workers to leave."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that was given up."""

    given: Any
    """The input of its stage; None if that can't be read."""
    stage: int
    reason: str
    traceback: str


class DeployedFarm:
    """A sequence of stages with workers of their own; safe to use from several threads."""

    def __init__(
        self, specs: Sequence[StageSpec], backend: FarmBackend, *, tries: int, capacity: int
    ) -> None:
        """Open the farm, and start its first workers.

        Args:
            specs: The stages, in the order in which tasks pass them.
            backend: The platform, and what workers are started with.
            tries: How often a stage tries a task before giving it up.
            capacity: How many tasks may be pending.
        """
        self.id = backend.context.run
        self.capacity = capacity
        self._backend = backend
        self._key = backend.context.key
        self._lease = backend.context.settings.lease
        self._opened = time.monotonic()
        self.stages = [Stage(number, spec, self.now) for number, spec in enumerate(specs)]
        self._lock = threading.Lock()
        """Guards the attributes below."""
        self._changed = threading.Condition(self._lock)
        """Signals outcomes, workers that left, and the end."""
        self._filled = threading.Condition(self._lock)
        """Signals that there is something to send, and the end."""
        self._pending: dict[str, tuple[Sink, int]] = {}
        """The sink of each pending task, and the size of its input."""
        self._nbytes = 0
        """The size of all pending inputs."""
        self._outbox: deque[QueuedTask] = deque()
        self._watchers: set[Watcher] = set()
        self._numbers = itertools.count(1)
        self._error: BaseException | None = None
        self._closing = False
        """Submissions are no longer accepted."""
        opening = self._opening(specs, tries)
        functions = [spec.function for spec in specs]
        self._backend = backend = backend.with_code(opening.functions, functions)
        self._store = FarmStore(backend.context.store, backend.context.settings.latency)
        self._clock = self._store.clock(self.id)
        """The server's clock, which decides what is late."""
        self._latest = 0.0
        """The server's time of the latest submission."""
        self.crew = Crew(self.stages, backend, self._store, self.now)
        self._begin(opening)
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), name=name, daemon=True)
            for loop, name in (
                (self._send, "shoal-farm-sender"),
                (self._receive, "shoal-farm-receiver"),
                (self._keep, "shoal-farm-keeper"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def _opening(self, specs: Sequence[StageSpec], tries: int) -> FarmOpening:
        limit = None if self._backend.limit is None else 0.8 * self._backend.limit
        functions = [
            encode(
                (spec.function, limit),
                self._key,
                signed_function(number),
                what=f"the function of stage {number + 1}",
            )
            for number, spec in enumerate(specs)
        ]
        return FarmOpening(
            functions,
            [spec.order.late_last for spec in specs],
            tries,
            self._lease,
            self._backend.platform.queue_seconds,
            self._backend.restarts,
            self._backend.ttl,
        )

    def _begin(self, opening: FarmOpening) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self._clean_up)
            self._store.begin(self.id, opening)
            for stage in self.stages:
                self.crew.hire(stage, stage.spec.workers)
            undo.pop_all()

    def now(self) -> float:
        """Seconds since the farm was opened."""
        return time.monotonic() - self._opened

    def submit(self, value: Any, sink: Sink) -> None:
        """Submit a task, once there is room for it; another thread gives `sink` the outcome."""
        task = f"{next(self._numbers):012x}"
        blob = encode(value, self._key, signed_value(task, 0), what="a farm's task")
        nbytes = blob_nbytes(blob)
        expected = [stage.expected(value) for stage in self.stages]
        with self._changed:
            if not self._room(nbytes):
                self._changed.wait_for(lambda: self._room(nbytes) or self._stopped)
            if self._error is not None or self._closing:
                raise self._error or RunCancelled(self.id)
            self._pending[task] = (sink, nbytes)
            self._nbytes += nbytes
            places, due = self._places(expected)
            self.stages[0].arrived(task, due)
            self._outbox.append(QueuedTask(task, places, blob))
            self._filled.notify_all()

    def _room(self, nbytes: int) -> bool:
        if not self._pending:
            return True
        return len(self._pending) < self.capacity and self._nbytes + nbytes <= _PENDING_NBYTES

    def _places(self, expected: Sequence[float]) -> tuple[tuple[float, ...], float]:
        """A task's place in the order of each stage, and when it is due."""
        self._latest = max(self._latest, self._clock.now())  # a new clock may be behind the old
        arrived = due = self.now()
        ahead = self._latest - arrived
        places = []
        for stage, seconds in zip(self.stages, expected, strict=True):
            deadline = stage.spec.deadline
            due = due + deadline.seconds(seconds) if deadline else inf
            places.append(stage.spec.order.score(arrived + ahead, due + ahead, seconds))
        return tuple(places), due

    @property
    def _stopped(self) -> bool:
        return self._error is not None or self._closing

    @property
    def pending(self) -> int:
        """How many tasks have no outcome yet."""
        with self._lock:
            return len(self._pending)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` when the farm ends; at once if it has ended."""
        with self._lock:
            self._watchers.add(watcher)
            error = self._error
        if error is not None:
            watcher(error)

    def unwatch(self, watcher: Watcher) -> None:
        """Don't call `watcher` any more."""
        with self._lock:
            self._watchers.discard(watcher)

    def dead_letters(self) -> list[DeadLetter]:
        """The tasks that were given up, in the order of their submission."""
        return [
            self._dead_letter(task, failure, given)
            for task, (failure, given) in sorted(self._store.dead(self.id).items())
        ]

    def _dead_letter(self, task: str, failure: Failure, given: Buffer) -> DeadLetter:
        stage = stage_of(failure.worker)
        try:
            value = decode(given, self._key, signed_value(task, stage))
        except Exception:  # noqa: BLE001 - the edge to the user's classes: no value
            value = None
        return DeadLetter(value, stage, failure.reason, failure.traceback)

    def wait(self) -> None:
        """Wait until no task is pending."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._stopped)

    def close(self, *, cancel: bool = False) -> None:
        """End the farm once no task is pending.

        Args:
            cancel: Whether to end it at once.
        """
        if not cancel:
            self.wait()
        with self._changed:
            already, self._closing = self._closing, True
            failed = self._error is not None
            self._changed.notify_all()
            self._filled.notify_all()
        if already:
            return
        if not (cancel or failed):
            self._dismiss_workers()
        self._fail(RunCancelled(self.id))
        self._store.hang_up(self.id, CLIENT)
        self._clean_up()
        for thread in self._threads:
            thread.join()

    def _dismiss_workers(self) -> None:
        """Let idle workers leave by themselves, so that their sandboxes stay warm."""
        try:
            self.crew.dismiss_all()
        except ShoalError as error:
            log.debug("cannot dismiss the workers of farm %s: %s", self.id, error)
            return
        with self._changed:
            self._changed.wait_for(lambda: not self.crew.present, _LEAVING_SECONDS)

    def _clean_up(self) -> None:
        for undo in (
            partial(self._store.end, self.id, len(self.stages)),
            partial(self._backend.platform.cancel, self.id),
            self._store.disconnect,
        ):
            try:
                undo()
            except ShoalError as error:
                log.debug("cleaning up after farm %s failed: %s", self.id, error)

    def _guarded(self, loop: Callable[[], None]) -> None:
        """Run a thread's loop; an error ends the farm."""
        try:
            loop()
        except RunOver:
            self._fail(RunLost(self.id))
        except BaseException as error:  # noqa: BLE001 - the thread's outermost edge: an outcome
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the farm with an error, unless it has ended; pending tasks get it as outcome."""
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            left, self._pending = self._pending, {}
            watchers = list(self._watchers)
            self._changed.notify_all()
            self._filled.notify_all()
        for sink, _ in left.values():
            sink(None, error)
        for watcher in watchers:
            watcher(error)

    def _send(self) -> None:
        batch = 0
        while True:
            with self._filled:
                self._filled.wait_for(lambda: self._outbox or self._stopped)
                if self._stopped:
                    return
                tasks: list[QueuedTask] = []
                nbytes = 0
                while self._outbox and len(tasks) < _BATCH and nbytes < _BATCH_NBYTES:
                    tasks.append(self._outbox.popleft())
                    nbytes += blob_nbytes(tasks[-1].blob)
            batch += 1
            with beating(self._stay_open, self._lease / 3):
                self._store.put(self.id, batch, tasks)

    def _stay_open(self, nbytes: int) -> None:
        """Renew the farm while a long transfer keeps its other thread from doing so."""
        self._store.keep_alive(self.id, self._backend.ttl, len(self.stages))

    def _receive(self) -> None:
        read, untrimmed = "", 0
        while not self._over():
            received = self._store.receive(self.id, CLIENT, read, self._lease)
            for id_, letter in received:
                self._handle(letter)
                read = id_
            untrimmed += len(received)
            if untrimmed >= _UNTRIMMED:
                self._store.trim(self.id, read)
                untrimmed = 0

    def _over(self) -> bool:
        with self._lock:
            return self._error is not None

    def _handle(self, letter: Letter) -> None:
        if not isinstance(letter, FarmOwnerLetter):
            raise misaddressed(letter)
        match letter:
            case TasksDone():
                self._on_done(letter)
            case TasksPassed():
                self._on_passed(letter)
            case TaskFailed():
                self._on_failed(letter)
            case WorkerEntered(worker):
                self.crew.stage_of(worker).entered(worker)
            case WorkerLeft(worker):
                self._on_left(worker)
            case WorkerLost(worker, loss):
                self.crew.lost(worker, loss)
            case FunctionBroken(worker, failure):
                raise failure_error(TaskId(worker), failure, (), self._key)
            case MemoryGrown():
                pass  # the worker restarts by itself, and a farm has no history to learn from
            case _:
                assert_never(letter)

    def _on_done(self, done: TasksDone) -> None:
        stage = self.stages[-1]
        self.crew.progressed()
        for task, seconds, result in done.results:
            try:
                value, error = decode(result, self._key, signed_value(task, len(self.stages))), None
            except Exception as unreadable:  # noqa: BLE001 - the edge to the user's classes
                value, error = None, unreadable
            stage.completed(task, seconds)
            self._settle(task, value, error)
        with self._changed:
            self._changed.notify_all()

    def _on_passed(self, passed: TasksPassed) -> None:
        before, after = self.stages[passed.stage], self.stages[passed.stage + 1]
        for task, seconds in passed.tasks:
            due = before.completed(task, seconds)
            after.arrived(task, due)

    def _on_failed(self, failed: TaskFailed) -> None:
        stage = self.crew.stage_of(failed.failure.worker)
        name = getattr(stage.spec.function, "__name__", "task")
        task = TaskId(f"{name}#{int(failed.task, 16)}")
        error: TaskError = failure_error(task, failed.failure, (), self._key, failed.task)
        stage.completed(failed.task)
        self._settle(failed.task, None, error)
        with self._changed:
            self._changed.notify_all()

    def _settle(self, task: str, value: Any, error: BaseException | None) -> None:
        with self._lock:
            sink, nbytes = self._pending.pop(task, (None, 0))
            self._nbytes -= nbytes
        if sink is not None:
            sink(value, error)

    def _on_left(self, worker: str) -> None:
        with self._lock:
            replaced = not self._stopped
        self.crew.left(worker, replaced=replaced)
        with self._changed:
            self._changed.notify_all()

    def _keep(self) -> None:
        while True:
            due = self.crew.supervise()
            clock = self._store.clock(self.id)
            with self._changed:
                self._clock = clock
                if self._changed.wait_for(lambda: self._stopped, max(0.0, due - self.now())):
                    return
