"""`Obligations`: what a worker's part asks of it, counted before anything happens.

1. They follow from the part alone and never change: each start of the worker counts down copies.
2. A worker that was lost repeats the tasks whose outputs are still needed and held nowhere, and
   all tasks that lead to them here. The rest of its part counts as done.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from shoal.execution.events import Recovered
from shoal.execution.plan import PlannedPart
from shoal.types import TaskId


@dataclass(frozen=True)
class Obligations:
    """What a worker has to do, and the counts that its machine starts with."""

    order: list[TaskId]
    """Own tasks in the order in which ready ones run, then copies."""
    rank: dict[TaskId, int]
    """The position of each in that order."""
    inputs: dict[TaskId, tuple[TaskId, ...]] = field(default_factory=dict)
    """What each own task or copy needs in memory: upstream outputs and constants."""
    takers: dict[TaskId, list[TaskId]] = field(default_factory=dict)
    """The own tasks that take each output of this worker."""
    joins: dict[TaskId, list[TaskId]] = field(default_factory=dict)
    """Those of them that also wait for other workers. Their marks don't carry the output."""
    given: dict[TaskId, list[TaskId]] = field(default_factory=dict)
    """The own outputs that each task elsewhere takes."""
    lacks: dict[TaskId, int] = field(default_factory=dict)
    """The number of own upstream tasks of each own task, plus one if it waits for others too."""
    uses: dict[TaskId, int] = field(default_factory=dict)
    """The number of own tasks, copies, marks and hand-ins that need each output in memory."""
    owes: dict[TaskId, int] = field(default_factory=dict)
    """The number of own outputs that each shared task waits for."""

    @staticmethod
    def of(part: PlannedPart) -> Obligations:
        """The obligations of a part."""
        order = _ordered(part)
        obligations = Obligations(order, {task: place for place, task in enumerate(order)})
        own = set(part.tasks)
        for task, sources in part.upstream.items():
            obligations._take_task(part, task, sources, own)
        for task, copy in part.copies.items():
            obligations._take_inputs(part, task, copy.upstream)
        return obligations

    def without_takers(self, executed: Set[TaskId]) -> Obligations:
        """The same without executed tasks as takers."""
        takers = {
            task: [taker for taker in takers if taker not in executed]
            for task, takers in self.takers.items()
        }
        return replace(self, takers=takers)

    def _take_inputs(self, part: PlannedPart, task: TaskId, sources: tuple[TaskId, ...]) -> None:
        self.inputs[task] = sources + part.constants.get(task, ())
        for source in self.inputs[task]:
            self.uses[source] = self.uses.get(source, 0) + 1

    def _take_task(
        self, part: PlannedPart, task: TaskId, sources: tuple[TaskId, ...], own: set[TaskId]
    ) -> None:
        self._take_inputs(part, task, sources)
        shared = task in part.shared
        lacks = 0
        for source in sources:
            if source in own:
                lacks += 1
                self.takers.setdefault(source, []).append(task)
                if shared:
                    self.joins.setdefault(source, []).append(task)
        if shared:
            self.owes[task] = lacks
            lacks += 1
        self.lacks[task] = lacks
        feeds = part.feeds.get(task, ())
        if feeds or task in part.sinks:
            self.uses[task] = self.uses.get(task, 0) + len(feeds) + (task in part.sinks)
        for target in feeds:
            self.owes[target] = self.owes.get(target, 0) + 1
            self.given.setdefault(target, []).append(task)


def _ordered(part: PlannedPart) -> list[TaskId]:
    if part.ranks:
        ranks = dict(zip(part.tasks, part.ranks, strict=True))
        return [*sorted(part.tasks, key=ranks.__getitem__), *part.copies]
    return [*sorted(part.tasks, key=lambda task: task not in part.feeds), *part.copies]


def still_wanted(part: PlannedPart, found: Recovered) -> PlannedPart:
    """The part of a worker that was lost, without outputs that others know of."""
    feeds = {
        task: left
        for task, takers in part.feeds.items()
        if (left := tuple([taker for taker in takers if taker not in found.marked]))
    }
    return replace(part, feeds=feeds, sinks=part.sinks - found.handed_in)


def repeated(
    part: PlannedPart, takers: Mapping[TaskId, list[TaskId]], found: Recovered
) -> set[TaskId]:
    """The tasks to repeat: their outputs are still needed, and held nowhere."""
    there = found.saved.union(found.held)
    again: set[TaskId] = set()
    for task in reversed(tuple(part.tasks)):
        wanted = task in part.sinks or task in part.feeds
        wanted = wanted or any([taker in again for taker in takers.get(task, ())])
        if wanted and task not in there:
            again.add(task)
    return again
