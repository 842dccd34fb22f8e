"""`Duties`: what a worker's part asks of it, counted before anything happens.

1. They follow from the part alone and never change: each start of the worker counts down copies.
2. Of a worker that was lost, what somebody still wants and nobody has is to be repeated, with all
   that leads to it here; the rest of its part is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.execution.events import Recovered
from shoal.execution.plan import Part
from shoal.types import TaskId


@dataclass(frozen=True)
class Duties:
    """What there is to do and to keep track of."""

    order: list[TaskId]
    """Own tasks in the order in which ready ones run, then copies."""
    rank: Mapping[TaskId, int]
    """Each one's place in that order."""
    inputs: dict[TaskId, tuple[TaskId, ...]] = field(default_factory=dict)
    """What must be in memory for each own task or copy: upstream outputs and constants."""
    takers: dict[TaskId, list[TaskId]] = field(default_factory=dict)
    """The own tasks that take an output of this worker."""
    joins: dict[TaskId, list[TaskId]] = field(default_factory=dict)
    """Those of them that also wait for others, and are marked without the output."""
    given: dict[TaskId, list[TaskId]] = field(default_factory=dict)
    """The own outputs that a task elsewhere takes."""
    lacks: dict[TaskId, int] = field(default_factory=dict)
    """Own upstream tasks of a task, plus one if it waits for others too."""
    uses: dict[TaskId, int] = field(default_factory=dict)
    """Own tasks, copies, marks and hand-ins that need an output in memory."""
    owes: dict[TaskId, int] = field(default_factory=dict)
    """Own outputs that a shared task waits for."""

    @staticmethod
    def of(part: Part) -> Duties:
        """Those of a part."""
        order = _ordered(part)
        duties = Duties(order, {task: place for place, task in enumerate(order)})
        own = set(part.tasks)
        for task, sources in zip(part.tasks, part.upstream, strict=True):
            duties._take_task(part, task, sources, own)
        for task, copy in part.copies.items():
            duties._take_inputs(part, task, copy.upstream)
        return duties

    def _take_inputs(self, part: Part, task: TaskId, sources: tuple[TaskId, ...]) -> None:
        self.inputs[task] = sources + part.constants.get(task, ())
        for source in self.inputs[task]:
            self.uses[source] = self.uses.get(source, 0) + 1

    def _take_task(
        self, part: Part, task: TaskId, sources: tuple[TaskId, ...], own: set[TaskId]
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


def _ordered(part: Part) -> list[TaskId]:
    if part.ranks:
        ranks = dict(zip(part.tasks, part.ranks, strict=True))
        return [*sorted(part.tasks, key=ranks.__getitem__), *part.copies]
    return [*sorted(part.tasks, key=lambda task: task not in part.feeds), *part.copies]


def still_wanted(part: Part, found: Recovered) -> Part:
    """The part of a worker that was lost, without what others have been told of."""
    feeds = {
        task: left
        for task, takers in part.feeds.items()
        if (left := tuple([taker for taker in takers if taker not in found.marked]))
    }
    return replace(part, feeds=feeds, sinks=part.sinks - found.handed_in)


def repeated(part: Part, takers: Mapping[TaskId, list[TaskId]], found: Recovered) -> set[TaskId]:
    """The tasks of what is still wanted whose outputs nobody has."""
    there = found.saved.union(found.held)
    again: set[TaskId] = set()
    for task in reversed(part.tasks):
        wanted = task in part.sinks or task in part.feeds
        wanted = wanted or any([taker in again for taker in takers.get(task, ())])
        if wanted and task not in there:
            again.add(task)
    return again
