"""`Recorder`: what a worker spent its time on, one row per span."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.clock import Clock
from shoal.execution.timeline import KINDS, Moved, SpanRow, encode_record
from shoal.types import TaskId, WorkerId

_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
EXECUTE, FETCH, SAVE = _NUMBER_OF["execute"], _NUMBER_OF["fetch"], _NUMBER_OF["save"]
LOAD, DELIVER, _LEAVE = _NUMBER_OF["load"], _NUMBER_OF["deliver"], _NUMBER_OF["leave"]
HIT, MISS = _NUMBER_OF["hit"], _NUMBER_OF["miss"]


class Recorder:
    """Collects the rows of one start; any thread may append."""

    def __init__(self, worker: WorkerId, numbers: dict[TaskId, int], clock: Clock) -> None:
        """Begin without rows; `clock` tells the store's time."""
        self.now = clock.now
        """Tells the time of everything that is recorded."""
        self._worker = worker
        self._numbers = dict(numbers)
        self.rows: list[SpanRow] = []
        self._began = 0.0
        self._shards: dict[str, Moved] = {}

    def started(self, start: str, sent: float, now: float) -> None:
        """Record a cold or warm start."""
        self._began = now
        self.rows.append((_NUMBER_OF[f"{start} start"], -1, sent, now, 0.0, 0))

    def delivered(self, task: TaskId, sent: float, now: float) -> None:
        """Record a message, unless it was sent before the worker began: that says nothing."""
        if sent > self._began:
            self.rows.append((DELIVER, self._numbers.get(task, -1), sent, now, 0.0, 0))

    def numbered(self, tasks: tuple[TaskId, ...]) -> dict[TaskId, int]:
        """The numbers of tasks of this worker."""
        return {task: self._numbers[task] for task in tasks}

    def learn(self, numbers: dict[TaskId, int]) -> None:
        """Learn the numbers of other workers' tasks, whose outputs may be fetched."""
        self._numbers.update(numbers)

    def moved(self, kind: int, task: TaskId, start: float, end: float, nbytes: int) -> None:
        """Record an output that was fetched or saved."""
        self.rows.append((kind, self._numbers.get(task, -1), start, end, 0.0, nbytes))

    def moved_together(
        self, kind: int, sizes: Mapping[TaskId, int], start: float, end: float
    ) -> None:
        """Record outputs that travelled together, as one transfer: that of the first."""
        nbytes = sum(sizes.values())
        for task in sizes:
            self.moved(kind, task, start, end, nbytes)
            start, nbytes = end, 0

    def spread(self, server: str, *, saved: int = 0, fetched: int = 0) -> None:
        """Count bytes that went to or came from a server; it has no name if it is the only one."""
        if server:
            moved = Moved(saved, fetched)
            self._shards[server] = self._shards.get(server, Moved()).and_then(moved)

    def record(self, now: float) -> bytes:
        """The record so far, with the end of the start as its last row."""
        rows = [*self.rows, (_LEAVE, -1, now, now, 0.0, 0)]
        return encode_record(self._worker, rows, self._shards)

    def taken(self, now: float) -> bytes:
        """The same; the recorder is empty afterwards."""
        record = self.record(now)
        self.rows, self._shards = [], {}
        return record
