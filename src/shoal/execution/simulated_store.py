"""`SimulatedStore`: what the store of a simulated run has, and what it answers.

It takes no time and knows no clock: the simulation asks it when a request would arrive there.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from shoal.execution.effects import Mark
from shoal.execution.events import Recovered
from shoal.types import TaskId, WorkerId

Values = dict[TaskId, Any]


class SimulatedStore:
    """Outputs and marks."""

    def __init__(self, tasks: Container[TaskId]) -> None:
        self._tasks = tasks
        """Whose outputs are saved; constants are there from the beginning."""
        self.saved: Values = {}
        self.results: Values = {}
        """The sinks' outputs that were handed in."""
        self._marks: dict[TaskId, dict[str, tuple[Values, WorkerId]]] = {}
        """For each task and producer, the values that came with the mark, and who set it."""
        self._last: dict[TaskId, str] = {}
        """Of tasks that the plan gives to nobody: whose mark was the last."""
        self._held: dict[TaskId, set[str]] = {}
        """Of the same tasks: whose outputs are only in the memory of who set the last mark."""

    def has(self, outputs: Sequence[TaskId]) -> bool:
        """Whether all of these outputs and constants are there."""
        return all([output in self.saved or output not in self._tasks for output in outputs])

    def mark(self, mark: Mark, values: Values, me: WorkerId) -> Values | None:
        """Set a mark; what came with all of the task's marks if this is the last, else None."""
        done = self._marks.setdefault(mark.task, {})
        if mark.owner is None:
            last = self._mark_free(mark, done, values, me)
        else:
            before = len(done)
            done.setdefault(mark.producer or me, (values, me))
            last = before < len(mark.producers) == len(done)
        if not last:
            return None
        return {output: value for given, _ in done.values() for output, value in given.items()}

    def _mark_free(
        self,
        mark: Mark,
        done: dict[str, tuple[Values, WorkerId]],
        values: Values,
        me: WorkerId,
    ) -> bool:
        """Mark a task that the plan gives to nobody; whether it is the sender's (see `Store`)."""
        task, producer = mark.task, str(mark.producer)
        count, held = len(mark.producers), self._held.setdefault(task, set())
        if mark.held is None:
            if producer not in done:
                done[producer] = (values, me)
                if len(done) == count:
                    self._last[task] = producer
            elif producer in held:
                held.remove(producer)
                done[producer] = (values, me)
            if self._last.get(task) == producer and held:
                self._last[task] = min(held)
            return self._last.get(task) == producer
        fresh = [output for output in mark.held if output not in done]
        if fresh and len(done) + len(fresh) == count:
            done.update({output: ({}, me) for output in fresh})
            held.update(fresh)
            self._last[task] = producer
        return self._last.get(task) in mark.held and held.issubset(mark.held)

    def recovered(self, me: WorkerId, started: frozenset[WorkerId]) -> tuple[Recovered, Values]:
        """What there is of a worker that was lost, and the values that its marks brought."""
        values: Values = {}
        marked: set[TaskId] = set()
        for target, done in self._marks.items():
            if me in done and done[me][1] == me:
                marked.add(target)
                values.update(done[me][0])
        found = Recovered(
            frozenset(self.saved),
            tuple(values),
            frozenset(marked),
            frozenset(self.results),
            started,
        )
        return found, values
