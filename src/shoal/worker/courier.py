"""`Courier`: carries out what a worker's outbox decides, against the store and the platform.

1. The outbox decides what the next step is and what travels together (`execution/outbox.py`). The
   courier takes one step after the other, in one thread at a time: a slot's, the mail's or its own.
2. A round trip is one `complete`. The workers whose start the store then claims are started before
   this worker is told about its marks.
3. Large outputs for this machine go into shared memory. A worker that hasn't entered the run may
   write one there only if no other start has: no worker looks for it before it is marked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

from shoal.errors import NotPicklable
from shoal.execution.effects import Effect, Fetch, Park, Save, WarmUp
from shoal.execution.events import Fetched, Marked, Saved
from shoal.execution.outbox import FETCH_AGAIN, Order, Outbox, Trip, shared_room
from shoal.execution.plan import FlexiblePart, Part
from shoal.platform.base import Platform
from shoal.platform.invocation import Invocation
from shoal.storage.base import Answer, Claim, MarkRequest, Ready, Refused, Store
from shoal.storage.codec import Blob, blob_nbytes
from shoal.storage.letters import TaskReady
from shoal.storage.shared_memory import SharedFolder
from shoal.types import TaskId
from shoal.worker.background import Background
from shoal.worker.base import Worker
from shoal.worker.cargo import Cargo, Packer
from shoal.worker.fetcher import Fetcher, OutputSearch
from shoal.worker.heartbeat import alive
from shoal.worker.host_outputs import HostOutputs
from shoal.worker.messages import Messages
from shoal.worker.recorder import SAVE
from shoal.worker.starter import Starter


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
        messages: Messages,
        *,
        entered: bool = True,
    ) -> None:
        self._invocation = invocation
        self._part = part
        self._store = store
        self._shared = shared
        self._worker = worker
        self._messages = messages
        context = invocation.context
        self._host = HostOutputs(None if shared else context.copies, shared_room(part.resources))
        self._fetcher = Fetcher(
            context.run, store, shared, self._host, context.key, worker.recorder
        )
        self._packer = Packer(part, worker, messages)
        self._starter = Starter(platform, invocation.context, worker.recorder.now)
        self._outbox: Outbox[Any] = Outbox(
            context.settings.latency,
            shared_room(part.resources) if shared else 0,
            entered=entered,
            silence=context.settings.lease / 3,
        )
        self._working = threading.Lock()
        self.background = Background(self._work_in_background, worker.give_up)

    def order(self, effect: Effect, given: Any = None) -> None:
        """Have an effect carried out.

        Args:
            effect: What to do.
            given: What goes along: the outputs of a mark, an invocation or a hand-in, the failure
                of an aborted task, what a parked worker has executed and read, or whether a
                finished worker has done everything.
        """
        if isinstance(effect, WarmUp):  # nothing depends on it, so it waits for no trip
            warm_up = partial(self._starter.warm_up, effect.resources, effect.count)
            self.background.after(0.0, warm_up)
        else:
            self._outbox.add(effect, given)

    def drop(self) -> None:
        """Discard all orders."""
        self._outbox.drop()

    @property
    def pending(self) -> bool:
        """Whether there is something to carry out."""
        return self._outbox.pending

    def work(self, took: float = inf) -> bool:
        """Carry orders out in this thread, or wake the courier's own for it.

        Args:
            took: Seconds of the task that this slot has just run, if it has another one to run.

        Returns:
            Whether this thread has carried anything out.
        """
        if self._outbox.slot_waits(took):
            return self._work()
        if self._outbox.pending:
            self.background.wake()
        return False

    def settle(self) -> None:
        """Carry out what is left; afterwards no other thread is carrying anything out."""
        self.background.call_due()
        with self._working:
            self._carry_out()

    def _work_in_background(self, woken: bool) -> None:
        self._outbox.remind(time.monotonic(), self._worker.executed, idle=not woken)
        self._work()

    def _work(self) -> bool:
        """Carry orders out unless another thread does; whether there were any."""
        worked = False
        while self._outbox.pending:
            if not self._working.acquire(blocking=False):
                return worked
            try:
                worked = True
                self._carry_out()
            finally:
                self._working.release()
        return worked

    def _carry_out(self) -> None:
        if not self._outbox.pending:
            return
        with alive(self._store, self._invocation):
            while (step := self._outbox.next(*self._now())) is not None:
                self._take(step)

    def _now(self) -> tuple[float, int]:
        return time.monotonic(), self._worker.executed

    def _take(self, step: Order[Any] | Trip[Any]) -> None:
        if isinstance(step, Trip):
            self._travel(step)
            return
        match step.effect:
            case Save(task):
                self._save(task, step)
            case Fetch(outputs):
                self._fetch(outputs, step.given or OutputSearch(outputs))
            case Park(_, again):
                self._park(*step.given, again=again)

    def _fetch(self, outputs: tuple[TaskId, ...], search: OutputSearch) -> None:
        """Fetch outputs. While one is missing, other orders go on: its producer may need them."""
        if self._fetcher.find(search):
            self._worker.keep(search.found)
            self._worker.tell(Fetched(outputs))
        else:
            self.background.after(FETCH_AGAIN, partial(self._outbox.add, Fetch(outputs), search))

    def _save(self, task: TaskId, order: Order[Any]) -> None:
        recorder = self._worker.recorder
        start = recorder.now()
        try:
            blob = self._worker.blob(task)
        except NotPicklable as error:
            self._worker.unsaved(task, error)
            return
        nbytes = blob_nbytes(blob)
        if self._shared and self._outbox.share(nbytes):
            if self._share(task, blob, self._shared):
                recorder.moved(SAVE, task, start, recorder.now(), nbytes)
                self._worker.tell(Saved(task))
                return
            self._outbox.room = 0
        recorder.spread(self._store.place(self._invocation.run, task, nbytes), saved=nbytes)
        self._packer.add_save(task, blob, start)
        self._outbox.load(order, task)
        self._worker.tell(Saved(task))

    def _share(self, task: TaskId, blob: Blob, shared: SharedFolder) -> bool:
        """Write an output to shared memory; over another start's only after entering."""
        if not self._outbox.entered:
            if shared.write(task, blob, over=False):
                return True
            self._travel(self._outbox.entry(*self._now()))
        return shared.write(task, blob)

    def _park(self, executed: bytes, read: str, *, again: bool) -> None:
        run, worker, epoch = self._invocation.run, self._part.worker, self._invocation.epoch
        left = True
        if again:
            self._starter.start([self._store.hand_over(run, worker, epoch, executed)], {})
        else:
            left = self._store.park(run, worker, epoch, read, executed)
        self._worker.parked(left=left)

    def _travel(self, trip: Trip[Any]) -> None:
        """Make a round trip, and act on the answers."""
        run, worker, epoch = self._invocation.run, self._part.worker, self._invocation.epoch
        cargo = self._packer.packed(trip)
        completion = cargo.completion(trip)
        departed = time.monotonic()
        answers = self._store.complete(run, worker, epoch, completion)
        stays = any([isinstance(answer, Ready | Refused) for answer in answers])
        self._outbox.back(trip, time.monotonic() - departed, stays=stays)
        if cargo.saves:
            self._packer.record_saves(cargo)
            for task, blob in cargo.saves.items():
                self._host.keep(task, blob)
        self._start(answers, cargo)
        if isinstance(self._part, FlexiblePart):
            self._tell_marked(cargo.marks, answers)

    def _start(self, answers: Sequence[Answer], cargo: Cargo) -> None:
        """Start the workers that the store has claimed for this one."""
        claims = [answer for answer in answers if isinstance(answer, Claim)]
        if cargo.crowd:
            crowd = [claim for claim in claims if claim.worker in cargo.crowd]
            self._starter.fan_out(crowd, given=any([cargo.crowd[c.worker] for c in crowd]))
            claims = [claim for claim in claims if claim.worker not in cargo.crowd]
        if claims:
            self._starter.start(claims, cargo.starts)

    def _tell_marked(self, marks: Sequence[MarkRequest], answers: Sequence[Answer]) -> None:
        """Tell a flexible worker about each of its marks."""
        ready = {answer.task: answer for answer in answers if isinstance(answer, Ready)}
        refused = {(a.task, a.producer) for a in answers if isinstance(a, Refused)}
        for mark in marks:
            producer, outputs = TaskId(mark.producer or ""), dict[TaskId, Any]()
            if mark.held is not None and (mark.task, mark.producer) in refused:
                self._worker.tell(Marked(mark.task, producer, claimed=False, refused=True))
                continue
            claimed = ready.pop(mark.task, None)
            if claimed is not None:
                outputs = self._messages.opened(TaskReady(mark.task, claimed.payloads))
                self._worker.keep(outputs)
            self._worker.tell(Marked(mark.task, producer, claimed is not None, tuple(outputs)))
