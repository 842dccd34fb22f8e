"""`Finder`: brings a worker the outputs of others, from shared memory or from the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.clock import RealClock
from shoal.storage.base import Store
from shoal.storage.codec import Buffer, decode
from shoal.storage.keys import signed_output
from shoal.storage.shared import SharedFolder
from shoal.types import RunId, TaskId
from shoal.worker.recorder import FETCH, Recorder


class Finder:
    """Looks for outputs of one run."""

    def __init__(
        self, run: RunId, store: Store, shared: SharedFolder | None, key: bytes, recorder: Recorder
    ) -> None:
        self._run = run
        self._store = store
        self._shared = shared
        self._key = key
        self._recorder = recorder
        self._clock = RealClock()

    def find(self, outputs: Sequence[TaskId], found: dict[TaskId, Any]) -> list[TaskId]:
        """Add to `found` what isn't there yet, as one transfer; what is still missing."""
        start = self._clock.now()
        taken = self._in_shared_memory(_missing(outputs, found), found)
        taken |= self._in_store(_missing(outputs, found), found)
        self._recorder.moved_together(FETCH, taken, start, self._clock.now())
        return _missing(outputs, found)

    def _in_shared_memory(
        self, outputs: Sequence[TaskId], found: dict[TaskId, Any]
    ) -> dict[TaskId, int]:
        taken: dict[TaskId, int] = {}
        if self._shared is None:
            return taken
        for output in outputs:
            view = self._shared.read(output)
            if view is not None:
                taken[output] = self._take(found, output, view)
        return taken

    def _in_store(self, outputs: Sequence[TaskId], found: dict[TaskId, Any]) -> dict[TaskId, int]:
        taken: dict[TaskId, int] = {}
        fetched = self._store.fetch(self._run, outputs) if outputs else ()
        for output, data in zip(outputs, fetched, strict=True):
            if data is not None:
                nbytes = taken[output] = self._take(found, output, data)
                self._recorder.spread(self._store.place(self._run, output, nbytes), fetched=nbytes)
        return taken

    def _take(self, found: dict[TaskId, Any], output: TaskId, data: Buffer) -> int:
        found[output] = decode(data, self._key, signed_output(output))
        return memoryview(data).nbytes


def _missing(outputs: Sequence[TaskId], found: dict[TaskId, Any]) -> list[TaskId]:
    return [output for output in outputs if output not in found]
