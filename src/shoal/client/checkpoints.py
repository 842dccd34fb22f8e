"""`Checkpoints`: completed outputs of unfinished runs, in the data folder.

The embedded server and shared memory end with their clients; a checkpoint outlives them.

1. Each run's checkpoint is a file in the folder `kept`; the run's key is in another file
   (`client/resume.py`). Only their owner can read them.
2. A checkpoint's modification time is the time at which it expires. Those that expire first make
   room for others.
3. A process that resumes a run locks the checkpoint until the run has ended, and leaves it in place
   until then. If that process is killed, the run can be resumed from it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import secrets
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from shoal.client.resume import forget, open_to_others, unfinished_nbytes
from shoal.client.run import Run
from shoal.errors import NothingKept, StoreError, StoreRefused, UsageError
from shoal.private import is_private, open_private, private_folder
from shoal.storage.base import DEFAULT_TTL
from shoal.storage.checkpoint import PIECE, SHARED, Piece, read_pieces, write_pieces
from shoal.storage.redis import RedisStore
from shoal.storage.shared_memory import SharedFolder
from shoal.types import RunId

_MB = 2**20
_FAILURES = (OSError, StoreError, pickle.PickleError, TypeError, AttributeError, ValueError,
             RecursionError)  # fmt: skip
"""What writing a checkpoint may raise: a full disk, an absent store, an unpicklable argument."""
_ABANDONED = 3600.0
"""Seconds after which a half-written checkpoint is deleted."""
_MOST_PIECES = 1000
"""Pieces that go to the store in one round trip."""


class Checkpoints:
    """The checkpoints in a data folder."""

    def __init__(self, data_folder: Path, store: RedisStore) -> None:
        """Delete expired checkpoints."""
        self._data_folder = data_folder
        self._folder = _file(data_folder, "")
        self._store = store
        self._locks: dict[RunId, int] = {}
        """The checkpoints of runs that are being resumed here, open and locked."""
        self._make_room(None)

    def keep(self, run: Run, keep_mb: int, seconds: float) -> str:
        """Write the completed outputs of an ended run; returns why that failed, or nothing."""
        unfinished = self._folder / f"{run.id}.{os.getpid()}"
        try:
            private_folder(self._folder)
            run.unfinished.write(self._data_folder)
            why = self._write(run, unfinished, keep_mb)
            if not why:
                until = time.time() + seconds
                os.utime(unfinished, (until, until))
                unfinished.rename(self._folder / run.id)
                self._make_room(keep_mb)
        except _FAILURES as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        if why and run.id not in self._locks:
            forget(self._data_folder, run.id)
        self._release(run.id)
        return why

    def _write(self, run: Run, path: Path, keep_mb: int) -> str:
        room = keep_mb * _MB - unfinished_nbytes(self._data_folder, run.id)
        pieces = self._store.pieces(run.id, run.remade)
        if run.shared is not None:
            if run.shared.nbytes(run.remade) > room:
                return _too_much(keep_mb)
            pieces = chain(pieces, run.shared.pieces(run.remade))
        with open(path, "xb", opener=open_private) as file:
            for length in write_pieces(file, pieces):
                if length > room:
                    return _too_much(keep_mb)
        return ""

    def bring_back(self, run: RunId) -> SharedFolder | None:
        """Restore a run's outputs to the store and to a new shared folder, which is returned."""
        descriptor = self._locked(run)
        shared = SharedFolder.create(
            RunId(f"{run}-{secrets.token_hex(3)}")
        )  # the old folder may still exist
        with contextlib.ExitStack() as undo:
            undo.callback(lambda: self._drop(run, shared))
            try:
                self._store.close(run, ())  # left by a client that was killed
                with open(os.dup(descriptor), "rb") as file:
                    for pieces in _batches(read_pieces(file)):
                        self._store.put_back(run, pieces)
                        shared = _put_back(shared, pieces)
                self._store.expire(run, DEFAULT_TTL)
            except (OSError, StoreRefused) as error:
                raise UsageError(
                    f"The completed outputs of run {run} can't be restored: {error}"
                ) from error
            undo.pop_all()
        return shared

    def _locked(self, run: RunId) -> int:
        """A run's checkpoint, opened and locked, so that no other process resumes the run."""
        self._make_room(None)
        try:
            descriptor = os.open(self._folder / run, os.O_RDONLY)
        except OSError as error:
            raise NothingKept(run) from error
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptor)
            if not is_private(os.fstat(descriptor)):
                raise open_to_others(self._folder / run)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"Run {run} is already being resumed.") from error
            undo.pop_all()
        self._locks[run] = descriptor
        return descriptor

    def forget(self, run: RunId) -> None:
        """Delete a run's checkpoint and file."""
        forget(self._data_folder, run)
        with contextlib.suppress(OSError):
            (self._folder / run).unlink()
        self._release(run)

    def leave(self, run: RunId) -> bool:
        """Unlock the checkpoint of an earlier try; returns whether there is one."""
        self._release(run)
        return has_checkpoint(self._data_folder, run)

    def _drop(self, run: RunId, shared: SharedFolder | None) -> None:
        """Undo what was brought back of a run."""
        self._release(run)
        if shared is not None:
            shared.delete()
        with contextlib.suppress(StoreError):
            self._store.close(run, ())

    def _release(self, run: RunId) -> None:
        descriptor = self._locks.pop(run, None)
        if descriptor is not None:
            os.close(descriptor)

    def _make_room(self, keep_mb: int | None) -> None:
        """Delete expired checkpoints, and those beyond `keep_mb`."""
        room = float("inf") if keep_mb is None else keep_mb * _MB
        for until, nbytes, name in sorted(self._found(), reverse=True):
            room -= nbytes
            if room < 0 or until < time.time():
                self.forget(RunId(name))

    def _found(self) -> Iterator[tuple[float, int, str]]:
        """When each checkpoint expires, its length and its run."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                found = entry.stat()
                if "." not in entry.name:
                    nbytes = found.st_size + unfinished_nbytes(self._data_folder, entry.name)
                    yield found.st_mtime, nbytes, entry.name
                elif found.st_mtime + _ABANDONED < time.time():
                    os.unlink(entry.path)


def has_checkpoint(data_folder: Path, run: RunId) -> bool:
    """Whether there is a checkpoint of a run, which then began on the embedded server."""
    return _file(data_folder, run).exists()


def _file(data_folder: Path, run: str) -> Path:
    return data_folder / "kept" / run


def hint(run: RunId, why_not_longer: str = "") -> str:
    """How to resume a run; and why that is only possible in this process, if it is."""
    how = f"compute(resume={run!r})"
    if not why_not_longer:
        return f"Completed outputs are kept: {how}, or `shoal resume {run}`, runs only the rest."
    return (
        "Completed outputs are kept only until this process ends: "
        f"{why_not_longer}. Until then {how} runs only the rest."
    )


def _too_much(keep_mb: int) -> str:
    return f"it is more than keep_mb allows, {keep_mb:,} MB"


def _put_back(shared: SharedFolder | None, pieces: Sequence[Piece]) -> SharedFolder | None:
    """Restore pieces to shared memory; if that is full, their tasks run again."""
    if shared is not None:
        try:
            for piece in pieces:
                if piece.kind == SHARED:
                    shared.put_back(piece)
        except OSError:
            shared.delete()
            return None
    return shared


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Groups of pieces, each for one round trip."""
    batch: list[Piece] = []
    nbytes = 0
    for piece in pieces:
        batch.append(piece)
        nbytes += memoryview(piece.data).nbytes
        if nbytes >= PIECE or len(batch) == _MOST_PIECES:
            yield batch
            batch, nbytes = [], 0
    yield batch
