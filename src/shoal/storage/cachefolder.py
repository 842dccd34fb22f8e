"""`FolderCache`: the cache as files, one for each entry.

1. A file is written elsewhere and renamed, so whoever finds an entry finds all of it.
2. A file's modification time says when its entry was last used.
3. How much there is stands in a file that is locked to change it. It may say too much after a
   crash, never too little; when it exceeds the bound, the files are counted anew.
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
"""How long to wait for others that change what is kept."""
_STALE_SECONDS = 3600.0
"""After so long, a file that isn't an entry yet never will be."""
_FILLED = 0.9
"""The share of the bound that is left when something had to go."""


class FolderCache:
    """A cache that the processes of one machine share."""

    def __init__(self, folder: str | Path, nbytes: int) -> None:
        """Use a folder, which is made when something is kept, for at most so many bytes."""
        self._folder = Path(folder)
        self._entries = self._folder / "entries"
        self._unfinished = self._folder / "unfinished"
        self._nbytes = nbytes

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._folder)

    def find(self, name: str) -> Buffer | None:
        """An entry, which counts as used now."""
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
        """Put an entry there, and remove others if there is too much."""
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
        """All that is kept."""
        found = []
        for path in self._entries.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                name = f"{path.parent.name}/{path.name}"
                found.append(CacheEntry(name, stat.st_size, stat.st_mtime))
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Forget entries."""
        if not self._folder.exists():
            return
        with self._locked() as count:
            total = self._counted(count)
            for name in names:
                path = self._entries / name
                total -= _size(path)
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # another entry is in it
                    path.parent.rmdir()
            _note(count, max(total, 0))

    def close(self) -> None:
        """Nothing is open."""

    def _sweep(self) -> None:
        """Remove what workers that died left behind."""
        for path in self._unfinished.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file that says how much there is, while nobody else changes it."""
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
        """Make room for an entry; how much is left beside it."""
        kept = sorted(self.entries(), key=lambda entry: entry.used, reverse=True)
        total = sum(entry.nbytes for entry in kept)
        while kept and total + coming > self._nbytes * _FILLED:
            oldest = kept.pop()
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
