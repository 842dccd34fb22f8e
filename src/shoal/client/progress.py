"""The progress of a run, and who shows it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, Protocol

from shoal.settings import Settings
from shoal.workflow import Workflow

RunState = Literal["running", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a run."""

    state: RunState
    executed: int
    tasks: int

    def __str__(self) -> str:
        return f"{self.state}, {self.executed} of {self.tasks} tasks executed"


class Display(Protocol):
    """Shows the progress of a run."""

    def show(self, executed: int) -> None:
        """This many tasks have been executed."""
        ...

    def close(self) -> None:
        """The run has ended."""
        ...


def display_of(settings: Settings, workflow: Workflow) -> Display | None:
    """What shows the progress of a workflow's run; None if it isn't shown."""
    shown = sys.stderr.isatty() if settings.progress is None else settings.progress
    if not shown:
        return None
    from shoal.client.progress_bar import ProgressBar

    return ProgressBar(workflow.name, len(workflow))
