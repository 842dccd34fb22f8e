"""`Transfers`: what the client itself moves for a run, past its workers.

Large constants go to shared memory or to the store; the sinks' outputs come back from there.
"""

from __future__ import annotations

from typing import Any

from shoal.errors import StoreError
from shoal.execution.timeline import Moved, encode_record
from shoal.storage.base import Store
from shoal.storage.codec import Blob, Buffer, blob_nbytes, decode
from shoal.storage.keys import CLIENT, shared_part, signed_output
from shoal.storage.letters import OutputReady
from shoal.storage.shared_memory import SharedFolder, worthwhile
from shoal.types import RunId, WorkerId
from shoal.worker.package import Packed


class Transfers:
    """Moves constants and outputs of one run, and counts the bytes for each of several servers."""

    def __init__(self, store: Store, run: RunId, key: bytes, shared: SharedFolder | None) -> None:
        self._store = store
        self._run = run
        self._key = key
        self._shared = shared
        self._moved: dict[str, Moved] = {}
        """By server."""

    def share(self, packed: Packed) -> dict[str, Blob]:
        """Write what workers read to shared memory; returns the constants that the store holds."""
        shared = self._shared
        if shared and packed.common is not None:
            shared.write(shared_part(packed.name), packed.common)
        stored: dict[str, Blob] = {}
        for name, blob in packed.constants.items():
            if not (shared and worthwhile(blob) and shared.write(name, blob)):
                stored[name] = blob
                self._count(name, Moved(saved=blob_nbytes(blob)))
        return stored

    def output(self, letter: OutputReady) -> Any:
        """The value of a sink's output."""
        data = self.data(letter)
        if data is None:
            raise StoreError(f"The store has lost the output of task {letter.task!r}.")
        return decode(data, self._key, signed_output(letter.task))

    def data(self, letter: OutputReady) -> Buffer | None:
        """A sink's encoded output, from the letter, shared memory or the store."""
        if letter.output is not None:
            return letter.output
        task = letter.task
        data: Buffer | None = self._shared.read(task) if self._shared else None
        if data is None:
            data = self._store.fetch(self._run, [task])[0]
            if data is not None:
                self._count(task, Moved(fetched=memoryview(data).nbytes))
        return data

    def records(self) -> list[bytes]:
        """What was moved, as a worker's record; nothing if the store is a single server."""
        return [encode_record(WorkerId(CLIENT), (), self._moved)] if self._moved else []

    def _count(self, output: str, moved: Moved) -> None:
        server = self._store.place(self._run, output, moved.saved or moved.fetched)
        if server:
            self._moved[server] = self._moved.get(server, Moved()).and_then(moved)
