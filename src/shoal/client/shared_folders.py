"""`SharedFolders`: the shared-memory folders of a session's runs.

1. A session checks once whether workers share this machine's memory: it leaves a probe with a
   random name there, and the platform says where its workers see it. Containers and other users of
   this machine have a shared memory of their own.
2. A container may share the memory and have files of its own. So the probe also names the folders
   that hold the user's code, and the platform says whether its workers see them.
3. A folder that a run no longer needs is kept for the next run: moving it takes a tenth of the time
   of making another.
"""

from __future__ import annotations

import os
import threading

from shoal.import_path import import_path
from shoal.platform.base import Platform
from shoal.storage.shared_memory import SharedFolder, probe
from shoal.types import RunId


class SharedFolders:
    """Makes folders for runs, and keeps the latest one for reuse; safe to use from any thread."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._spare: SharedFolder | None = None
        self._lock = threading.Lock()
        self._seen: tuple[bool, bool] | None = None
        """Whether workers share this machine's memory and its files; None: not checked yet."""

    @property
    def usable(self) -> bool:
        """Whether workers share this machine's memory; the first call asks the platform."""
        return self._shared()[0]

    @property
    def code_visible(self) -> bool:
        """Whether workers also see the folders that this process imports modules from."""
        return self.usable and self._shared()[1]

    def _shared(self) -> tuple[bool, bool]:
        if self._seen is None:
            with probe((os.getcwd(), *import_path())) as (nonce, path):
                memory = path is not None and self._platform.probed(nonce) == path
                self._seen = memory, memory and self._platform.sees_folders(nonce)
        return self._seen

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
