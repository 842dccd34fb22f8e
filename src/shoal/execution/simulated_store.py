"""`SimulatedStore`: the outputs and marks in the store of a simulated run.

It takes no time. The simulation asks it at the moment at which a request would reach the store.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from shoal.execution.effects import Mark
from shoal.execution.events import Recovered
from shoal.execution.store_model import OwnedMarks, UnownedMarks
from shoal.types import TaskId, WorkerId

Values = dict[TaskId, Any]
"""Outputs that travel with an order or a message, or that the store has."""
Marked = tuple[Values, WorkerId]
"""The values that came with a mark, and who sent it."""


class SimulatedStore:
    """Outputs and marks."""

    def __init__(self, tasks: Container[TaskId]) -> None:
        self._tasks = tasks
        """The tasks that save outputs. Everything else is a constant, and there from the start."""
        self.saved: Values = {}
        self.results: Values = {}
        """The outputs of sinks that the client has."""
        self._owned: OwnedMarks[Marked] = OwnedMarks()
        self._unowned: UnownedMarks[Marked] = UnownedMarks()

    def has(self, outputs: Sequence[TaskId]) -> bool:
        """Whether all of these outputs and constants can be fetched."""
        return all([output in self.saved or output not in self._tasks for output in outputs])

    def mark(self, mark: Mark, values: Values, me: WorkerId) -> Values | None:
        """Set a mark; return the values of all of the task's marks if it decides the task.

        It does if it makes an owned task ready, or gives an unowned one to the sender.
        """
        task, producers, producer = mark.task, mark.producers, mark.producer or me
        found: Mapping[str, Marked | None] | None
        if mark.owner is not None:
            found = self._owned.add(task, producers, producer, (values, me))
        elif mark.held is None:
            found = self._unowned.add(task, producers, producer, (values, me))
        else:
            found = self._unowned.add_held(task, producers, producer, mark.held)
        if found is None:
            return None
        return {
            output: value for each in found.values() if each for output, value in each[0].items()
        }

    def recovered(self, me: WorkerId, started: frozenset[WorkerId]) -> tuple[Recovered, Values]:
        """Return what a lost worker left behind, and the values that its own marks brought."""
        own = {task: given for task, (given, sender) in self._owned.of(me).items() if sender == me}
        values = {output: value for given in own.values() for output, value in given.items()}
        found = Recovered(
            frozenset(self.saved),
            tuple(values),
            frozenset(own),
            frozenset(self.results),
            started,
        )
        return found, values
