"""`RunLogs`: what user code printed, kept per run in files, the oldest runs' deleted."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.platform.base import LogLine
from shoal.private import open_private, private_folder
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
        self.extend(run, worker, stream, [text])

    def extend(self, run: RunId, worker: str, stream: str, texts: Sequence[str]) -> None:
        """Keep lines that came together."""
        with self._lock:
            if run not in self._written:
                private_folder(self._folder)
                self._forget_oldest()
            written = self._written.get(run, 0)
            if written > _MOST:
                return
            kept: list[str] = []
            for text in texts:
                line = json.dumps([time.time(), worker, stream, text]) + "\n"
                written += len(line)
                if written > _MOST:
                    cut = [time.time(), worker, stream, "… the rest is not kept"]
                    kept.append(json.dumps(cut) + "\n")
                    break
                kept.append(line)
            self._written[run] = written
            with open(self._folder / f"{run}.jsonl", "a", opener=open_private) as file:
                file.write("".join(kept))

    def _forget_oldest(self) -> None:
        files = sorted(self._folder.glob("*.jsonl"), key=_age)
        for path in files[: max(0, len(files) - _KEPT + 1)]:
            path.unlink(missing_ok=True)
            self._written.pop(RunId(path.stem), None)

    def read(self, run: RunId) -> list[LogLine]:
        """What a run printed."""
        return list(self._lines(run))

    def _lines(self, run: RunId) -> Iterator[LogLine]:
        try:
            file = (self._folder / f"{run}.jsonl").open()
        except FileNotFoundError:
            return
        with file:
            for line in file:
                with contextlib.suppress(ValueError):  # it may be being written
                    yield LogLine(*json.loads(line))


def _age(path: Path) -> float:
    """When a file was last written to; another process may have deleted it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
