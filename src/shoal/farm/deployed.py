"""`DeployedFarm`: stages at work on a platform, seen from the client that owns them.

1. Three threads: one sends what was submitted, as much as has come together in one round trip; one
   receives results and what is said of workers; one sees to the crew.
2. A task is pending from its submission to its outcome, which comes once: a result, or the error
   with which it was given up. At most so many are pending, and so many bytes of their inputs; who
   submits more waits.
3. When the farm fails or is cancelled, every pending task's outcome is that error.
4. Whatever way a farm ends, its workers are gone afterwards, and everything of it in the store.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from shoal.errors import RunCancelled, RunLost, RunOver, ShoalError, TaskError
from shoal.farm.crew import Crew, Place
from shoal.farm.stage import Stage, StageSpec
from shoal.storage.base import Letter
from shoal.storage.codec import blob_nbytes, decode, encode
from shoal.storage.keys import CLIENT, signed_function, signed_value
from shoal.storage.pulse import beating
from shoal.storage.queues import FarmOpening, FarmStore, QueuedTask
from shoal.types import RunId, TaskId
from shoal.worker.failure import failure_error
from shoal.worker.farming import stage_of

log = logging.getLogger(__name__)

Sink = Callable[[Any, BaseException | None], None]
"""Is given a task's result, or its error."""

_BATCH, _BATCH_NBYTES = 128, 4 * 2**20
"""What is sent in one round trip at most."""
_PENDING_NBYTES = 256 * 2**20
"""What all pending tasks' inputs may have together; one alone may have more."""
_UNTRIMMED = 64
"""So many letters that were read are left in the store at most."""
_LEAVING_SECONDS = 2.0
"""How long workers that have nothing to do may take to leave."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that was given up."""

    given: Any
    """What its stage was given; None if that can't be read."""
    stage: int
    reason: str
    traceback: str


