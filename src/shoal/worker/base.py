"""`Worker`: what a courier needs from the worker that it works for."""

from __future__ import annotations

from typing import Any, Protocol

from shoal.errors import NotPicklable
from shoal.execution.events import Event
from shoal.storage.codec import Blob
from shoal.storage.letters import TaskFailed
from shoal.types import TaskId
from shoal.worker.recorder import Recorder


class Worker(Protocol):
    """The worker that a courier works for."""

    recorder: Recorder

    @property
    def executed(self) -> int:
        """How many tasks the worker has executed."""
        ...

    def tell(self, event: Event) -> None:
        """Tell the worker what happened."""
        ...

    def keep(self, outputs: dict[TaskId, Any]) -> None:
        """Keep outputs of others in memory."""
        ...

    def blob(self, task: TaskId) -> Blob:
        """One of the worker's own outputs, encoded for saving."""
        ...

    def unsaved(self, task: TaskId, error: NotPicklable) -> None:
        """Take note that one of the worker's own outputs can't be pickled."""
        ...

    def failure(self, task: TaskId, error: BaseException) -> TaskFailed:
        """The message that tells the client why a task can't run."""
        ...

    def parked(self, *, left: bool) -> None:
        """Take the store's answer to a request to park."""
        ...

    def give_up(self, error: BaseException) -> None:
        """Stop because of an error."""
        ...
