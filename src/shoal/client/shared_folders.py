"""`SharedFolders`: the shared-memory folders of a session's runs.

1. A session checks once whether workers share this machine's memory: it leaves a probe with a
   random name there, and the platform says where its workers see it. Containers and other users of
   this machine have a shared memory of their own.
2. A folder that a run no longer needs is kept for the next run: moving it takes a tenth of the time
   of making another.
"""

from __future__ import annotations

import threading

from shoal.platform.base import Platform
from shoal.storage.shared_memory import SharedFolder, probe
from shoal.types import RunId


class SharedFolders:
    """Makes folders for runs, and keeps the latest one for reuse; safe to use from any thread."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._spare: SharedFolder | None = None
        self._lock = threading.Lock()
        self._usable: bool | None = None
        """Whether workers share this machine's memory; None: not checked yet."""

    @property
    def usable(self) -> bool:
        """Whether workers share this machine's memory; the first call asks the platform."""
        if self._usable is None:
            self._usable = self._shared()
        return self._usable

    def _shared(self) -> bool:
        with probe() as (nonce, path):
            return path is not None and self._platform.probed(nonce) == path

    def create(self, run: RunId) -> SharedFolder | None:
        """A folder for a run; None where none can be made."""
        return SharedFolder.create(run, self._take_spare())

    def retire(self, folder: SharedFolder) -> None:
        """Keep a folder for the next run, instead of the one kept before."""
        folder.retire()
        with self._lock:
            superseded, self._spare = self._spare, folder
        if superseded is not None:
            superseded.delete()

    def delete_spare(self) -> None:
        """Delete the folder that is kept for reuse."""
        spare = self._take_spare()
        if spare is not None:
            spare.delete()

    def _take_spare(self) -> SharedFolder | None:
        with self._lock:
            spare, self._spare = self._spare, None
            return spare
