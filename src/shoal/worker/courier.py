"""`Courier`: carries out what a worker owes to others and wants from them.

1. Orders are carried out in the order given, by one thread at a time: a slot that has nothing else
   to do, or the courier's own thread while the slots are busy. If the store is far, always by the
   courier's own: a task that becomes ready doesn't wait for a round trip.
2. Everything that is ready to go travels in one round trip. Within it the store saves before it
   marks, so an output counts as saved as soon as it stands in line. Workers that it gives the
   right to start are invoked after it.
3. Large outputs for this machine go through shared memory, and nothing of them to the store.
4. A worker that hasn't entered does so with its first round trip; until then it changes nothing
   that others see, for its start may be a repetition. It may put outputs into shared memory that
   nobody has put there: nobody looks for them before they are marked.
"""

from __future__ import annotations

import heapq
import json
import logging
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shoal.clock import RealClock
from shoal.errors import NotPicklable, PlatformError, StoreError, Tampered
from shoal.execution.costs import FAR
from shoal.execution.effects import Mark
from shoal.execution.events import Fetched, Marked, Saved
from shoal.execution.plan import Part
from shoal.platform.base import NOTHING, Invocation, Platform
from shoal.storage.base import (
    Announcement,
    Claim,
    Completion,
    Letter,
    MarkRequest,
    Ready,
    Refused,
    Store,
)
from shoal.storage.codec import Blob, Buffer, blob_nbytes, decode, encode
from shoal.storage.keys import signed_announcement, signed_inputs, signed_mark, signed_output
from shoal.storage.shared import SharedFolder, worthwhile
from shoal.types import Resources, TaskId, WorkerId
from shoal.worker.background import in_background
from shoal.worker.base import Worker
from shoal.worker.finding import Finder
from shoal.worker.pulse import alive
from shoal.worker.recorder import SAVE
from shoal.worker.recovery import opened_outputs

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.25
_QUICK = 0.0005
"""Seconds of a round trip to a store that is near."""
_LATE = 60.0
"""Seconds until an output that was saved, and isn't there, counts as gone."""


@dataclass(slots=True)
class _Parking:
    executed: bytes
    read: str
    again: bool


Order = Callable[[], None]


