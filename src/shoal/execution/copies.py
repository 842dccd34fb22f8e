"""`Copies`: the tasks of other workers that a worker runs too, and when that is worth it.

1. A copy is open until it is begun, or until its output comes, or is sure to come, from its worker.
2. It is worth it if what remains until the output is expected exceeds the copy's own time by the
   plan's gain. An output that is late is taken to be late for as long again.
3. A worker whose copies stand in for another worker's share of a task vouches for all outputs of
   that share: they are saved before it parks, for nobody else may ever save them.
"""

from __future__ import annotations

from collections.abc import Set

from shoal.execution.effects import Mark
from shoal.execution.plan import Copy, Part
from shoal.types import TaskId


class Copies:
    """What has become of the copies that one worker may run."""

    def __init__(self, part: Part) -> None:
        self.open: dict[TaskId, Copy] = dict(part.copies)
        """Those that may still be begun."""
        self.begun: set[TaskId] = set()
        """Those that gather their inputs, are ready or run."""
        self.scheduled: set[TaskId] = set()
        """Open ones that will be begun if their output hasn't come by then."""
        self.vouched: dict[TaskId, None] = {}
        """Outputs that this worker has marked for in another one's name."""
        self.taken: dict[TaskId, list[TaskId]] = {}
        """The copies whose outputs an own task takes."""
        self._gain = part.duplication_gain
        self._late: set[TaskId] = set()
        for task, copy in part.copies.items():
            for target in copy.targets:
                self.taken.setdefault(target, []).append(task)

    def wait(self, task: TaskId, now: float) -> float:
        """After how many seconds an open copy is worth it; 0: now."""
        copy = self.open[task]
        if task in self._late or abs(copy.expected - now) - copy.seconds >= self._gain:
            return 0.0
        return max(0.0, copy.expected + copy.seconds + self._gain - now)

    def begin(self, task: TaskId) -> None:
        """An open copy is to be run."""
        self.close(task)
        self.begun.add(task)

    def close(self, task: TaskId) -> None:
        """An open copy isn't to be begun any more."""
        del self.open[task]
        self.scheduled.discard(task)

    def grow_late(self, task: TaskId) -> None:
        """The moment has come for which a copy was scheduled."""
        if task in self.scheduled:
            self.scheduled.remove(task)
            self._late.add(task)

    def marks(
        self,
        part: Part,
        copy: Copy,
        held: Set[TaskId],
        arrived: Set[TaskId],
        there: Set[TaskId],
    ) -> list[Mark]:
        """Marks of the own tasks for which the copy's worker owes nothing that isn't here.

        Should this start be lost, the next one finds with the mark what it lost.

        Args:
            part: The worker's.
            copy: What has been executed.
            held: What is in memory.
            arrived: Tasks that need no mark any more.
            there: Outputs that can be fetched.
        """
        marks: list[Mark] = []
        for target, owed in copy.targets.items():
            if target not in arrived and held >= set(owed):
                self.vouched.update(dict.fromkeys(owed))
                inline = tuple([output for output in owed if output not in there])
                saved = tuple([output for output in owed if output in there])
                producers = part.shared[target]
                marks.append(Mark(target, part.worker, producers, inline, saved, copy.worker))
        return marks
