"""Large outputs between the sandboxes of a machine: files in shared memory, mapped by readers.

1. A run owns a folder in the machine's shared memory, readable by its user only and deleted with
   the run. The client holds a lock on it, which tells a live run's folder from one left by a crash.
   A second lock covers the time between a folder's creation and its locking.
2. A file appears under its name only when it is complete.
3. Readers may write to mapped memory without affecting others: pages are copied on write.
4. The next run of the session may take over an ended run's folder and overwrite its files, because
   fresh memory costs several times as much as memory in use. A process that maps or writes a file
   locks it, so it is never overwritten meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.private import guarded_folder, open_private
from shoal.storage.checkpoint import PIECE, SHARED, Piece
from shoal.storage.codec import Blob, blob_nbytes
from shoal.system import at_once, shared_folder
from shoal.types import SHARED_NBYTES, RunId

_SPARE = "spare."
"""The prefix of files that may be overwritten; their size follows."""
_MOST_SPARE = 1 << 30
"""The most bytes that the next run takes over."""
_PROBE = ".probe-"
"""The prefix of files that show which processes share memory; a random name follows."""


class SharedFolder:
    """The outputs of a run in this machine's shared memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: int | None = None
        self._spares: list[tuple[int, str]] | None = None
        """Sizes and paths of files to overwrite, once they are known."""

    @staticmethod
    def create(run: RunId, retired: SharedFolder | None = None) -> SharedFolder | None:
        """Create a folder for a run; return None if that fails.

        Args:
            run: The run.
            retired: The folder of an ended run, to take over.
        """
        if retired is not None and retired._move(run):
            return retired
        root = shared_folder()
        try:
            guarded_folder(root)
            with swept(root):
                folder = SharedFolder(str(root / run))
                Path(folder.path).mkdir(mode=0o700)
                folder._lock = locked(Path(folder.path) / ".lock")
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
        """Write an output, over an existing one only if `over`; return False on failure."""
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
        """Take a spare file of about that size, if there is one."""
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
        """Whether an output exists."""
        return os.path.exists(self._file(name))

    def read(self, name: str) -> memoryview | None:
        """Map an output; return None if it is missing."""
        try:
            descriptor = os.open(self._file(name), os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(
                descriptor, fcntl.LOCK_SH
            )  # the mapping's copy of the descriptor keeps the lock
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
        finally:
            os.close(descriptor)

    def _outputs(self, without: Iterable[str]) -> list[os.DirEntry[str]]:
        skipped = {self._file(name) for name in without}
        found = [entry for entry in os.scandir(self.path) if "." not in entry.name]
        return [entry for entry in found if entry.path not in skipped]

    def nbytes(self, without: Iterable[str]) -> int:
        """Return the size of the folder, without some outputs."""
        return sum(entry.stat().st_size for entry in self._outputs(without))

    def pieces(self, without: Iterable[str]) -> Iterator[Piece]:
        """Yield all outputs in the folder as pieces, without some outputs."""
        for entry in self._outputs(without):
            with open(entry.path, "rb") as file:
                while data := file.read(PIECE):
                    yield Piece(SHARED, entry.name, data)

    def put_back(self, piece: Piece) -> None:
        """Restore a piece of an output that isn't read yet."""
        path = f"{self.path}/{os.path.basename(piece.name)}"
        descriptor = open_private(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            _write_all(descriptor, [piece.data])
        finally:
            os.close(descriptor)

    def retire(self) -> bool:
        """End the run; return whether the folder has files worth taking over."""
        spare = 0
        for number, entry in enumerate(list(os.scandir(self.path))):
            if entry.name == ".lock":
                continue
            nbytes = entry.stat().st_size
            if nbytes < SHARED_NBYTES or spare + nbytes > _MOST_SPARE or _in_use(entry.path):
                os.unlink(entry.path)
                continue
            spare += nbytes
            os.rename(entry.path, f"{self.path}/{_SPARE}{nbytes}.{number}.{spare}")
        return spare > 0

    def delete(self) -> None:
        """Delete the folder and its files."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def swept(root: Path) -> Iterator[None]:
    """Delete the folders of runs whose clients have died, and hold the lock for making others."""
    creating = locked(root / ".lock")
    try:
        _sweep(root)
        yield
    finally:
        os.close(creating)


def locked(path: Path, how: int = fcntl.LOCK_EX) -> int:
    """Open a file and lock it."""
    descriptor = open_private(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _in_use(path: str) -> bool:
    """Whether a process still maps or writes the file."""
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
    """Delete the folders of runs whose clients have died; the caller holds the creation lock."""
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


@contextlib.contextmanager
def probe(folders: Iterable[str] = ()) -> Iterator[tuple[str, str | None]]:
    """Create a file in this machine's shared memory; yield its random name and its path.

    The path is None if there is no shared memory to use.

    Args:
        folders: The folders that the file names; `sees_folders` tells who sees them, too.
    """
    nonce = secrets.token_hex(16)
    path = shared_folder() / (_PROBE + nonce)
    try:
        guarded_folder(path.parent)
        named = {folder: identity for folder in folders if (identity := _identity(folder))}
        with open(path, "x", opener=open_private) as file:
            json.dump(named, file)
    except OSError:
        yield nonce, None
        return
    try:
        yield nonce, str(path)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def probed(nonce: str) -> str | None:
    """Return the path at which this process sees a probe; None if it doesn't."""
    path = str(shared_folder() / (_PROBE + nonce))
    return path if os.path.exists(path) else None


def sees_folders(nonce: str) -> bool:
    """Whether this process sees the folders that a probe names, and not others in their places."""
    try:
        named = json.loads((shared_folder() / (_PROBE + nonce)).read_text())
    except (OSError, ValueError):
        return False
    return all(_identity(folder) == identity for folder, identity in named.items())


def _identity(folder: str) -> list[int] | None:
    """What tells a folder from all others of this machine; None if it doesn't exist."""
    try:
        found = os.stat(folder)
    except (OSError, ValueError):
        return None
    return [found.st_dev, found.st_ino]


def worthwhile(blob: Blob) -> bool:
    """Whether an output is large enough for shared memory."""
    return blob_nbytes(blob) >= SHARED_NBYTES