class Courier:
    """The worker's connection to everything else."""

    def __init__(
        self,
        invocation: Invocation,
        part: Part,
        store: Store,
        platform: Platform,
        shared: SharedFolder | None,
        worker: Worker,
        given: Buffer | None = None,
        *,
        entered: bool = True,
    ) -> None:
        self._invocation = invocation
        self._part = part
        self._store = store
        self._platform = platform
        self._shared = shared
        self._worker = worker
        self._given = given
        self._entered = entered
        self._key = bytes.fromhex(invocation.key)
        self._finder = Finder(invocation.run, store, shared, self._key, worker.recorder)
        self._clock = RealClock()
        self._room = part.resources.memory_mb * 1024 * 1024 // 2
        """What may still go into shared memory, which counts as this worker's own."""
        self._orders: deque[Order] = deque()
        self._saves: list[tuple[str, Blob]] = []
        self._sending: dict[TaskId, int] = {}
        """What is saved with the next round trip, and its size."""
        self._sending_since = 0.0
        self._marks: list[MarkRequest] = []
        self._announcements: list[Announcement] = []
        self._letters: list[Letter] = []
        self._starts: dict[WorkerId, bytes] = {}
        """Flexible workers to be started with the next round trip, and what they are given."""
        self._crowd: dict[WorkerId, bool] = {}
        """Those of them that the fan-out invoker starts, and whether they are given anything."""
        self._invoked: list[TaskId] = []
        """The first tasks of all flexible workers that this one has started."""
        self._parking: _Parking | None = None
        self._leaving = False
        """The next round trip is the last, unless the store gives the worker a task."""
        self._left = False
        """It was: the client has the timeline."""
        self._finishing = False
        self._done = False
        self._told = 0
        """How many executed tasks the store knows of."""
        self._heard = time.monotonic()
        """When the store last heard of this worker."""
        self._trip = invocation.latency
        """Seconds that a round trip takes, if nothing disturbs it."""
        self._working = threading.Lock()
        self._wake = threading.Condition()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._woken = False
        self._stopped = False
        self._busy = False
        """The thread in the background is doing something."""

    def start(self) -> None:
        """Begin to work in the background."""
        self._woken = False  # the timers so far are seen to anyway
        in_background(self._run)

    def stop(self) -> None:
        """Do no more in the background."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
            self._wake.wait_for(lambda: not self._busy)

    def save(self, task: TaskId) -> None:
        """Save an own output."""
        self._orders.append(lambda: self._save(task))

    def fetch(self, outputs: tuple[TaskId, ...]) -> None:
        """Fetch outputs of others."""
        until = time.monotonic() + _LATE
        self._orders.append(lambda: self._fetch(outputs, {}, until))

    def mark(self, mark: Mark, plain: dict[TaskId, Any], pickled: dict[TaskId, Blob]) -> None:
        """Mark a task; small outputs for it travel along.

        A message that saves travel with says nothing of how long messages take.
        """

        def order() -> None:
            sent = 0.0 if self._saves else self._clock.now()
            if mark.held is not None:
                self._marks.append(
                    MarkRequest(mark.task, None, mark.producers, b"", mark.producer, mark.held)
                )
                return
            saved = self._worker.recorder.numbered(mark.saved)
            parts = (sent, plain, _joined(pickled), saved, self._part.worker)
            name = signed_mark(mark.task, mark.producer or self._part.worker)
            payload = b"".join(encode(parts, self._key, name))
            self._marks.append(
                MarkRequest(mark.task, mark.owner, mark.producers, payload, mark.producer)
            )

        self._orders.append(order)

    def invoke(
        self, task: TaskId, plain: dict[TaskId, Any], pickled: dict[TaskId, Blob], *, many: bool
    ) -> None:
        """Start a flexible worker with a task, through the fan-out invoker if it is one of many.

        Small inputs travel along; with the invoker through the store.
        """
        self._invoked.append(task)

        def order() -> None:
            what = f"an input of task {task!r}"
            try:
                blob = encode((plain, _joined(pickled)), self._key, signed_inputs(task), what=what)
            except NotPicklable as error:
                self._letters.append(self._worker.failure(task, error))
                return
            self._starts[WorkerId(task)] = b"".join(blob)
            if many:
                self._crowd[WorkerId(task)] = bool(plain or pickled)

        self._orders.append(order)

    def announce(self, task: TaskId, owner: WorkerId) -> None:
        """Tell another worker that an own output is saved."""

        def order() -> None:
            numbers = self._worker.recorder.numbered((task,))
            payload = b"".join(encode(numbers, self._key, signed_announcement(task)))
            self._announcements.append(Announcement(task, owner, payload))

        self._orders.append(order)

    def warm_up(self, resources: Resources, count: int) -> None:
        """Have sandboxes made ready; slots don't wait for it, nor does anything depend on it."""
        invocation = replace(
            self._invocation, memory_mb=resources.memory_mb, cpus=resources.cpu_share, part=None
        )

        def prewarm() -> None:
            try:
                self._platform.prewarm(invocation, count)
            except PlatformError as error:
                log.warning("no sandbox with %s could be warmed up: %s", resources, error)

        self.after(0.0, prewarm)

    def hand_in(self, task: TaskId, value: Any, blob: Blob | None, *, saved: bool) -> None:
        """Give the client a sink's output, or tell it that it is saved."""

        def order() -> None:
            sealed = [] if saved else blob or encode(value, self._key, signed_output(task))
            parts = () if saved else (b"".join(sealed),)
            self._letters.append(Letter("output", task, parts))

        self._orders.append(order)

    def post(self, letter: Letter) -> None:
        """Send the client a message."""
        self._orders.append(lambda: self._letters.append(letter))

    def park(self, executed: bytes, read: str, *, again: bool) -> None:
        """Ask the store to let the worker go; start it again at once if asked to."""

        def order() -> None:
            self._parking = _Parking(executed, read, again)

        self._orders.append(order)

    def finish(self, *, done: bool) -> None:
        """Hand the timeline in with the last round trip; whether everything is done."""

        def order() -> None:
            self._finishing = not self._left
            self._done = done

        self._orders.append(order)

    def leave(self) -> None:
        """Hand the timeline in with the next round trip, unless the store gives the worker a task.

        If outputs are saved by that trip, it goes later.
        """

        def order() -> None:
            self._leaving = not self._sending

        self._orders.append(order)

    def drop(self) -> None:
        """Forget what is still to do."""
        self._orders.clear()

    @property
    def pending(self) -> bool:
        """Whether there is something to carry out."""
        return bool(self._orders)

    def wake(self) -> None:
        """Have the orders carried out in the background."""
        with self._wake:
            self._woken = True
            self._wake.notify()

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back later, from the courier's thread."""
        with self._wake:
            self._timer_count += 1
            heapq.heappush(self._timers, (time.monotonic() + seconds, self._timer_count, callback))
            self._woken = True
            self._wake.notify()

    def work(self) -> bool:
        """Carry the orders out, unless another thread does; whether there was anything to do."""
        if self._trip <= FAR:
            return self._work()
        if self._orders:
            self.wake()
        return False

    def _work(self) -> bool:
        worked = False
        while self._orders:
            if not self._working.acquire(blocking=False):
                return worked
            try:
                worked = True
                self._carry_out()
            finally:
                self._working.release()
        return worked

    def settle(self) -> None:
        """Carry out what is left; afterwards no thread is under way with an order."""
        for callback in self._due():
            callback()
        with self._working:
            if self._orders:
                self._carry_out()

    def _carry_out(self) -> None:
        with alive(self._store, self._invocation):
            while self._orders:
                self._orders.popleft()()
            if self._sending and (self._finishing or self._parking):
                self._send()  # a timeline can't tell of outputs that are saved by the same trip
            self._send_last()

    def _send_last(self) -> None:
        """Send what is ready, then leave if that was asked for."""
        parking, self._parking = self._parking, None
        if self._finishing or parking:
            kind = "finished" if self._finishing else "parked"
            record = self._worker.recorder.taken(self._clock.now())
            self._letters.append(Letter(kind, self._part.worker, (record, *self._told_of())))
        leaving, self._leaving = self._leaving and not self._finishing, False
        if leaving:
            record = self._worker.recorder.record(self._clock.now())
            self._letters.append(Letter("finished", self._part.worker, (record, *self._told_of())))
        self._send(finished=self._done or leaving)
        if parking:
            run, epoch = self._invocation.run, self._invocation.epoch
            worker = self._part.worker
            left = True
            if parking.again:
                self._start_all([self._store.hand_over(run, worker, epoch, parking.executed)], {})
            else:
                left = self._store.park(run, worker, epoch, parking.read, parking.executed)
            self._worker.parked(left=left)

    def _send(self, *, finished: bool = False) -> None:
        """Send what is ready in one round trip."""
        if self._saves or self._marks or self._announcements or self._letters or self._starts:
            completion = Completion(
                self._saves,
                self._marks,
                self._letters,
                self._worker.executed,
                self._announcements,
                list(self._starts.items()),
                finished,
                not self._entered,
            )
            self._saves, self._marks, self._letters, self._announcements = [], [], [], []
            self._starts = {}
            self._complete(completion)
            sent = self._clock.now()
            self._worker.recorder.moved_together(SAVE, self._sending, self._sending_since, sent)
            self._sending.clear()

    def _told_of(self) -> tuple[bytes, ...]:
        """What the client has to know of the workers that a flexible one has started."""
        return (json.dumps(self._invoked).encode(),) if self._part.flexible else ()

    def _complete(self, completion: Completion) -> None:
        self._told = completion.executed
        self._heard = time.monotonic()
        invocation = self._invocation
        answers = self._store.complete(
            invocation.run, self._part.worker, invocation.epoch, completion
        )
        self._entered = True
        self._trip = min(time.monotonic() - self._heard, 2 * max(self._trip, _QUICK))
        stays = any([isinstance(answer, Ready | Refused) for answer in answers])
        self._left = completion.finished and not stays
        claims = [answer for answer in answers if isinstance(answer, Claim)]
        crowd, self._crowd = self._crowd, {}
        if crowd:
            own = [claim for claim in claims if claim.worker in crowd]
            self._start_crowd(own, given=any([crowd[claim.worker] for claim in own]))
            claims = [claim for claim in claims if claim.worker not in crowd]
        if claims:
            self._start_all(claims, dict(completion.starts))
        if self._part.flexible:
            ready = {answer.task: answer for answer in answers if isinstance(answer, Ready)}
            refused = {(a.task, a.producer) for a in answers if isinstance(a, Refused)}
            for mark in completion.marks:
                if (mark.task, mark.producer) in refused and mark.held is not None:
                    producer = TaskId(mark.producer or "")
                    self._worker.tell(Marked(mark.task, producer, claimed=False, refused=True))
                else:
                    self._tell_marked(mark, ready.pop(mark.task, None))

    def _start_all(self, claims: list[Claim], given: dict[WorkerId, bytes]) -> None:
        try:
            self._platform.invoke([self._invocation_of(claim, given) for claim in claims])
        except PlatformError as error:  # who tends the run will start them
            log.warning("workers could not be started: %s", error)

    def _start_crowd(self, claims: list[Claim], *, given: bool) -> None:
        """Have the fan-out invoker start workers; what they are given they find in the store."""
        if not claims:
            return
        like = self._invocation_of(claims[0], {})
        if not given:
            like = replace(like, inputs=NOTHING)
        try:
            self._platform.fan_out(like, [claim.worker for claim in claims])
        except PlatformError as error:
            log.warning("the fan-out invoker is left out: %s", error)
            self._start_all(claims, {})

    def _tell_marked(self, mark: MarkRequest, ready: Ready | None) -> None:
        held: dict[TaskId, Any] = {}
        if ready is not None:
            held = self.opened(Letter("ready", mark.task, ready.payloads))
            self._worker.keep(held)
        producer = TaskId(mark.producer or "")
        self._worker.tell(Marked(mark.task, producer, ready is not None, tuple(held)))

    def _invocation_of(self, claim: Claim, given: dict[WorkerId, bytes]) -> Invocation:
        invocation = self._invocation.of(claim, self._clock.now())
        if claim.worker in given:
            return replace(invocation, inputs=b64encode(given[claim.worker]).decode())
        return invocation

    def _save(self, task: TaskId) -> None:
        start = self._clock.now()
        try:
            blob = self._worker.blob(task)
        except NotPicklable as error:
            self._worker.unsaved(task, error)
            return
        nbytes = blob_nbytes(blob)
        if self._shared and worthwhile(blob) and nbytes <= self._room:
            if self._share(task, blob, self._shared):
                self._room -= nbytes
                self._worker.recorder.moved(SAVE, task, start, self._clock.now(), nbytes)
                self._worker.tell(Saved(task))
                return
            self._room = 0
        place = self._store.place(self._invocation.run, task, nbytes)
        self._worker.recorder.spread(place, saved=nbytes)
        if not self._saves:
            self._sending_since = start
        self._saves.append((task, blob))
        self._sending[task] = nbytes
        self._worker.tell(Saved(task))

    def _share(self, task: TaskId, blob: Blob, shared: SharedFolder) -> bool:
        """Put an output into shared memory, before entering only where nobody else has put it."""
        if not self._entered:
            if shared.write(task, blob, over=False):
                return True
            self._tell_progress()
        return shared.write(task, blob)

    def _fetch(self, outputs: tuple[TaskId, ...], found: dict[TaskId, Any], until: float) -> None:
        """Fetch what isn't found yet; of a worker that was lost it may have to be made again.

        Meanwhile other orders are carried out: whoever makes it may wait for one of them.
        """
        before = len(found)
        missing = self._finder.find(outputs, found)
        if len(found) > before:  # what came may have taken long
            until = max(until, time.monotonic() + _LATE)
        if not missing:
            self._worker.keep(found)
            self._worker.tell(Fetched(outputs))
        elif time.monotonic() > until:
            raise StoreError(f"The store has lost the output of task {missing[0]!r}.")
        else:
            again = partial(self._fetch, outputs, found, until)
            self.after(_PROGRESS_SECONDS, lambda: self._orders.append(again))

    def opened(self, letter: Letter) -> dict[TaskId, Any]:
        """The small outputs that came with a message; none with one that is about a saved one."""
        held: dict[TaskId, Any] = {}
        if letter.kind == "saved":
            name = signed_announcement(letter.name)
            self._worker.recorder.learn(decode(letter.parts[0], self._key, name))
            return held
        latest, alone = 0.0, True
        producers = self._part.shared.get(TaskId(letter.name), ())
        if len(letter.parts) != len(producers):
            raise Tampered(f"A message of task {letter.name!r} isn't from those whom it waits for.")
        for part, producer in zip(letter.parts, producers, strict=True):
            if not part:  # of one that holds its output
                continue
            name = signed_mark(letter.name, producer)
            sent, plain, pickled, saved, _ = decode(part, self._key, name)
            latest, alone = max(latest, sent), alone and sent > 0
            self._worker.recorder.learn(saved)
            held.update(plain)
            held.update(opened_outputs(pickled, self._key))
        if alone:
            self._worker.recorder.delivered(TaskId(letter.name), latest, self._clock.now())
        return held

    def inputs(self) -> dict[TaskId, Any]:
        """The inputs of a flexible worker's first task that came with its invocation."""
        inputs = self._invocation.inputs
        data = self._given if inputs is None else b64decode(inputs)
        if not data:
            return {}
        plain, pickled = decode(data, self._key, signed_inputs(self._invocation.worker))
        return {**plain, **opened_outputs(pickled, self._key)}

    def _run(self) -> None:
        try:
            while self._await_something():
                for callback in self._due():
                    callback()
                self._work()
        except BaseException as error:  # noqa: BLE001 - the driver's outermost edge
            self._worker.give_up(error)
        finally:
            self._rest()

    def _rest(self) -> None:
        with self._wake:
            self._busy = False
            self._wake.notify_all()

    def _await_something(self) -> bool:
        """Wait until there may be something to do; False if there will be no more."""
        self._rest()
        with self._wake:
            timeout = _PROGRESS_SECONDS
            if self._timers:
                timeout = min(timeout, max(0.0, self._timers[0][0] - time.monotonic()))
            woken = self._wake.wait_for(lambda: self._woken or self._stopped, timeout)
            self._woken = False
            if self._stopped:
                return False
            self._busy = True
        silent = time.monotonic() - self._heard > self._invocation.lease / 3
        if silent or (not woken and self._worker.executed != self._told):
            self._orders.append(self._tell_progress)
        return True

    def _tell_progress(self) -> None:
        if not self._left:
            entering = not self._entered
            self._complete(Completion(executed=self._worker.executed, entering=entering))

    def _due(self) -> Sequence[Callable[[], None]]:
        due = []
        with self._wake:
            while self._timers and self._timers[0][0] <= time.monotonic():
                due.append(heapq.heappop(self._timers)[2])
        return due


def _joined(pickled: dict[TaskId, Blob]) -> dict[TaskId, bytes]:
    return {task: b"".join(blob) for task, blob in pickled.items()}
