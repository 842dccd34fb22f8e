"""`WorkerReports`: what the workers of a run tell the client.

They send the sinks' outputs, failures and losses, and their timelines. A letter that raises stays
unread, and so do those after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from shoal.client.mailbox import ClientMailbox
from shoal.client.supervisor import RunSupervisor
from shoal.client.transfers import Transfers
from shoal.client.worker_errors import loss_error
from shoal.execution.plan import Plan
from shoal.platform.invocation import Start
from shoal.storage.base import Store
from shoal.storage.letters import (
    ClientLetter,
    MemoryGrown,
    NoProgress,
    OutputReady,
    Received,
    TaskFailed,
    WorkerFinished,
    WorkerLost,
    WorkerParked,
    misaddressed,
)
from shoal.types import RunId, TaskId, WorkerId
from shoal.worker.failure import failure_error

_LAST_WORDS = 2.0
"""Seconds to wait for the workers' timelines once the result is there."""


class WorkerReports:
    """Reads the letters of a run's workers, and keeps what they say."""

    def __init__(self, store: Store, run: RunId, key: bytes, plan: Plan) -> None:
        self.mailbox = ClientMailbox(store, run)
        self._run = run
        self._key = key
        self._workflow = plan.workflow
        self.outputs: dict[TaskId, Any] = {}
        """The values of the sinks that have arrived."""
        self.records: list[bytes] = []
        """The workers' timelines, encoded."""
        self.needs: dict[str, int] = {}
        """The memory that tasks turned out to need, in MB, by task key."""
        self.arrived: Callable[[TaskId, Any], None] | None = None
        """Called with each sink's output as soon as it arrives."""
        self._unfinished: set[WorkerId] = set(plan.workers)
        """Known workers whose timelines are missing."""
        self._finished: set[WorkerId] = set()

    def expect(
        self, starts: Sequence[Start], transfers: Transfers, supervisor: RunSupervisor
    ) -> None:
        """Expect the letters of a try of the run, which begins with these starts."""
        self._unfinished.update([start.worker for start in starts])
        self._transfers = transfers
        self._supervisor = supervisor

    def receive(self, missing: set[TaskId]) -> bool:
        """Wait a moment for letters, and take them; returns whether any came.

        Args:
            missing: The sinks without an output, from which those that arrive are removed.
        """
        received = self.mailbox.receive()
        self._take_all(received, missing)
        return bool(received)

    def await_timelines(self) -> None:
        """Wait until the workers have sent their timelines, for a short time."""
        deadline = time.monotonic() + _LAST_WORDS
        while self._unfinished and time.monotonic() < deadline:
            received = self.mailbox.receive()
            self._take_all([e for e in received if not isinstance(e.letter, WorkerLost)], set())
            if received:
                self.mailbox.mark_read(received[-1].id)

    def _take_all(self, received: Sequence[Received], missing: set[TaskId]) -> None:
        for each in received:
            self._take(each, missing)
            self.mailbox.mark_read(each.id)

    def _take(self, received: Received, missing: set[TaskId]) -> None:
        letter, stale = received.letter, self.mailbox.outdated(received.id)
        if not isinstance(letter, ClientLetter):
            raise misaddressed(letter)
        if stale and not isinstance(letter, OutputReady):
            return  # of an earlier try
        match letter:
            case OutputReady(task):
                if task in missing and not (stale and self._transfers.data(letter) is None):
                    missing.discard(task)
                    self._arrive(task, self._transfers.output(letter))
            case TaskFailed(task, failure):
                not_run = self._workflow.after(task)
                raise failure_error(task, failure, not_run, self._key, run=self._run)
            case WorkerLost(worker, loss):
                if not self._supervisor.restarted(worker, loss):
                    raise loss_error(worker, loss, self._workflow, self._run)
            case MemoryGrown():
                self._grow(letter)
            case WorkerParked(_, record):
                self.records.append(bytes(record))
            case WorkerFinished(worker, record, invoked):
                self.records.append(bytes(record))
                self._finished.add(worker)
                self._unfinished.update(invoked or ())
                self._unfinished -= self._finished
            case NoProgress():
                pass
            case _:
                assert_never(letter)

    def _arrive(self, task: TaskId, value: Any) -> None:
        self.outputs[task] = value
        if self.arrived is not None:
            self.arrived(task, value)

    def _grow(self, grown: MemoryGrown) -> None:
        """Note the memory that the tasks of a worker got after it ran out of memory."""
        calls = self._workflow.calls
        for key in {calls[task].task.key for task in self._workflow.numbered(grown.running)}:
            self.needs[key] = max(grown.memory_mb, self.needs.get(key, 0))
