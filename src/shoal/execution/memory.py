"""`Memory`: which outputs a flexible worker has, how large they are, and who still needs them."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.execution.effects import Effect, Save
from shoal.execution.machine import INLINE_NBYTES
from shoal.types import TaskId


class Memory:
    """Outputs and constants in a worker's memory; what nobody uses any more is forgotten."""

    def __init__(self) -> None:
        self.held: set[TaskId] = set()
        self.saved: set[TaskId] = set()
        """Those that can be fetched."""
        self.nbytes: dict[TaskId, int] = {}
        """The sizes of those that were made here; of one that came with a message, the most."""
        self.uses: dict[TaskId, int] = {}
        """Tasks, marks, saves and invocations to come that need an output in memory."""

        self.saving: dict[TaskId, list[TaskId]] = {}
        """Outputs being saved, and the tasks that are told of or invoked afterwards."""

    def use(self, output: TaskId) -> None:
        """One more needs an output, which is here or will be."""
        self.uses[output] = self.uses.get(output, 0) + 1

    def used(self, output: TaskId, unneeded: list[TaskId]) -> None:
        """One less does; if nobody does any more, it is noted as unneeded."""
        self.uses[output] -= 1
        if not self.uses[output]:
            del self.uses[output]
            unneeded.append(output)

    def forget(self, unneeded: Iterable[TaskId]) -> tuple[TaskId, ...]:
        """Give up what was unneeded and hasn't been asked for again since."""
        forgotten = tuple([o for o in dict.fromkeys(unneeded) if o not in self.uses])
        for output in forgotten:
            self.held.discard(output)
            self.saved.discard(output)
            self.nbytes.pop(output, None)
        return forgotten

    def small(self, output: TaskId) -> bool:
        """Whether an output travels with marks."""
        return self.nbytes.get(output, INLINE_NBYTES + 1) <= INLINE_NBYTES

    def size(self, output: TaskId) -> int:
        """The size of an output, as far as it is known."""
        return self.nbytes.get(output, 0)

    def save(self, output: TaskId, target: TaskId | None, effects: list[Effect]) -> None:
        """Save an output, once, and go on with a task afterwards; for a sink with itself."""
        if output not in self.saving:
            self.saving[output] = []
            self.use(output)
            effects.append(Save(output))
        if target is not None:
            self.saving[output].append(target)
