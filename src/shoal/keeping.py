"""`Keeping`: what is finished of runs that aren't, in the data folder, for who resumes them.

The embedded server and shared memory end with their clients; this outlives them.

1. Of each run there is an archive in the folder `kept`; the run's key is in another file
   (`unfinished.py`). Both are readable by their owner only.
2. An archive's file has the time at which it is to be deleted as its time of modification. Those
   that would be deleted first make room for others.
3. Whoever resumes a run holds a lock on its archive until the run has ended, and leaves it where it
   is until then: should that process be killed, the run can be resumed from there once more.
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

from shoal.errors import NothingKept, StoreError, StoreRefused, UsageError
from shoal.private import is_private, open_private, private_folder
from shoal.run import Run
from shoal.storage.archive import PIECE, SHARED, Piece, read_pieces, write_pieces
from shoal.storage.base import DEFAULT_TTL
from shoal.storage.redis import RedisStore
from shoal.storage.shared import SharedFolder
from shoal.types import RunId
from shoal.unfinished import forget, open_to_others, unfinished_nbytes

_MB = 2**20
_FAILURES = (OSError, StoreError, pickle.PickleError, TypeError, AttributeError, ValueError,
             RecursionError)  # fmt: skip
"""What writing an archive may end with: a full disk, a store that is away, an odd argument."""
_ABANDONED = 3600.0
"""Seconds after which an archive that nobody writes to any more is deleted."""
_MOST_PIECES = 1000
"""That are put back in one round trip."""


class Keeping:
    """The runs that are kept in a data folder."""

    def __init__(self, data_folder: Path, store: RedisStore) -> None:
        """Begin; what has been kept for long enough is deleted."""
        self._data_folder = data_folder
        self._folder = _archive(data_folder, "")
        self._store = store
        self._locks: dict[RunId, int] = {}
        """The archives of the runs that are resumed here, open and locked."""
        self._make_room(None)

    def keep(self, run: Run, keep_mb: int, seconds: float) -> str:
        """Write what is finished of a run that has ended; why that can't be, or nothing."""
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
        """Put what is kept of a run where its workers find it; the folder of its large outputs."""
        descriptor = self._locked(run)
        shared = SharedFolder.create(RunId(f"{run}-{secrets.token_hex(3)}"))  # the old one may last
        try:
            self._store.close(run, ())  # of a client that was killed
            with open(os.dup(descriptor), "rb") as file:
                for pieces in _batches(read_pieces(file)):
                    self._store.put_back(run, pieces)
                    shared = _put_back(shared, pieces)
            self._store.expire(run, DEFAULT_TTL)
        except BaseException as error:
            self._release(run)
            if shared is not None:
                shared.delete()
            with contextlib.suppress(StoreError):
                self._store.close(run, ())
            if isinstance(error, OSError | StoreRefused):
                raise UsageError(
                    f"What is kept of run {run} can't be brought back: {error}"
                ) from error
            raise
        return shared

    def _locked(self, run: RunId) -> int:
        """The archive of a run, which nobody else resumes from now on."""
        self._make_room(None)
        try:
            descriptor = os.open(self._folder / run, os.O_RDONLY)
        except OSError as error:
            raise NothingKept(run) from error
        try:
            if not is_private(os.fstat(descriptor)):
                raise open_to_others(self._folder / run)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise UsageError(f"Run {run} is being resumed already.") from error
        except BaseException:
            os.close(descriptor)
            raise
        self._locks[run] = descriptor
        return descriptor

    def forget(self, run: RunId) -> None:
        """Keep nothing of a run."""
        forget(self._data_folder, run)
        with contextlib.suppress(OSError):
            (self._folder / run).unlink()
        self._release(run)

    def leave(self, run: RunId) -> bool:
        """Leave what was kept of a run before it was resumed; whether there is anything."""
        self._release(run)
        return is_archived(self._data_folder, run)

    def _release(self, run: RunId) -> None:
        descriptor = self._locks.pop(run, None)
        if descriptor is not None:
            os.close(descriptor)

    def _make_room(self, keep_mb: int | None) -> None:
        """Delete what has been kept for long enough, and what is too much."""
        room = float("inf") if keep_mb is None else keep_mb * _MB
        for until, nbytes, name in sorted(self._found(), reverse=True):
            room -= nbytes
            if room < 0 or until < time.time():
                self.forget(RunId(name))

    def _found(self) -> Iterator[tuple[float, int, str]]:
        """Until when each archive is kept, its length, and its name."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                found = entry.stat()
                if "." not in entry.name:
                    nbytes = found.st_size + unfinished_nbytes(self._data_folder, entry.name)
                    yield found.st_mtime, nbytes, entry.name
                elif found.st_mtime + _ABANDONED < time.time():
                    os.unlink(entry.path)


def is_archived(data_folder: Path, run: RunId) -> bool:
    """Whether something is kept of a run that was begun on the embedded server."""
    return _archive(data_folder, run).exists()


def _archive(data_folder: Path, run: str) -> Path:
    return data_folder / "kept" / run


def hint(run: RunId, why_not_for_long: str = "") -> str:
    """How to resume a run; if that isn't possible for long, why."""
    how = f"compute(resume={run!r})"
    if not why_not_for_long:
        return f"What is finished is kept: {how}, or `shoal resume {run}`, repeats only the rest."
    return (
        "What is finished is kept for as long as this process lasts, and no longer: "
        f"{why_not_for_long}. Until then {how} repeats only the rest."
    )


def _too_much(keep_mb: int) -> str:
    return f"it is more than keep_mb allows, {keep_mb:,} MB"


def _put_back(shared: SharedFolder | None, pieces: Sequence[Piece]) -> SharedFolder | None:
    """Put pieces into shared memory; where that is full, its outputs are made again."""
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
    """Pieces together, as many as go in one round trip."""
    batch: list[Piece] = []
    nbytes = 0
    for piece in pieces:
        batch.append(piece)
        nbytes += memoryview(piece.data).nbytes
        if nbytes >= PIECE or len(batch) == _MOST_PIECES:
            yield batch
            batch, nbytes = [], 0
    yield batch
