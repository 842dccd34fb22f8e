"""`Outputs`: the values that a worker holds, and the pickled form of those that have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.execution.plan import Part
from shoal.storage.codec import Blob, blob_nbytes, encode, estimated_nbytes, quick_nbytes
from shoal.storage.keys import signed_output
from shoal.types import TaskId
from shoal.worker.messages import InlineOutputs


class Outputs:
    """Outputs and constants in memory. The machine says when to drop one."""

    def __init__(self, part: Part, key: bytes) -> None:
        self.values: dict[TaskId, Any] = {}
        self._blobs: dict[TaskId, Blob] = {}
        """Outputs that had to be pickled to measure them, until they are saved or dropped."""
        self._part = part
        self._key = key

    def measure(self, task: TaskId, value: Any) -> int:
        """The size of an output. One that may leave the worker is pickled if need be."""
        if not self._part.travels(task):
            return estimated_nbytes(value)
        nbytes = quick_nbytes(value)
        if nbytes is not None:
            return nbytes
        blob = self._blobs[task] = self.encoded(task, value)
        return blob_nbytes(blob)

    def encoded(self, task: TaskId, value: Any) -> Blob:
        """An output as it is saved; `NotPicklable` if it can't be."""
        what = f"the output of task {task!r}"
        return encode(value, self._key, signed_output(task), what=what)

    def take_blob(self, task: TaskId) -> Blob | None:
        """The pickled form of an output, if there is one, which isn't needed any more."""
        return self._blobs.pop(task, None)

    def inline(self, outputs: Sequence[TaskId]) -> InlineOutputs:
        """Outputs that travel inside a message: the plain ones, and the pickled ones."""
        blobs, values = self._blobs, self.values
        plain = {output: values[output] for output in outputs if output not in blobs}
        pickled = {output: blobs[output] for output in outputs if output in blobs}
        return InlineOutputs(plain, pickled)

    def add(self, outputs: Mapping[TaskId, Any]) -> None:
        """Hold outputs of others."""
        self.values.update(outputs)

    def forget(self, outputs: Iterable[TaskId]) -> None:
        """Drop outputs."""
        for output in outputs:
            self.values.pop(output, None)
            self._blobs.pop(output, None)
