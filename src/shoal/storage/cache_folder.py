"""`FolderCache`: the cache as files, one for each entry.

1. A file is written elsewhere and then renamed, so an entry is always complete.
2. A file's modification time is when its entry was last used.
3. The total size is in a file, which is locked during changes. After a crash it may be too high,
   never too low; when it exceeds the limit, the files are counted again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.private import open_private, private_folder, write_private
from shoal.storage.cache import CacheEntry
from shoal.storage.codec import Blob, Buffer, blob_nbytes

_LOCK_SECONDS = 5.0
"""How long to wait for other processes that change the cache."""
_STALE_SECONDS = 3600.0
"""An unfinished file of this age was left by a crash."""
_FILLED = 0.9
"""The share of the limit that is in use after an eviction."""


class FolderCache:
    """A cache that all processes of a machine share."""

    def __init__(self, folder: str | Path, nbytes: int) -> None:
        """Use a folder, which is created on first use, for at most so many bytes."""
        self._folder = Path(folder)
        self._entries = self._folder / "entries"
        self._unfinished = self._folder / "unfinished"
        self._nbytes = nbytes

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._folder)

    def find(self, name: str) -> Buffer | None:
        """Return an entry, and record that it was used."""
        path = self._entries / name
        try:
            with path.open("rb") as file:
                entry = bytearray(os.fstat(file.fileno()).st_size)
                file.readinto(entry)
            os.utime(path)
        except FileNotFoundError:
            return None
        return entry

    def keep(self, name: str, entry: Blob) -> None:
        """Add an entry, and evict others if the cache is full."""
        nbytes = blob_nbytes(entry)
        if nbytes > self._nbytes:
            return
        path = self._entries / name
        for folder in (self._unfinished, path.parent):
            private_folder(folder)
        self._sweep()
        unfinished = self._unfinished / secrets.token_hex(8)
        try:
            write_private(unfinished, entry)
            with self._locked() as count:
                total = self._counted(count) + nbytes - _size(path)
                if total > self._nbytes:
                    total = self._shrunk(nbytes) + nbytes
                _note(count, total)
                private_folder(path.parent)
                unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def entries(self) -> list[CacheEntry]:
        """List all entries."""
        found = []
        for path in self._entries.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                name = f"{path.parent.name}/{path.name}"
                found.append(CacheEntry(name, stat.st_size, stat.st_mtime))
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Delete entries."""
        if not self._folder.exists():
            return
        with self._locked() as count:
            total = self._counted(count)
            for name in names:
                path = self._entries / name
                total -= _size(path)
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # it has other entries
                    path.parent.rmdir()
            _note(count, max(total, 0))

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _sweep(self) -> None:
        """Delete unfinished files of workers that have died."""
        for path in self._unfinished.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file with the total size, and lock it."""
        count = open_private(self._folder / "nbytes", os.O_RDWR | os.O_CREAT)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(count, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{self._folder} is locked by another process") from None
                    time.sleep(0.001)
            yield count
        finally:
            os.close(count)

    def _counted(self, count: int) -> int:
        text = os.pread(count, 32, 0)
        if text.strip().isdigit():
            return int(text)
        return sum(entry.nbytes for entry in self.entries())

    def _shrunk(self, coming: int) -> int:
        """Evict entries to make room for a new one; return the size of those that remain."""
        entries = sorted(self.entries(), key=lambda entry: entry.used, reverse=True)
        total = sum(entry.nbytes for entry in entries)
        while entries and total + coming > self._nbytes * _FILLED:
            oldest = entries.pop()
            (self._entries / oldest.name).unlink(missing_ok=True)
            total -= oldest.nbytes
        return total


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _note(count: int, total: int) -> None:
    os.pwrite(count, f"{total:<32}".encode(), 0)
