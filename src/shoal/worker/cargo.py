"""`Cargo`: what a round trip brings to the store; `Packer`: packs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.errors import NotPicklable
from shoal.execution.effects import (
    Abort,
    Announce,
    Effect,
    Finish,
    HandIn,
    Invoke,
    Leave,
    Mark,
    Park,
    Save,
)
from shoal.execution.outbox import Trip
from shoal.execution.plan import FlexiblePart, Part
from shoal.storage.base import Announcement, Completion, MarkRequest
from shoal.storage.codec import Blob, blob_nbytes
from shoal.storage.letters import Letter, TaskFailed, WorkerFinished, WorkerParked
from shoal.types import TaskId, WorkerId
from shoal.worker.base import Worker
from shoal.worker.messages import InlineOutputs, Messages
from shoal.worker.recorder import SAVE


@dataclass(slots=True)
class Cargo:
    """The contents of one round trip."""

    saves: dict[TaskId, Blob] = field(default_factory=dict)
    marks: list[MarkRequest] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    announcements: list[Announcement] = field(default_factory=list)
    starts: dict[WorkerId, bytes] = field(default_factory=dict)
    """Flexible workers to start, and what they are given."""
    crowd: dict[WorkerId, bool] = field(default_factory=dict)
    """Those that the fan-out invoker starts, and whether each is given anything."""

    def completion(self, trip: Trip[Any]) -> Completion:
        """The request to the store."""
        closing = trip.closing
        done = closing is not None and isinstance(closing.effect, Finish) and closing.given
        return Completion(
            list(self.saves.items()),
            self.marks,
            self.letters,
            trip.executed,
            self.announcements,
            list(self.starts.items()),
            done or trip.leaving,
            trip.entering,
        )


class Packer:
    """Packs the round trips of one start of a worker."""

    def __init__(self, part: Part, worker: Worker, messages: Messages) -> None:
        self._part = part
        self._worker = worker
        self._messages = messages
        self._blobs: dict[TaskId, Blob] = {}
        """The outputs that the next trip saves."""
        self._since = 0.0
        """When the worker began to encode the first of them."""
        self._invoked: list[WorkerId] = []
        """All flexible workers that this one has invoked."""

    def add_save(self, task: TaskId, blob: Blob, since: float) -> None:
        """Let the next trip save an output."""
        if not self._blobs:
            self._since = since
        self._blobs[task] = blob

    def packed(self, trip: Trip[Any]) -> Cargo:
        """The contents of a trip that leaves now."""
        cargo, messages = Cargo(), self._messages
        sent = 0.0 if trip.saves else self._worker.recorder.now()
        for effect, given in trip.load:
            match effect:
                case Save(task):
                    cargo.saves[task] = self._blobs[task]
                case Mark():
                    cargo.marks.append(messages.mark(effect, given, sent))
                case Announce():
                    cargo.announcements.append(messages.announcement(effect))
                case HandIn():
                    cargo.letters.append(messages.output(effect, given))
                case Abort(task):
                    cargo.letters.append(TaskFailed(task, given))
                case Invoke():
                    self._pack_start(cargo, effect, given)
        if trip.saves:
            self._blobs = {}
        if trip.closing is not None:
            cargo.letters.append(self._timeline(trip.closing.effect))
        return cargo

    def record_saves(self, cargo: Cargo) -> None:
        """Record the outputs that a trip has just saved, as one transfer."""
        sizes = {task: blob_nbytes(blob) for task, blob in cargo.saves.items()}
        recorder = self._worker.recorder
        recorder.moved_together(SAVE, sizes, self._since, recorder.now())

    def _pack_start(self, cargo: Cargo, invoke: Invoke, outputs: InlineOutputs) -> None:
        worker = WorkerId(invoke.task)
        self._invoked.append(worker)
        try:
            cargo.starts[worker] = self._messages.inputs(invoke, outputs)
        except NotPicklable as error:
            cargo.letters.append(self._worker.failure(invoke.task, error))
            return
        if invoke.many:
            cargo.crowd[worker] = bool(outputs.plain or outputs.pickled)

    def _timeline(self, closing: Effect) -> Letter:
        """The timeline of this start. A worker that asks to leave may stay, and needs it again."""
        recorder = self._worker.recorder
        now = recorder.now()
        record = recorder.record(now) if isinstance(closing, Leave) else recorder.taken(now)
        invoked = tuple(self._invoked) if isinstance(self._part, FlexiblePart) else None
        ending = WorkerParked if isinstance(closing, Park) else WorkerFinished
        return ending(self._part.worker, record, invoked)
