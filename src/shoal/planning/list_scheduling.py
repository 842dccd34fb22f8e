"""Plan by list scheduling: place one task after the other, each where it is predicted to end first.

1. Which task comes next is decided in advance, by its rank, or each time anew among those whose
   inputs are placed.
2. The model of a worker is a faster version of the simulator's: a number of slots, one transfer at
   a time, and an output that is saved once and fetched once by each worker that needs it. It
   proposes plans; the simulator scores them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from math import inf
from random import Random
from typing import Literal, NamedTuple

from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.plan import Placement, Plan
from shoal.planning.estimates import Estimates
from shoal.types import Resources, TaskId, WorkerId

_Gap = tuple[float, int]
Order = Literal["rank", "shortest", "longest", "sufferage", "earliest"]
"""Which task is placed next: the one with the highest rank; of those whose inputs are placed, the
one that would end first or last; the one that would lose most without its best worker; or the one
that would begin first."""


@dataclass(frozen=True, slots=True)
class Style:
    """The parameters of a list schedule."""

    communication: float = 1.0
    """The weight of transfers in ranks."""
    thrift: float = 0.0
    """The additional weight of a transfer when a worker is chosen."""
    noise: float = 0.0
    """By what fraction ranks are randomly perturbed."""
    seed: int = 0
    insertion: bool = False
    """Whether a task may run in a gap before tasks that were placed earlier."""
    order: Order = "rank"


class Lister:
    """Makes list schedules of one workflow for workers with given resources."""

    def __init__(self, estimates: Estimates, workers: Sequence[Resources]) -> None:
        self.estimates = estimates
        self.workers = list(workers)
        self.workflow = workflow = estimates.workflow
        self.tasks = list(workflow.calls)
        number = {task: i for i, task in enumerate(self.tasks)}
        self.sources = [[number[s] for s in workflow.upstream[t]] for t in self.tasks]
        self.takers: list[list[int]] = [[] for _ in self.tasks]
        for i, sources in enumerate(self.sources):
            for source in sources:
                self.takers[source].append(i)
        kinds = list(dict.fromkeys(self.workers))
        self.seconds = {r: [estimates.seconds(r)[t] for t in self.tasks] for r in kinds}
        self.saves = {r: [estimates.transfer("save", t, r) for t in self.tasks] for r in kinds}
        self.fetches = {r: [estimates.transfer("fetch", t, r) for t in self.tasks] for r in kinds}
        self.coordination = estimates.costs.coordination()
        self.large = [estimates.output_nbytes[t] > INLINE_NBYTES for t in self.tasks]
        self.starts = [estimates.costs.startup(r, warm=False) for r in self.workers]
        self.looks = 0
        """How many pairs of task and worker were examined so far."""

    def ranks(self, style: Style) -> list[float]:
        """Return the length of the longest path from each task to a sink, in seconds."""
        kind = self.workers[0]
        seconds, saves, fetches = self.seconds[kind], self.saves[kind], self.fetches[kind]
        weight, coordination = style.communication, self.coordination
        rng = Random(style.seed)
        ranks = [0.0] * len(self.tasks)
        for i in range(len(self.tasks) - 1, -1, -1):
            behind = max([ranks[taker] for taker in self.takers[i]], default=0.0)
            if behind:
                behind += weight * (saves[i] + fetches[i] + coordination)
            ranks[i] = seconds[i] + behind
        if style.noise:
            ranks = [rank * (1 + style.noise * (2 * rng.random() - 1)) for rank in ranks]
            for i in range(len(self.tasks) - 1, -1, -1):
                ranks[i] = max([ranks[i], *(ranks[taker] for taker in self.takers[i])])
        return ranks

    def listed(self, style: Style) -> Plan:
        """Return a list schedule with these parameters."""
        ranks = self.ranks(style)
        dynamic = style.order != "rank"
        listing = (_DynamicListing if dynamic else _Listing)(self, ranks, style)
        homes = listing.homes()
        order = [-start for start in listing.starts] if style.insertion or dynamic else ranks
        return self.plan(homes, order, "list")

    def relisted(
        self, kept: Mapping[TaskId, int], starts: Mapping[TaskId, float], style: Style
    ) -> Plan:
        """Return a plan in which some tasks keep their workers, and the others are placed anew.

        Args:
            kept: The numbers of the workers of tasks that keep them.
            starts: When each task began so far, which is the order in which tasks are placed.
            style: The parameters of the list schedule, apart from its order.
        """
        listing = _Listing(self, [-starts[task] for task in self.tasks], style)
        listing.kept = [kept.get(task) for task in self.tasks]
        homes = listing.homes()
        return self.plan(homes, [-start for start in listing.starts], "relisted")

    def plan(self, homes: Sequence[int], ranks: Sequence[float], planner: str) -> Plan:
        """Return a plan with these workers, in which tasks with higher ranks run first."""
        used = {home: i for i, home in enumerate(dict.fromkeys(homes))}
        placements = {
            home: Placement(WorkerId(f"w{i}"), self.workers[home]) for home, i in used.items()
        }
        order = sorted(range(len(homes)), key=lambda i: (-ranks[i], i))
        return Plan(
            self.workflow,
            {task: placements[home] for task, home in zip(self.tasks, homes, strict=True)},
            planner=planner,
            ranks={self.tasks[i]: position for position, i in enumerate(order)},
        )


class _Choice(NamedTuple):
    """Where a task would run, and when."""

    worker: int
    score: float
    end: float
    ready: float
    begin: float
    loss: float = 0.0
    """By how much the second-best worker is worse."""


_NOWHERE = _Choice(0, inf, 0.0, 0.0, 0.0)


class _Listing:
    """One pass over the tasks, which places each of them."""

    def __init__(self, lister: Lister, ranks: Sequence[float], style: Style) -> None:
        self.lister = lister
        self.thrift = style.thrift
        self.order = sorted(range(len(ranks)), key=lambda i: (-ranks[i], i))
        count, tasks = len(lister.workers), len(ranks)
        self.slots = [[lister.starts[w]] * lister.workers[w].slots for w in range(count)]
        self.moving = [0.0] * count
        self.home = [-1] * tasks
        self.ends = [0.0] * tasks
        self.savable = [0.0] * tasks
        """When each output would be saved, which happens as soon as it exists."""
        self.released = [-1.0] * tasks
        """When other workers can fetch an output; -1 if none needs it yet."""
        self.holders: list[list[int]] = [[] for _ in range(tasks)]
        """The workers that have fetched each output."""
        self.starts = [0.0] * tasks
        self.kept: Sequence[int | None] = [None] * tasks
        """The worker that each task must have; None: any."""
        self.gaps = None
        if style.insertion:
            starts = [[(-1.0, lister.starts[w])] for w in range(count)]
            self.gaps = [
                [list(starts[w]) for _ in range(lister.workers[w].slots)] for w in range(count)
            ]

    def homes(self) -> list[int]:
        for task in self._topological():
            self._place(task)
        return self.home

    def _topological(self) -> list[int]:
        """Return the tasks by rank, but each after its sources."""
        done = [False] * len(self.order)
        ordered: list[int] = []
        for task in self.order:
            stack = [task]
            while stack:
                top = stack[-1]
                missing = [s for s in self.lister.sources[top] if not done[s]]
                if missing:
                    stack.extend(missing)
                    continue
                stack.pop()
                if not done[top]:
                    done[top] = True
                    ordered.append(top)
        return ordered

    def _place(self, task: int) -> None:
        self._settle(task, self._choice(task))

    def _choice(self, task: int) -> _Choice:
        """Return where a task is predicted to end first."""
        lister, sources = self.lister, self.lister.sources[task]
        workers, home, moving = lister.workers, self.home, self.moving
        only = self.kept[task]
        choices = range(len(workers)) if only is None else (only,)
        lister.looks += len(choices)
        local, remote, saving, fetching = self._inputs(sources)
        latest = max(remote.values(), default=0.0)
        near = {*local, *[holder for source in sources for holder in self.holders[source]]}
        best, second = _NOWHERE, inf
        for worker in choices:
            kind = workers[worker]
            ready = extra = 0.0
            if sources:
                ready, fetches = latest, fetching[kind]
                if worker in near:
                    own = lister.fetches[kind]
                    fetches -= sum(
                        [own[s] for s in sources if home[s] == worker or worker in self.holders[s]]
                    )
                    elsewhere = [at for there, at in remote.items() if there != worker]
                    ready = max(elsewhere, default=0.0)
                    ready = max(ready, local.get(worker, 0.0))
                if fetches > 1e-12:
                    ready = max(ready, moving[worker]) + fetches
                    extra = fetches + saving[-1] - saving.get(worker, 0.0)
            seconds = lister.seconds[kind][task]
            if self.gaps is None:
                end = max(ready, self.slots[worker][0]) + seconds
            else:
                end = _earliest(self.gaps[worker], ready, seconds)[0] + seconds
            score = end + self.thrift * extra
            if score < best.score - 1e-12:
                best, second = _Choice(worker, score, end, ready, end - seconds), best.score
            elif score < second:
                second = score
        return best._replace(loss=second - best.score)

    def _inputs(
        self, sources: Sequence[int]
    ) -> tuple[dict[int, float], dict[int, float], dict[int, float], dict[Resources, float]]:
        """Return when inputs are ready locally and remotely, and what saving and fetching take."""
        lister = self.lister
        local: dict[int, float] = {}
        remote: dict[int, float] = {}
        saving: dict[int, float] = {-1: 0.0}
        fetching: dict[Resources, float] = {}
        for source in sources:
            home, end = self.home[source], self.ends[source]
            local[home] = max(local.get(home, 0.0), end)
            at = self.released[source]
            if at < 0:
                kind = lister.workers[home]
                save = lister.saves[kind][source]
                at = self.savable[source]
                saving[home] = saving.get(home, 0.0) + save
                saving[-1] += save
            remote[home] = max(remote.get(home, 0.0), at + lister.coordination)
        for kind in lister.seconds:
            fetches = lister.fetches[kind]
            fetching[kind] = sum([fetches[source] for source in sources])
        return local, remote, saving, fetching

    def _settle(self, task: int, choice: _Choice) -> None:
        lister, worker, end, ready = self.lister, choice.worker, choice.end, choice.ready
        moved = False
        for source in lister.sources[task]:
            home = self.home[source]
            if home == worker:
                continue
            if self.released[source] < 0:
                save = lister.saves[lister.workers[home]][source]
                self.released[source] = self.savable[source]
                if save:
                    self.moving[home] = max(self.moving[home] + save, self.savable[source])
            if lister.large[source] and worker not in self.holders[source]:
                self.holders[source].append(worker)
                moved = True
        if moved:
            self.moving[worker] = max(self.moving[worker], ready)
        self.home[task] = worker
        self.ends[task] = end
        kind = lister.workers[worker]
        save, seconds = lister.saves[kind][task], lister.seconds[kind][task]
        self.savable[task] = max(end, self.moving[worker]) + save if save else end
        self.starts[task] = end - seconds
        if self.gaps is None:
            heapreplace(self.slots[worker], end)
        else:
            _, slot = _earliest(self.gaps[worker], ready, seconds)
            insort(self.gaps[worker][slot], (end - seconds, end))


class _DynamicListing(_Listing):
    """One pass over the tasks, which chooses the next one each time anew."""

    def __init__(self, lister: Lister, ranks: Sequence[float], style: Style) -> None:
        super().__init__(lister, ranks, style)
        self.rule = style.order
        self.ranks = ranks
        self.choices: dict[int, _Choice] = {}
        """What is known of each task whose inputs are placed."""

    def homes(self) -> list[int]:
        missing = [len(sources) for sources in self.lister.sources]
        for task, count in enumerate(missing):
            if not count:
                self.choices[task] = self._choice(task)
        while self.choices:
            task = min(self.choices, key=self._urgency)
            choice = self.choices.pop(task)
            self._settle(task, choice)
            for taker in self.lister.takers[task]:
                missing[taker] -= 1
                if not missing[taker]:
                    self.choices[taker] = self._choice(taker)
            self._look_again(task, choice.worker)
        return self.home

    def _urgency(self, task: int) -> tuple[float, float, int]:
        choice = self.choices[task]
        match self.rule:
            case "shortest":
                first = choice.end
            case "longest":
                first = -choice.end
            case "earliest":
                first = choice.begin
            case _:
                first = -choice.loss
        return first, -self.ranks[task], task

    def _look_again(self, placed: int, worker: int) -> None:
        """Examine the tasks again that wanted the worker, or take what it has fetched now."""
        sources = set(self.lister.sources[placed])
        for task, choice in self.choices.items():
            if choice.worker == worker or not sources.isdisjoint(self.lister.sources[task]):
                self.choices[task] = self._choice(task)


def _earliest(slots: list[list[tuple[float, float]]], ready: float, seconds: float) -> _Gap:
    """Return the earliest time at which a task can begin, and in which slot."""
    best: _Gap = (float("inf"), 0)
    for number, busy in enumerate(slots):
        at = max(0, bisect_right(busy, (ready, float("inf"))) - 1)
        begin = max(ready, busy[at][1])
        for start, end in busy[at + 1 :]:
            if begin + seconds <= start:
                break
            begin = max(begin, end)
        if begin < best[0]:
            best = (begin, number)
    return best
