"""`RunLogs`: what user code printed, kept per run in files, the oldest runs' deleted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from shoal.platform.base import LogLine
from shoal.types import RunId

_KEPT = 200
_MOST = 16 * 1024 * 1024
"""Bytes kept of one run."""


class RunLogs:
    """A folder with a file for each run that printed something."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._written: dict[RunId, int] = {}

    def append(self, run: RunId, worker: str, stream: str, text: str) -> None:
        """Keep a line."""
        line = json.dumps([time.time(), worker, stream, text]) + "\n"
        with self._lock:
            if run not in self._written:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._forget_oldest()
            written = self._written.get(run, 0)
            if written > _MOST:
                return
            self._written[run] = written + len(line)
            if written + len(line) > _MOST:
                line = json.dumps([time.time(), worker, stream, "… the rest is not kept"]) + "\n"
            with (self._folder / f"{run}.jsonl").open("a") as file:
                file.write(line)

    def _forget_oldest(self) -> None:
        files = sorted(self._folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        for path in files[: max(0, len(files) - _KEPT + 1)]:
            path.unlink(missing_ok=True)

    def read(self, run: RunId) -> list[LogLine]:
        """What a run printed."""
        return list(self._lines(run))

    def _lines(self, run: RunId) -> Iterator[LogLine]:
        path = self._folder / f"{run}.jsonl"
        if not path.exists():
            return
        with path.open() as file:
            for line in file:
                yield LogLine(*json.loads(line))
