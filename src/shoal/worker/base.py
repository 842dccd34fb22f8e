"""`Worker`: what a courier needs of the worker that it works for."""

from __future__ import annotations

from typing import Any, Protocol

from shoal.errors import NotPicklable
from shoal.execution.events import Event
from shoal.storage.base import Letter
from shoal.storage.codec import Blob
from shoal.types import TaskId
from shoal.worker.recorder import Recorder


class Worker(Protocol):
    """The worker that a courier works for."""

    recorder: Recorder

    @property
    def executed(self) -> int:
        """How many tasks it has executed."""
        ...

    def tell(self, event: Event) -> None:
        """Something happened."""
        ...

    def keep(self, outputs: dict[TaskId, Any]) -> None:
        """Outputs of others came in."""
        ...

    def blob(self, task: TaskId) -> Blob:
        """An own output as it is saved."""
        ...

    def unsaved(self, task: TaskId, error: NotPicklable) -> None:
        """An own output can't be pickled."""
        ...

    def failure(self, task: TaskId, error: BaseException) -> Letter:
        """What to tell the client of a task that can't be run."""
        ...

    def parked(self, *, left: bool) -> None:
        """Whether the store let it go."""
        ...

    def give_up(self, error: BaseException) -> None:
        """It can't go on."""
        ...
