"""`Fetcher`: brings a worker the outputs of others, from shared memory or from the store.

What it fetches from the store it copies for the other workers of the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import StoreError
from shoal.storage.base import Store
from shoal.storage.codec import Buffer, decode
from shoal.storage.keys import signed_output
from shoal.storage.shared_memory import SharedFolder
from shoal.types import RunId, TaskId
from shoal.worker.host_outputs import HostOutputs
from shoal.worker.recorder import FETCH, Recorder

_LOST_AFTER = 60.0
"""Seconds without success after which an output counts as lost."""


@dataclass(slots=True)
class OutputSearch:
    """Outputs that are being fetched."""

    outputs: Sequence[TaskId]
    found: dict[TaskId, Any] = field(default_factory=dict)
    until: float = field(default_factory=lambda: time.monotonic() + _LOST_AFTER)
    """When the missing outputs count as lost, on the monotonic clock."""

    @property
    def missing(self) -> list[TaskId]:
        """The outputs that are still to be found."""
        return [output for output in self.outputs if output not in self.found]


class Fetcher:
    """Finds outputs of one run."""

    def __init__(
        self, run: RunId, store: Store, shared: SharedFolder | None, host: HostOutputs, key: bytes,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        self._run = run
        self._store = store
        self._shared = shared
        self._host = host
        self._key = key
        self._recorder = recorder

    def find(self, search: OutputSearch) -> bool:
        """Look once for what is missing, in one transfer; whether everything is found.

        An output of a lost worker may have to be made again first. Each output that is found gives
        the others more time.
        """
        start = self._recorder.now()
        taken = self._in_shared_memory(search)
        taken |= self._in_store(search)
        self._recorder.moved_together(FETCH, taken, start, self._recorder.now())
        now = time.monotonic()
        if taken:
            search.until = max(search.until, now + _LOST_AFTER)
        missing = search.missing
        if missing and now > search.until:
            raise StoreError(f"The store has lost the output of task {missing[0]!r}.")
        return not missing

    def _in_shared_memory(self, search: OutputSearch) -> dict[TaskId, int]:
        taken: dict[TaskId, int] = {}
        for output in search.missing:
            view = self._shared.read(output) if self._shared else self._host.read(output)
            if view is not None:
                taken[output] = self._take(search, output, view)
        return taken

    def _in_store(self, search: OutputSearch) -> dict[TaskId, int]:
        taken: dict[TaskId, int] = {}
        missing = search.missing
        fetched = self._store.fetch(self._run, missing) if missing else ()
        for output, data in zip(missing, fetched, strict=True):
            if data is not None:
                self._host.keep(output, [data])
                nbytes = taken[output] = self._take(search, output, data)
                self._recorder.spread(self._store.place(self._run, output, nbytes), fetched=nbytes)
        return taken

    def _take(self, search: OutputSearch, output: TaskId, data: Buffer) -> int:
        search.found[output] = decode(data, self._key, signed_output(output))
        return memoryview(data).nbytes
