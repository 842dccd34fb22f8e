"""`Recorder`: what a worker spent its time on, a row for each thing."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.execution.timeline import KINDS, Moved, Row, encode_record
from shoal.types import TaskId, WorkerId

_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
EXECUTE, FETCH, SAVE = _NUMBER_OF["execute"], _NUMBER_OF["fetch"], _NUMBER_OF["save"]
LOAD, DELIVER, _LEAVE = _NUMBER_OF["load"], _NUMBER_OF["deliver"], _NUMBER_OF["leave"]
HIT, MISS = _NUMBER_OF["hit"], _NUMBER_OF["miss"]


class Recorder:
    """Collects rows; appending is safe from any thread."""

    def __init__(self, worker: WorkerId, numbers: dict[TaskId, int]) -> None:
        self._worker = worker
        self._numbers = dict(numbers)
        self.rows: list[Row] = []
        self._began = 0.0
        self._shards: dict[str, Moved] = {}

    def started(self, start: str, sent: float, now: float) -> None:
        """The worker began, cold or warm."""
        self._began = now
        self.rows.append((_NUMBER_OF[f"{start} start"], -1, sent, now, 0.0, 0))

    def delivered(self, task: TaskId, sent: float, now: float) -> None:
        """A message came; one that was sent before the worker began says nothing of its way."""
        if sent > self._began:
            self.rows.append((DELIVER, self._numbers.get(task, -1), sent, now, 0.0, 0))

    def numbered(self, tasks: tuple[TaskId, ...]) -> dict[TaskId, int]:
        """The numbers of tasks of this worker."""
        return {task: self._numbers[task] for task in tasks}

    def learn(self, numbers: dict[TaskId, int]) -> None:
        """The numbers of tasks of others, whose outputs may be fetched."""
        self._numbers.update(numbers)

    def moved(self, kind: int, task: TaskId, start: float, end: float, nbytes: int) -> None:
        """An output was fetched or saved."""
        self.rows.append((kind, self._numbers.get(task, -1), start, end, 0.0, nbytes))

    def moved_together(
        self, kind: int, sizes: Mapping[TaskId, int], start: float, end: float
    ) -> None:
        """Outputs that travelled together are one transfer, which is told of the first."""
        nbytes = sum(sizes.values())
        for task in sizes:
            self.moved(kind, task, start, end, nbytes)
            start, nbytes = end, 0

    def spread(self, server: str, *, saved: int = 0, fetched: int = 0) -> None:
        """An output went to or came from one of the store's servers; it has no name if alone."""
        if server:
            moved = Moved(saved, fetched)
            self._shards[server] = self._shards.get(server, Moved()).and_then(moved)

    def record(self, now: float) -> bytes:
        """The rows of a start that may end, as they are handed in."""
        rows = [*self.rows, (_LEAVE, -1, now, now, 0.0, 0)]
        return encode_record(self._worker, rows, self._shards)

    def taken(self, now: float) -> bytes:
        """The same, for a start that ends for certain, or goes on as if it had begun anew."""
        record = self.record(now)
        self.rows, self._shards = [], {}
        return record
