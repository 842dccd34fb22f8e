"""`RunLogs`: what user code printed, in one file per run; the oldest files are deleted."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from shoal.platform.base import LogLine
from shoal.private import open_private, private_folder
from shoal.types import RunId

log = logging.getLogger(__name__)

_MAX_RUNS = 200
"""Runs whose logs are stored."""
_MAX_NBYTES = 16 * 1024 * 1024
"""Stored of one run."""


class Logs(Protocol):
    """Stores what user code prints."""

    def extend(self, run: RunId, worker: str, stream: str, texts: Sequence[str]) -> None:
        """Store lines that were printed together; never raises."""
        ...

    def read(self, run: RunId) -> Sequence[LogLine]:
        """The lines that a run printed."""
        ...


class RunLogs:
    """A folder with a file for each run that printed something."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._written: dict[RunId, int] = {}
        self._failed = False
        """The warning that nothing can be written has been logged."""

    def append(self, run: RunId, worker: str, stream: str, text: str) -> None:
        """Store a line."""
        self.extend(run, worker, stream, [text])

    def extend(self, run: RunId, worker: str, stream: str, texts: Sequence[str]) -> None:
        """Store lines that were printed together; a file that can't be written is logged once."""
        try:
            with self._lock:
                self._extend(run, worker, stream, texts)
        except OSError as error:
            if not self._failed:
                log.warning("the output of tasks can't be stored: %s", error)
            self._failed = True

    def _extend(self, run: RunId, worker: str, stream: str, texts: Sequence[str]) -> None:
        if run not in self._written:
            private_folder(self._folder)
            self._delete_oldest()
        written = self._written.get(run, 0)
        if written > _MAX_NBYTES:
            return
        lines: list[str] = []
        for text in texts:
            line = json.dumps([time.time(), worker, stream, text]) + "\n"
            written += len(line)
            if written > _MAX_NBYTES:
                cut = [time.time(), worker, stream, "… the rest is not stored"]
                lines.append(json.dumps(cut) + "\n")
                break
            lines.append(line)
        self._written[run] = written
        with open(self._folder / f"{run}.jsonl", "a", opener=open_private) as file:
            file.write("".join(lines))

    def _delete_oldest(self) -> None:
        files = sorted(self._folder.glob("*.jsonl"), key=_age)
        for path in files[: max(0, len(files) - _MAX_RUNS + 1)]:
            path.unlink(missing_ok=True)
            self._written.pop(RunId(path.stem), None)

    def read(self, run: RunId) -> list[LogLine]:
        """The lines that a run printed."""
        return list(self._lines(run))

    def _lines(self, run: RunId) -> Iterator[LogLine]:
        try:
            file = (self._folder / f"{run}.jsonl").open()
        except FileNotFoundError:
            return
        with file:
            for line in file:
                with contextlib.suppress(ValueError):  # another process may be writing it
                    yield LogLine(*json.loads(line))


def _age(path: Path) -> float:
    """When a file was last written; 0 if another process has deleted it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
