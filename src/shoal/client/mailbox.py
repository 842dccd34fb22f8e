"""`ClientMailbox`: the client's mailbox of a run, read once from its beginning.

The store never empties a mailbox. A run that is resumed finds the letters of earlier tries in it,
of which only outputs still count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from shoal.storage.base import Store
from shoal.storage.keys import CLIENT
from shoal.storage.letters import Received, WorkerFinished, WorkerLost
from shoal.types import RunId, WorkerId

GLANCE = 0.1
"""Seconds to wait for letters before looking at anything else."""
_LAST_SAVES = 1.0
"""Seconds that workers of a run that ends early have to save what they have in memory."""


class ClientMailbox:
    """Reads the letters of one run."""

    def __init__(self, store: Store, run: RunId) -> None:
        self._store = store
        self._run = run
        self._read = ""
        """The last letter that was read."""
        self.stale = ""
        """The last letter of an earlier try, until it is read."""

    def receive(self, timeout: float = GLANCE) -> list[Received]:
        """Letters that haven't been marked as read; waits for the first of them."""
        return self._store.receive(self._run, CLIENT, self._read, timeout)

    def mark_read(self, id_: str) -> None:
        """Never receive this letter, or one before it, again."""
        self._read = id_

    def outdated(self, id_: str) -> bool:
        """Whether this letter, the next in order, is from an earlier try."""
        stale = bool(self.stale)
        if id_ == self.stale:
            self.stale = ""
        return stale

    def last_timelines(self, workers: set[WorkerId]) -> Iterator[bytes]:
        """The timelines of workers that were told to stop, until each has left or time is up."""
        until, waits = time.monotonic() + _LAST_SAVES, True
        while waits:
            waits = bool(workers) and time.monotonic() < until
            for id_, letter in self.receive(GLANCE if waits else 0.0):
                self.mark_read(id_)
                if self.outdated(id_):
                    continue
                if isinstance(letter, WorkerFinished | WorkerLost):
                    workers.discard(letter.worker)
                if isinstance(letter, WorkerFinished):
                    yield bytes(letter.record)
