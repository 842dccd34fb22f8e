"""`Messages`: seals what a worker sends to others, and opens what they send to it."""

from __future__ import annotations

from typing import Any, NamedTuple

from shoal.errors import Tampered
from shoal.execution.effects import Announce, HandIn, Invoke, Mark
from shoal.execution.plan import Part
from shoal.storage.base import Announcement, MarkRequest
from shoal.storage.codec import Blob, Buffer, decode, encode
from shoal.storage.keys import signed_announcement, signed_inputs, signed_mark, signed_output
from shoal.storage.letters import OutputReady, OutputSaved, TaskReady
from shoal.types import TaskId
from shoal.worker.recorder import Recorder
from shoal.worker.recovery import opened_outputs


class InlineOutputs(NamedTuple):
    """Small outputs that travel with an order."""

    plain: dict[TaskId, Any]
    pickled: dict[TaskId, Blob]

    def parts(self) -> tuple[dict[TaskId, Any], dict[TaskId, bytes]]:
        """The outputs as they are encoded."""
        return self.plain, {task: b"".join(blob) for task, blob in self.pickled.items()}


class Messages:
    """The messages of one start of a worker, signed with the run's key."""

    def __init__(self, part: Part, key: bytes, recorder: Recorder) -> None:
        self._part = part
        self._key = key
        self._recorder = recorder

    def mark(self, mark: Mark, outputs: InlineOutputs, sent: float) -> MarkRequest:
        """A mark, with small outputs for its task.

        Args:
            mark: The mark.
            outputs: The outputs that travel with it.
            sent: When it leaves; 0: it doesn't show how long messages take.
        """
        if mark.held is not None:
            return MarkRequest(mark.task, None, mark.producers, b"", mark.producer, mark.held)
        saved = self._recorder.numbered(mark.saved)
        parts = (sent, *outputs.parts(), saved, self._part.worker)
        name = signed_mark(mark.task, mark.producer or self._part.worker)
        payload = b"".join(encode(parts, self._key, name))
        return MarkRequest(mark.task, mark.owner, mark.producers, payload, mark.producer)

    def inputs(self, invoke: Invoke, outputs: InlineOutputs) -> bytes:
        """The inputs that a flexible worker starts with."""
        what = f"an input of task {invoke.task!r}"
        return b"".join(encode(outputs.parts(), self._key, signed_inputs(invoke.task), what=what))

    def announcement(self, announce: Announce) -> Announcement:
        """Tells another worker that an output is saved."""
        numbers = self._recorder.numbered((announce.task,))
        payload = b"".join(encode(numbers, self._key, signed_announcement(announce.task)))
        return Announcement(announce.task, announce.owner, payload)

    def output(self, hand_in: HandIn, outputs: InlineOutputs) -> OutputReady:
        """Gives the client a sink's output, or tells it that the output is saved."""
        task = hand_in.task
        if hand_in.saved:
            return OutputReady(task)
        blob = outputs.pickled.get(task)
        if not blob:
            blob = encode(outputs.plain.get(task), self._key, signed_output(task))
        return OutputReady(task, b"".join(blob))

    def opened_inputs(self, data: Buffer | None) -> dict[TaskId, Any]:
        """The inputs that this flexible worker starts with."""
        if not data:
            return {}
        plain, pickled = decode(data, self._key, signed_inputs(self._part.worker))
        return {**plain, **opened_outputs(pickled, self._key)}

    def learn(self, letter: OutputSaved) -> None:
        """Note the size of an output that another worker has saved."""
        name = signed_announcement(letter.task)
        self._recorder.learn(decode(letter.payload, self._key, name))

    def opened(self, letter: TaskReady) -> dict[TaskId, Any]:
        """The small outputs that came with a message."""
        producers = self._part.producers(letter.task)
        if len(letter.payloads) != len(producers):
            raise Tampered(
                f"A message about task {letter.task!r} doesn't come from the producers that the "
                "task waits for."
            )
        return self._opened_marks(letter, producers)

    def _opened_marks(self, letter: TaskReady, producers: tuple[str, ...]) -> dict[TaskId, Any]:
        outputs: dict[TaskId, Any] = {}
        latest, timed = 0.0, True
        for part, producer in zip(letter.payloads, producers, strict=True):
            if not part:  # this worker has the output
                continue
            name = signed_mark(letter.task, producer)
            sent, plain, pickled, saved, _ = decode(part, self._key, name)
            latest, timed = max(latest, sent), timed and sent > 0
            self._recorder.learn(saved)
            outputs.update(plain)
            outputs.update(opened_outputs(pickled, self._key))
        if timed:
            self._recorder.delivered(letter.task, latest, self._recorder.now())
        return outputs
