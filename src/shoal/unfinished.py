"""`Unfinished`: what it takes to go on with a run that has no result yet.

1. A run that fails or is cancelled stays in the store, with what is finished of it, until it is
   resumed and succeeds, or its time is over.
2. Where what is finished of it outlives the client, this is also kept in a file, readable by its
   owner only: it holds the run's key, which is never beside the data. It is a pickle of the user's
   own, and not read if anyone else could have written it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle

from shoal.errors import NothingKept, StoreRefused, UsageError
from shoal.execution.plan import Plan
from shoal.platform.gateway import import_path
from shoal.private import private_folder, read_private, write_private
from shoal.types import RunId
from shoal.workflow import Workflow


@dataclass(frozen=True)
class Unfinished:
    """A run that can be gone on with."""

    id: RunId
    key: bytes
    plan: Plan
    tries: int = 1
    """How often it has been begun."""
    started: float = 0.0
    """When it was begun last, in seconds since the epoch; 0: before this was known."""

    def of(self, workflow: Workflow) -> Unfinished:
        """The same for a workflow of the same shape, whose code may have changed."""
        was = self.plan.workflow
        same = list(was.calls) == list(workflow.calls) and was.upstream == workflow.upstream
        if not same or was.sinks != workflow.sinks:
            raise UsageError(
                f"This workflow isn't the one of run {self.id}: it has other tasks, or they are "
                "connected in another way. Run it without resume=."
            )
        return replace(self, plan=self.plan.of(workflow.named(was.title)))

    def write(self, data_folder: Path) -> None:
        """Keep it in a file."""
        path = _file(data_folder, self.id)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        content = [pickle.dumps([*import_path()]), cloudpickle.dumps(self)]
        try:
            private_folder(path.parent)
            unfinished.unlink(missing_ok=True)
            write_private(unfinished, content)
            unfinished.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise StoreRefused(
                f"What it takes to resume run {self.id} can't be written to {path.parent}: "
                f"{error.strerror}. Make room on that disk, or set another folder."
            ) from error


def read(data_folder: Path, run: str) -> Unfinished:
    """What was kept of a run in a file."""
    path = _file(data_folder, run)
    try:
        kept = read_private(path)
        if kept is None:
            raise open_to_others(path)
        file = io.BytesIO(kept)
        unfinished: Any = pickle.load(file)
        if isinstance(unfinished, list):  # where its modules are imported from
            sys.path.extend([entry for entry in unfinished if entry not in sys.path])
            unfinished = pickle.load(file)
    except FileNotFoundError as error:
        raise NothingKept(run) from error
    except (OSError, pickle.PickleError, AttributeError, ImportError, EOFError) as error:
        raise UsageError(f"{path} can't be read: {error!r}.") from error
    assert isinstance(unfinished, Unfinished)
    return unfinished


def open_to_others(path: Path) -> UsageError:
    """What to say of a file that isn't private any more."""
    return UsageError(f"{path} isn't read: others than its owner could have written it.")


def unfinished_nbytes(data_folder: Path, run: str) -> int:
    """The length of a run's file; 0 if there is none."""
    try:
        return _file(data_folder, run).stat().st_size
    except OSError:
        return 0


def forget(data_folder: Path, run: str) -> None:
    """Delete the file of a run, if there is one."""
    with contextlib.suppress(OSError):
        _file(data_folder, run).unlink()


def _file(data_folder: Path, run: str) -> Path:
    return data_folder / "unfinished" / run.replace("/", "_")
