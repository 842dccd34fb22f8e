"""`ProgressBar`: the progress of a run on a terminal, shown if the run takes a moment."""

from __future__ import annotations

import time
from typing import Any

from shoal.execution.formatting import printable

_HIDDEN_SECONDS = 0.3
"""Seconds before the bar appears; shorter runs show none."""


class ProgressBar:
    """A bar that appears once a run has taken a moment."""

    def __init__(self, name: str, tasks: int) -> None:
        self._name = name
        self._tasks = tasks
        self._since = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def show(self, executed: int) -> None:
        """This many tasks have been executed."""
        if self._bar is None:
            if time.monotonic() - self._since < _HIDDEN_SECONDS:
                return
            self._open()
        self._bar.update(self._task, completed=executed)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(printable(self._name), total=self._tasks)
        self._bar.start()

    def close(self) -> None:
        """The run has ended."""
        if self._bar is not None:
            self._bar.stop()
