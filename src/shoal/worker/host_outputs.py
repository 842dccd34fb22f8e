"""`HostOutputs`: a worker's view of the outputs that its host keeps in memory.

`storage/host_memory.py` has the rules.
"""

from __future__ import annotations

from shoal.storage.codec import Blob, blob_nbytes
from shoal.storage.shared_memory import SharedFolder, worthwhile
from shoal.types import TaskId


class HostOutputs:
    """Reads and makes copies of a run's large outputs, for as long as there is room."""

    def __init__(self, path: str | None, room: int) -> None:
        """Begin without copies of its own.

        Args:
            path: The host's folder for the run; None: there is none.
            room: The most bytes to add.
        """
        self._folder = None if path is None else SharedFolder(path)
        self._room = room

    def read(self, output: TaskId) -> memoryview | None:
        """Map a copy; None if there is none."""
        return None if self._folder is None else self._folder.read(output)

    def keep(self, output: TaskId, blob: Blob) -> None:
        """Keep a copy of what the store has, unless there is one."""
        nbytes = blob_nbytes(blob)
        if self._folder is None or nbytes > self._room or not worthwhile(blob):
            return
        if not self._folder.has(output) and self._folder.write(output, blob, over=False):
            self._room -= nbytes
