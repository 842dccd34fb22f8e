"""`HostMemory`: what the store has of a run, once more in the memory of a host, for its workers.

1. It is for jobs that may be on any machine: each output is in the store, and workers of one host
   spare each other the way there. What the store doesn't have is never here.
2. Each job of a host leaves a file with a random name in the host's shared memory, and locks it. A
   job that sees another one's shares memory with it. A job alone keeps no copies.
3. A run's folder is locked by all jobs that work for it. The last one deletes it. What killed jobs
   leave is swept by whoever makes a folder next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path

from shoal.private import guarded_folder, open_private
from shoal.storage.shared_memory import locked, swept
from shoal.system import shared_folder
from shoal.types import RunId

_PRESENCE = ".job-"
"""The prefix of the files of jobs; the deployment and a random name follow."""
_COPIES = "copies-"
"""The prefix of the folders of runs."""


class HostMemory:
    """A job's side of its host's memory; not safe to use from several threads."""

    def __init__(self, deployment: str) -> None:
        """Tell the other jobs of a deployment that this one is here.

        Args:
            deployment: The deployment's id.
        """
        self._root = shared_folder()
        self._prefix = f"{_PRESENCE}{deployment}-"
        self._name = self._prefix + secrets.token_hex(16)
        self._present: int | None = None
        self._run: RunId | None = None
        self._lock: int | None = None
        """Held while the job works for a run."""
        with contextlib.suppress(OSError):
            guarded_folder(self._root)
            self._present = locked(self._root / self._name)

    def folder(self, run: RunId) -> str | None:
        """Where this host's workers of a run keep copies; None if there is no other job here."""
        if self._run == run:
            return str(self._path(run))
        self.leave()
        if self._present is None or not self._has_neighbour():
            return None
        try:
            self._enter(run)
        except OSError:
            return None
        return str(self._path(run))

    def leave(self) -> None:
        """Work for no run any more: if no other job works for it, its copies are deleted."""
        if self._run is None or self._lock is None:
            return
        with contextlib.suppress(OSError), swept(self._root):  # among them: another job holds it
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._path(self._run), ignore_errors=True)
        os.close(self._lock)
        self._run = self._lock = None

    def close(self) -> None:
        """Leave the host."""
        self.leave()
        if self._present is not None:
            os.close(self._present)
            with contextlib.suppress(OSError):
                (self._root / self._name).unlink()
            self._present = None

    def _path(self, run: RunId) -> Path:
        return self._root / (_COPIES + run)

    def _enter(self, run: RunId) -> None:
        path = self._path(run)
        with swept(self._root):
            path.mkdir(mode=0o700, exist_ok=True)
            self._lock = locked(path / ".lock", fcntl.LOCK_SH)
        self._run = run

    def _has_neighbour(self) -> bool:
        """Whether another job is here; files of jobs that were killed are deleted."""
        names = [name for name in os.listdir(self._root) if name.startswith(self._prefix)]
        return any([self._lives(name) for name in names if name != self._name])

    def _lives(self, name: str) -> bool:
        path = self._root / name
        try:
            descriptor = open_private(str(path), os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)
