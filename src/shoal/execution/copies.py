"""`Copies`: the tasks of other workers that a worker may run too, and when that is worth it.

1. A copy is open until it begins, or until its output comes, or is certain to come, from the worker
   that owns the task.
2. A copy is worth it if the remaining time until the output is expected exceeds the copy's own time
   by the plan's gain. An output that is late is assumed to be late for as long again.
3. A worker whose copies stand in for another worker's share of a task vouches for all outputs of
   that share. It saves them before it parks, because no other worker may ever save them.
"""

from __future__ import annotations

from collections.abc import Set

from shoal.execution.effects import Mark
from shoal.execution.memory import Memory
from shoal.execution.plan import Copy, PlannedPart
from shoal.types import TaskId


class Copies:
    """The state of the copies that one worker may run."""

    def __init__(self, part: PlannedPart) -> None:
        self.open: dict[TaskId, Copy] = dict(part.copies)
        """Copies that may still begin."""
        self.begun: set[TaskId] = set()
        """Copies that gather their inputs, are ready or run; none of them is open."""
        self.scheduled: set[TaskId] = set()
        """Open copies with a timer: they begin when it fires, unless their output has come."""
        self.vouched: dict[TaskId, None] = {}
        """Outputs for which this worker has set marks in another worker's name, in order."""
        self.safe: set[TaskId] = set()
        """Vouched outputs that an earlier start of this worker has saved."""
        self.taken: dict[TaskId, list[TaskId]] = {}
        """The copies whose outputs each own task takes."""
        self._gain = part.duplication_gain
        self._late: set[TaskId] = set()
        for task, copy in part.copies.items():
            for target in copy.targets:
                self.taken.setdefault(target, []).append(task)

    def wait(self, task: TaskId, now: float) -> float:
        """The seconds until an open copy is worth it; 0: now."""
        copy = self.open[task]
        if task in self._late or abs(copy.expected - now) - copy.seconds >= self._gain:
            return 0.0
        return max(0.0, copy.expected + copy.seconds + self._gain - now)

    def begin(self, task: TaskId) -> None:
        """Begin an open copy."""
        self.close(task)
        self.begun.add(task)

    def close(self, task: TaskId) -> None:
        """Make sure that an open copy doesn't begin any more."""
        del self.open[task]
        self.scheduled.discard(task)

    def grow_late(self, task: TaskId) -> None:
        """Count a scheduled copy as worth it: its timer has fired."""
        if task in self.scheduled:
            self.scheduled.remove(task)
            self._late.add(task)

    def marks(
        self, part: PlannedPart, copy: Copy, memory: Memory, arrived: Set[TaskId]
    ) -> list[Mark]:
        """The marks of own tasks for which everything that the copy's worker owes is here.

        Should this start be lost, the next one finds those outputs with the mark.

        Args:
            part: The worker's part of the plan.
            copy: The copy that has been executed.
            memory: What the worker holds.
            arrived: Tasks that don't need a mark any more.
        """
        marks: list[Mark] = []
        for target, owed in copy.targets.items():
            if target not in arrived and memory.held.issuperset(owed):
                self.vouched.update(dict.fromkeys(owed))
                inline = tuple([output for output in owed if output not in memory.saved])
                saved = tuple([output for output in owed if output in memory.saved])
                producers = part.shared[target]
                marks.append(Mark(target, part.worker, producers, inline, saved, copy.worker))
        return marks
