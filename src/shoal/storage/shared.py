"""Large outputs between the sandboxes of one machine: files in memory, mapped by who takes them.

1. A run owns a folder in the machine's shared memory, readable by its user only; it is deleted
   with the run. A lock held by the client tells a live run's folder from one left by a crash;
   another sees to it that nobody looks at a folder between its creation and its locking.
2. A file appears under its name only when it is complete.
3. What is mapped can be written to without others noticing: pages are copied on write.
4. The next run of the session may take over an ended run's folder and write over its files, because
   fresh memory costs several times as much as memory in use. A file that somebody still maps or
   writes is locked by who does, and never written over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.private import guarded_folder, open_private
from shoal.storage.archive import PIECE, SHARED, Piece
from shoal.storage.codec import Blob, blob_nbytes
from shoal.system import at_once, shared_folder
from shoal.types import RunId

WORTHWHILE = 64 * 1024
"""Smaller outputs go through the store."""
_SPARE = "spare."
"""Begins the names of files that may be written over; their size follows."""
_MOST_SPARE = 1 << 30
"""Bytes that are kept for the next run."""


class SharedFolder:
    """The outputs of a run that are in this machine's shared memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: int | None = None
        self._spares: list[tuple[int, str]] | None = None
        """Sizes and paths of files to write over, as far as known."""

    @staticmethod
    def create(run: RunId, retired: SharedFolder | None = None) -> SharedFolder | None:
        """A folder for a run, or None where none can be made.

        Args:
            run: Whose folder it is.
            retired: The folder of an ended run, to be taken over.
        """
        if retired is not None and retired._move(run):
            return retired
        root = shared_folder()
        try:
            guarded_folder(root)
            creating = _locked(root / ".lock")
            try:
                _sweep(root)
                folder = SharedFolder(str(root / run))
                Path(folder.path).mkdir(mode=0o700)
                folder._lock = _locked(Path(folder.path) / ".lock")
            finally:
                os.close(creating)
        except OSError:
            return None
        return folder

    def _move(self, run: RunId) -> bool:
        path = str(Path(self.path).with_name(run))
        try:
            os.rename(self.path, path)
        except OSError:
            self.delete()
            return False
        self.path = path
        self._spares = None
        return True

    def _file(self, name: str) -> str:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return f"{self.path}/{digest}"

    def write(self, name: str, blob: Blob, *, over: bool = True) -> bool:
        """Put an output there, over one that is there only if told; False if that can't be."""
        path = self._file(name)
        unfinished = f"{path}.{os.getpid()}"
        nbytes = blob_nbytes(blob)
        try:
            self._claim_spare(nbytes, unfinished)
            descriptor = open_private(unfinished, os.O_CREAT | os.O_WRONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                _write_all(descriptor, blob)
                os.ftruncate(descriptor, nbytes)
            finally:
                os.close(descriptor)
            if over:
                os.rename(unfinished, path)
            else:
                os.link(unfinished, path)
                os.unlink(unfinished)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            return False
        return True

    def _claim_spare(self, nbytes: int, unfinished: str) -> None:
        """Take a spare file of about that size, if there is one that nobody else takes."""
        if self._spares is None:
            self._spares = sorted(
                (int(entry.name.split(".")[1]), entry.path)
                for entry in os.scandir(self.path)
                if entry.name.startswith(_SPARE)
            )
        while self._spares:
            nearest = min(self._spares, key=lambda spare: abs(spare[0] - nbytes))
            if not nbytes // 2 <= nearest[0] <= nbytes * 2:
                return
            self._spares.remove(nearest)
            with contextlib.suppress(FileNotFoundError):
                os.rename(nearest[1], unfinished)
                return

    def has(self, name: str) -> bool:
        """Whether an output is there."""
        return os.path.exists(self._file(name))

    def read(self, name: str) -> memoryview | None:
        """An output, mapped; None if it isn't there."""
        try:
            descriptor = os.open(self._file(name), os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # kept by the mapping's copy of the descriptor
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
        finally:
            os.close(descriptor)

    def _outputs(self, without: Iterable[str]) -> list[os.DirEntry[str]]:
        skipped = {self._file(name) for name in without}
        found = [entry for entry in os.scandir(self.path) if "." not in entry.name]
        return [entry for entry in found if entry.path not in skipped]

    def nbytes(self, without: Iterable[str]) -> int:
        """How much is in the folder, except some outputs."""
        return sum(entry.stat().st_size for entry in self._outputs(without))

    def pieces(self, without: Iterable[str]) -> Iterator[Piece]:
        """Everything in the folder, except some outputs."""
        for entry in self._outputs(without):
            with open(entry.path, "rb") as file:
                while data := file.read(PIECE):
                    yield Piece(SHARED, entry.name, data)

    def put_back(self, piece: Piece) -> None:
        """Take a piece of an output that nobody reads yet."""
        path = f"{self.path}/{os.path.basename(piece.name)}"
        descriptor = open_private(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            _write_all(descriptor, [piece.data])
        finally:
            os.close(descriptor)

    def retire(self) -> bool:
        """The run has ended; whether there is something in the folder worth taking over."""
        kept = 0
        for number, entry in enumerate(list(os.scandir(self.path))):
            if entry.name == ".lock":
                continue
            nbytes = entry.stat().st_size
            if nbytes < WORTHWHILE or kept + nbytes > _MOST_SPARE or _in_use(entry.path):
                os.unlink(entry.path)
                continue
            kept += nbytes
            os.rename(entry.path, f"{self.path}/{_SPARE}{nbytes}.{number}.{kept}")
        return kept > 0

    def delete(self) -> None:
        """Delete the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(path: Path) -> int:
    """An open file with a lock on it."""
    descriptor = open_private(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _in_use(path: str) -> bool:
    """Whether somebody still has the file mapped, or writes it."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _write_all(descriptor: int, blob: Blob) -> None:
    views = [memoryview(buffer).cast("B") for buffer in blob if len(buffer)]
    while views:
        written = os.writev(descriptor, at_once(views))
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if written:
            views[0] = views[0][written:]


def _sweep(root: Path) -> None:
    """Delete the folders of runs whose client died; no folder is being created meanwhile."""
    for folder in root.iterdir():
        try:
            descriptor = os.open(folder / ".lock", os.O_RDWR)
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def worthwhile(blob: Blob) -> bool:
    """Whether an output is large enough for shared memory."""
    return blob_nbytes(blob) >= WORTHWHILE
