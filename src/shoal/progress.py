"""How far a run is, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

State = Literal["running", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Status:
    """How far a run is."""

    state: State
    executed: int
    tasks: int

    def __str__(self) -> str:
        return f"{self.state}, {self.executed} of {self.tasks} tasks executed"


class Display(Protocol):
    """Shows how far a run is."""

    def show(self, executed: int) -> None:
        """So many tasks are executed."""
        ...

    def close(self) -> None:
        """The run has ended."""
        ...
