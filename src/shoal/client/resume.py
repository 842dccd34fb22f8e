"""`UnfinishedRun`: what it takes to resume a run, or to attach to one.

1. A run that fails or is cancelled stays in the store with its completed outputs, until it is
   resumed and succeeds, or expires.
2. Where those outputs outlive the client, the `UnfinishedRun` is written to a file that only its
   owner can read. It holds the run's key, which is never beside the data. The file is a pickle, and
   isn't loaded if another user could have written it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle

from shoal.errors import (
    InputChanged,
    NothingKept,
    ShardLost,
    ShardUnavailable,
    StoreError,
    StoreRefused,
    UsageError,
)
from shoal.execution.plan import Plan
from shoal.import_path import import_also_from, import_path
from shoal.private import private_folder, read_private, write_private
from shoal.types import RunId
from shoal.workflow import Workflow


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that can be resumed or attached to."""

    id: RunId
    key: bytes
    plan: Plan
    tries: int = 1
    """How often the run has been started."""
    started: float = 0.0
    """When it was last started, in seconds since the epoch; 0 if that isn't known."""

    @staticmethod
    def new(plan: Plan) -> UnfinishedRun:
        """A run that hasn't started, with a new id and key."""
        name = time.strftime("%m%d-%H%M%S-") + secrets.token_hex(3)
        return UnfinishedRun(RunId(name), secrets.token_bytes(32), plan)

    def of(self, workflow: Workflow) -> UnfinishedRun:
        """The same run with a workflow of the same shape, whose code may have changed."""
        was = self.plan.workflow
        same = list(was.calls) == list(workflow.calls) and was.upstream == workflow.upstream
        if not same or was.sinks != workflow.sinks:
            raise UsageError(
                f"This workflow isn't the one of run {self.id}: its tasks, or their connections, "
                "differ. Run it without resume=."
            )
        return replace(self, plan=replace(self.plan, workflow=workflow.named(was.title)))

    def write(self, data_folder: Path) -> None:
        """Write it to its file."""
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
                f"The file to resume run {self.id} can't be written to {path.parent}: "
                f"{error.strerror}. Make room on that disk, or set another folder."
            ) from error


def leaves_outputs(error: BaseException | None) -> bool:
    """Whether the finished outputs of a run that ended with an error can still be used."""
    if isinstance(error, StoreError):
        return isinstance(error, ShardLost | ShardUnavailable)  # other servers have the rest
    return not isinstance(error, InputChanged)  # an output is no longer what it was


def read(data_folder: Path, run: str) -> UnfinishedRun:
    """An unfinished run, from its file."""
    path = _file(data_folder, run)
    try:
        kept = read_private(path)
        if kept is None:
            raise open_to_others(path)
        file = io.BytesIO(kept)
        unfinished: Any = pickle.load(file)
        if isinstance(unfinished, list):  # where its modules are imported from
            import_also_from(unfinished)
            unfinished = pickle.load(file)
    except FileNotFoundError as error:
        raise NothingKept(run) from error
    except (OSError, pickle.PickleError, AttributeError, ImportError, EOFError) as error:
        raise UsageError(f"{path} can't be read: {error!r}.") from error
    assert isinstance(unfinished, UnfinishedRun)
    return unfinished


def open_to_others(path: Path) -> UsageError:
    """The error for a file that is no longer private."""
    return UsageError(f"{path} isn't read: another user could have written it.")


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
