"""`TaskCaller`: calls a worker's tasks, and says how each call went.

1. The time of a task is all that its slot spends on it, measuring its output included. Importing
   the user's module, looking for an output in the cache and checking inputs aren't its time.
2. Whatever a task raises is an outcome like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.platform.invocation import RunContext
from shoal.storage.letters import Failure
from shoal.types import TaskId
from shoal.worker.cache import TaskCache
from shoal.worker.failure import described_failure
from shoal.worker.input_check import InputCheck
from shoal.worker.outputs import Outputs
from shoal.worker.package import Unpacked
from shoal.worker.recorder import EXECUTE, HIT, LOAD, MISS, Recorder


@dataclass(slots=True)
class Outcome:
    """How a call went."""

    kind: int
    """The kind of its row in the timeline: an execution, or a hit in the cache."""
    start: float
    end: float = 0.0
    cpu: float = 0.0
    """CPU seconds."""
    value: Any = None
    nbytes: int = 0
    failure: Failure | None = None
    final: bool = False
    """Whether another try after the failure would be of no use."""


class TaskCaller:
    """Calls the tasks of one start of a worker."""

    def __init__(
        self, context: RunContext, unpacked: Unpacked, outputs: Outputs, recorder: Recorder
    ) -> None:
        self._unpacked = unpacked
        self._outputs = outputs
        self._recorder = recorder
        self._key = context.key
        self._now = recorder.now
        slots = unpacked.part.resources.slots
        self._used = time.process_time if slots == 1 else time.thread_time
        """CPU seconds; the threads of libraries count where tasks don't share the process."""
        self._check = InputCheck(unpacked) if context.settings.check_inputs else None
        self._run = unpacked.run if self._check is None else self._check.run
        location = context.cache.location if context.cache else None
        self._cache = TaskCache(location, unpacked, context.settings.latency)
        self.slots = slots if self._check is None else 1
        """How many tasks may be called at once."""

    def call(self, task: TaskId, start: float, about_to_run: Callable[[], None]) -> Outcome:
        """Call a task whose slot has been free for it since `start`."""
        outcome = Outcome(EXECUTE, start)
        used = self._used
        cpu = used()
        try:
            if self._unpacked.load(task):
                cpu = self._begin_again(outcome, LOAD, task)
            looked_up = self._cache.look_up(task, self._outputs.values)
            if looked_up is not None and looked_up.hit:
                outcome.kind, value = HIT, looked_up.value
            else:
                if looked_up is not None:
                    cpu = self._begin_again(outcome, MISS, task)
                about_to_run()
                value = self._run(task, self._outputs.values)
                if looked_up is not None:
                    self._cache.keep(task, looked_up, value)
            outcome.nbytes = self._outputs.measure(task, value)
            outcome.value = value
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            outcome.failure = self.failure(error, task)
            outcome.final = not self._unpacked.worth_another(task, error)
        outcome.end, outcome.cpu = self._now(), used() - cpu
        if self._check is not None:
            spent = self._check.spent()
            outcome.start, outcome.cpu = outcome.start + spent, max(0.0, outcome.cpu - spent)
        return outcome

    def _begin_again(self, outcome: Outcome, kind: int, task: TaskId) -> float:
        """Record what was done so far, and begin the task's own time; the CPU time by then."""
        number, now = self._unpacked.numbers[task], self._now
        self._recorder.rows.append((kind, number, outcome.start, now(), 0.0, 0))
        outcome.start = now()
        return self._used()

    def failure(self, error: BaseException, task: TaskId) -> Failure:
        """What the client learns about a task that failed or can't be run."""
        return described_failure(error, task, self._unpacked, self._key)

    def close(self) -> None:
        """Close the connection to the cache."""
        self._cache.close()