class DeployedFarm:
    """Stages one after the other, each a farm of workers; safe to use from several threads."""

    def __init__(
        self, specs: Sequence[StageSpec], place: Place, *, tries: int, capacity: int
    ) -> None:
        """Open it, and start its first workers.

        Args:
            specs: The stages, in the order in which tasks pass them.
            place: Where they are at work.
            tries: How often a task is tried at a stage before it is given up.
            capacity: How many tasks may be pending.
        """
        self.id = place.like.run
        self.capacity = capacity
        self._place = place
        self._key = bytes.fromhex(place.like.key)
        self._lease = place.like.lease
        self._opened = time.monotonic()
        self.stages = [Stage(number, spec, self.now) for number, spec in enumerate(specs)]
        self._lock = threading.Lock()
        """Guards what follows."""
        self._changed = threading.Condition(self._lock)
        """Tells of outcomes, of workers that are gone, and of the end."""
        self._filled = threading.Condition(self._lock)
        """Tells that there is something to send, and of the end."""
        self._pending: dict[str, tuple[Sink, int]] = {}
        """Who gets the outcome, and the size of the input."""
        self._nbytes = 0
        """The sizes of all of them."""
        self._outbox: deque[QueuedTask] = deque()
        self.watchers: set[Callable[[BaseException], None]] = set()
        """Are told why it has ended, whether or not a task of theirs is pending."""
        self._numbers = itertools.count(1)
        self._error: BaseException | None = None
        self._closing = False
        """Nothing is submitted any more."""
        self._closed = False
        opening = self._opening(specs, tries)
        self._store = FarmStore(place.like.store, place.like.latency)
        self._ahead = self._store.time() - time.monotonic()
        self.crew = Crew(self.stages, place, self._store, self.now)
        self._begin(opening)
        self._threads = [
            threading.Thread(target=self._guarded, args=(what,), name=name, daemon=True)
            for what, name in (
                (self._send, "shoal-farm-sender"),
                (self._receive, "shoal-farm-receiver"),
                (self._keep, "shoal-farm-keeper"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def _opening(self, specs: Sequence[StageSpec], tries: int) -> FarmOpening:
        limit = None if self._place.limit is None else 0.8 * self._place.limit
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
            self._place.restarts,
            self._place.ttl,
        )

    def _begin(self, opening: FarmOpening) -> None:
        try:
            self._store.begin(self.id, opening)
            for stage in self.stages:
                self.crew.hire(stage, stage.spec.workers)
        except BaseException:
            self._clean_up()
            raise

    def now(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._opened

    def submit(self, value: Any, sink: Sink) -> None:
        """Have a task worked on, when there is room; `sink` gets its outcome, in another thread."""
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
        """A task's place in each stage's order, and when the last stage is due."""
        arrived = due = self.now()
        ahead = self._opened + self._ahead
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
        """Tasks without an outcome yet."""
        return len(self._pending)

    def dead_letters(self) -> list[DeadLetter]:
        """The tasks that were given up, in the order of their submission."""
        return [
            self._dead_letter(task, known, given)
            for task, (known, given) in sorted(self._store.dead(self.id).items())
        ]

    def _dead_letter(self, task: str, known: Any, given: Any) -> DeadLetter:
        facts = json.loads(bytes(known))
        stage = stage_of(facts["worker"])
        try:
            value = decode(given, self._key, signed_value(task, stage))
        except Exception:  # noqa: BLE001 - what can't be read may be why it was given up
            value = None
        return DeadLetter(value, stage, facts["reason"], facts["traceback"])

    def wait(self) -> None:
        """Wait until no task is pending."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._stopped)

    def close(self, *, cancel: bool = False) -> None:
        """End it: when nothing is pending any more, or at once."""
        if not cancel:
            self.wait()
        with self._changed:
            already, self._closing = self._closing, True
            self._changed.notify_all()
            self._filled.notify_all()
        if already:
            return
        if not cancel and self._error is None:
            self._let_go()
        self._closed = True
        self._fail(RunCancelled(self.id))
        self._store.hang_up(self.id, CLIENT)
        self._clean_up()
        for thread in self._threads:
            thread.join()

    def _let_go(self) -> None:
        """Let workers that have nothing to do leave, so that their sandboxes stay warm."""
        try:
            self.crew.let_go()
        except ShoalError as error:
            log.debug("workers can't be told to leave: %s", error)
            return
        with self._changed:
            self._changed.wait_for(lambda: not self.crew.present, _LEAVING_SECONDS)

    def _clean_up(self) -> None:
        for undo in (
            partial(self._store.end, self.id, len(self.stages)),
            partial(self._place.platform.cancel, self.id),
            self._store.disconnect,
        ):
            try:
                undo()
            except ShoalError as error:
                log.debug("farm %s isn't cleaned up after: %s", self.id, error)

    def _guarded(self, what: Callable[[], None]) -> None:
        try:
            what()
        except RunOver:
            self._fail(RunLost(self.id))
        except BaseException as error:  # noqa: BLE001 - the outermost edge: who waits is told
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Give every pending task an error as its outcome, unless one has come before."""
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            left, self._pending = self._pending, {}
            watchers = list(self.watchers)
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
        """Bytes move: the farm isn't over because its keeper can't say so meanwhile."""
        self._store.keep_alive(self.id, self._place.ttl, len(self.stages))

    def _receive(self) -> None:
        read, untrimmed = "", 0
        while not self._closed and self._error is None:
            letters = self._store.receive(self.id, CLIENT, read, self._lease)
            for letter in letters:
                self._handle(letter)
                read = letter.id
            untrimmed += len(letters)
            if untrimmed >= _UNTRIMMED:
                self._store.trim(self.id, read)
                untrimmed = 0

    def _handle(self, letter: Letter) -> None:
        match letter.kind:
            case "done":
                self._on_done(letter)
            case "passed":
                self._on_passed(letter)
            case "failed":
                self._on_failed(letter)
            case "entered":
                self.crew.stage_of(letter.name).entered(letter.name)
            case "left":
                self._on_left(letter.name)
            case "lost":
                self.crew.lost(letter)
            case "broken":
                raise failure_error(TaskId(letter.name), letter.parts, (), self._key)

    def _on_done(self, letter: Letter) -> None:
        stage, parts = self.stages[-1], letter.parts
        self.crew.completed()
        for id_, seconds, blob in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            task = str(id_, "utf-8")
            try:
                value, error = decode(blob, self._key, signed_value(task, len(self.stages))), None
            except Exception as unreadable:  # noqa: BLE001 - it need not be readable here
                value, error = None, unreadable
            stage.completed(task, float(seconds))
            self._settle(task, value, error)
        with self._changed:
            self._changed.notify_all()

    def _on_passed(self, letter: Letter) -> None:
        number, parts = int(letter.name), letter.parts
        for id_, seconds in zip(parts[::2], parts[1::2], strict=True):
            task = str(id_, "utf-8")
            due = self.stages[number].completed(task, float(seconds))
            self.stages[number + 1].arrived(task, due)

    def _on_failed(self, letter: Letter) -> None:
        facts = json.loads(bytes(letter.parts[0]))
        stage = self.crew.stage_of(facts["worker"])
        name = getattr(stage.spec.function, "__name__", "task")
        task = TaskId(f"{name}#{int(letter.name, 16)}")
        error: TaskError = failure_error(task, letter.parts, (), self._key, letter.name)
        stage.completed(letter.name)
        self._settle(letter.name, None, error)
        with self._changed:
            self._changed.notify_all()

    def _settle(self, task: str, value: Any, error: BaseException | None) -> None:
        with self._lock:
            sink, nbytes = self._pending.pop(task, (None, 0))
            self._nbytes -= nbytes
        if sink is not None:
            sink(value, error)

    def _on_left(self, worker: str) -> None:
        self.crew.left(worker, replaced=not self._stopped)
        with self._changed:
            self._changed.notify_all()

    def _keep(self) -> None:
        while True:
            due = self.crew.attend()
            with self._changed:
                if self._changed.wait_for(lambda: self._stopped, max(0.0, due - self.now())):
                    return


def new_run() -> tuple[RunId, bytes]:
    """A farm's name and its key."""
    return RunId(time.strftime("farm-%m%d-%H%M%S-") + secrets.token_hex(3)), secrets.token_bytes(32)
