"""`Memory`: what a worker holds in memory and for whom, what it fetches and what it saves.

1. An output stays in memory until its last use has ended. A use is a task, a mark, a hand-in, an
   invocation or a save that needs it.
2. Outputs without a use are dropped after an event, not during it: the same event may find a new
   use for them.
3. An output is fetched once, however many tasks wait for it, and saved once, however many steps
   wait for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from shoal.execution.effects import Effect, Fetch, Forget, Save
from shoal.types import TaskId

INLINE_NBYTES = 8 * 1024
"""Outputs up to this size travel inside the messages that need them."""


class Memory:
    """The outputs and constants that one start of a worker holds, fetches and saves."""

    def __init__(self, uses: Mapping[TaskId, int] | None = None) -> None:
        """Start with nothing in memory; `uses` are those that are known beforehand."""
        self.held: set[TaskId] = set()
        """What is in memory. Between events each of these has a use."""
        self.uses: dict[TaskId, int] = dict(uses or {})
        """How many uses each output still has, in memory or not; no entry is 0."""
        self.saved: set[TaskId] = set()
        """Outputs in `held` that can also be fetched, or will be before they are announced."""
        self.unpicklable: set[TaskId] = set()
        """Outputs that could not be saved. They stay here, however long that takes."""
        self.saving: dict[TaskId, list[TaskId]] = {}
        """Outputs that are being saved, and what waits for that. Each is in `held` and has a use
        for it. An output that is to be handed in or released afterwards waits for itself."""
        self.fetching: dict[TaskId, list[TaskId]] = {}
        """Outputs that are being fetched, and the tasks in `missing` that wait for each."""
        self.missing: dict[TaskId, int] = {}
        """How many inputs a task waits for: in how many lists of `fetching` it is; never 0."""
        self._nbytes: dict[TaskId, int] = {}
        """The sizes of outputs in `held`, as far as they are known."""
        self._unneeded: list[TaskId] = []
        """Outputs that had no use at some point of this event; empty between events."""

    def use(self, output: TaskId) -> None:
        """Count one more use of an output that is in memory or will be."""
        self.uses[output] = self.uses.get(output, 0) + 1

    def used(self, output: TaskId, times: int = 1) -> None:
        """Count uses of an output that have ended."""
        left = self.uses[output] - times
        if left:
            self.uses[output] = left
        else:
            del self.uses[output]
            self._unneeded.append(output)

    def add(self, output: TaskId, nbytes: int) -> None:
        """Hold an output that was made here."""
        self._nbytes[output] = nbytes
        self._hold(output)

    def receive(self, outputs: Iterable[TaskId], saved: Set[TaskId] = frozenset()) -> None:
        """Hold outputs that came with a message: they are small, or among those that are saved."""
        for output in outputs:
            if output in saved:
                self.saved.add(output)
            else:
                self._nbytes.setdefault(output, INLINE_NBYTES)
            self._hold(output)

    def add_saved(self, output: TaskId) -> None:
        """Hold an output that was fetched."""
        self.saved.add(output)
        self._hold(output)

    def _hold(self, output: TaskId) -> None:
        self.held.add(output)
        if output not in self.uses:
            self._unneeded.append(output)

    def forget(self, effects: list[Effect]) -> None:
        """Drop the outputs that have lost their last use."""
        if not self._unneeded:
            return
        held, uses = self.held, self.uses
        dropped = [o for o in dict.fromkeys(self._unneeded) if o not in uses and o in held]
        self._unneeded.clear()
        if dropped:
            held.difference_update(dropped)
            self.saved.difference_update(dropped)
            for output in dropped:
                self._nbytes.pop(output, None)
            effects.append(Forget(tuple(dropped)))

    def size(self, output: TaskId) -> int:
        """The size of an output; 0 if it isn't known."""
        return self._nbytes.get(output, 0)

    def sizes(self, outputs: Iterable[TaskId], unknown: int) -> int:
        """The size of several outputs; one whose size isn't known counts as `unknown`."""
        return sum([self._nbytes.get(output, unknown) for output in outputs])

    def small(self, output: TaskId) -> bool:
        """Whether an output is known to be small enough to travel inside messages."""
        return self._nbytes.get(output, INLINE_NBYTES + 1) <= INLINE_NBYTES

    def gather(self, task: TaskId, inputs: tuple[TaskId, ...], effects: list[Effect]) -> bool:
        """Fetch the inputs of a task that aren't in memory; whether all are there already."""
        if self.held.issuperset(inputs):
            return True
        missing = [source for source in inputs if source not in self.held]
        self.missing[task] = len(missing)
        wanted = tuple([source for source in missing if source not in self.fetching])
        for source in missing:
            self.fetching.setdefault(source, []).append(task)
        if wanted:
            effects.append(Fetch(wanted))
        return False

    def fetch(self, outputs: Iterable[TaskId], effects: list[Effect]) -> None:
        """Fetch outputs that no task waits for yet."""
        wanted = tuple(outputs)
        self.fetching.update({output: [] for output in wanted})
        effects.append(Fetch(wanted))

    def fetched(self, output: TaskId) -> list[TaskId]:
        """Hold an output that was fetched; the tasks whose inputs are all here now."""
        waiting = self.fetching.pop(output)
        self.add_saved(output)
        return self._complete(waiting)

    def made(self, output: TaskId, nbytes: int) -> list[TaskId]:
        """Hold an output that may be on its way here too; the tasks whose inputs are all here."""
        self.add(output, nbytes)
        waiting = self.fetching.get(output, [])
        if waiting:
            self.fetching[output] = []
        return self._complete(waiting)

    def _complete(self, waiting: list[TaskId]) -> list[TaskId]:
        complete: list[TaskId] = []
        for task in waiting:
            self.missing[task] -= 1
            if not self.missing[task]:
                del self.missing[task]
                complete.append(task)
        return complete

    def stop_gathering(self, task: TaskId) -> bool:
        """Have a task wait for inputs no longer; whether it did."""
        if self.missing.pop(task, None) is None:
            return False
        for waiting in self.fetching.values():
            if task in waiting:
                waiting.remove(task)
        return True

    def save(self, output: TaskId, then: TaskId | None, effects: list[Effect]) -> None:
        """Save an output, unless that is under way, and continue with `then` afterwards."""
        if output not in self.saving:
            self.saving[output] = []
            self.use(output)
            effects.append(Save(output))
        if then is not None:
            self.saving[output].append(then)

    def save_all(self, outputs: Iterable[TaskId], effects: list[Effect]) -> None:
        """Save those of the outputs that are needed and nowhere but in memory."""
        elsewhere = self.saved | self.saving.keys() | self.unpicklable
        for output in outputs:
            if output in self.held and output in self.uses and output not in elsewhere:
                self.save(output, None, effects)

    def finish_saving(self, output: TaskId) -> list[TaskId]:
        """An output has been saved; what waits for that."""
        self.saved.add(output)
        self.used(output)
        return self.saving.pop(output)

    def give_up_saving(self, output: TaskId) -> None:
        """An output can't be pickled."""
        del self.saving[output]
        self.unpicklable.add(output)
        self.used(output)
