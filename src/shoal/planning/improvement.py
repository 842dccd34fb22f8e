"""Improve the best plans: perturb list schedules, move tasks and change their order.

As in simulated annealing, a slightly slower plan may be accepted, less and less so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from shoal.execution.plan import Placement, Plan
from shoal.planning.candidates import STYLES, Candidates
from shoal.planning.critical_path import critical_path
from shoal.planning.effort import Allowance
from shoal.planning.list_scheduling import Style
from shoal.planning.scoring import Scored, Scores
from shoal.types import Resources, TaskId, WorkerId

_ROUNDS = 20_000
"""The most rounds of improvement."""
_FRUITLESS = 400
"""The number of rounds in a row without improvement after which to stop."""
_SLACK = 0.02
"""By how much a plan that is accepted may be slower than the one before, at most."""
_HOPELESS = 1.1
"""The ratio to the fastest plan from which a plan won't be chosen if there is no other goal."""

Homes = dict[TaskId, Placement]


class Improvement:
    """One walk through plans that differ a little from each other."""

    def __init__(
        self,
        scores: Scores,
        candidates: Candidates,
        kind: Resources,
        allowance: Allowance,
        *,
        keep_all: bool,
    ) -> None:
        """Prepare it.

        Args:
            scores: Where plans are scored.
            candidates: What makes list schedules.
            kind: The resources of workers in list schedules.
            allowance: How long it may take.
            keep_all: Whether slow plans may be chosen, too.
        """
        self._scores = scores
        self._candidates = candidates
        self._kind = kind
        self._allowance = allowance
        self._keep_all = keep_all
        self._workflow = candidates.workflow
        self._workers = scores.conditions.workers
        self._rng = Random(len(self._workflow))

    def run(self) -> None:
        """Improve the fastest plan that places tasks, for as long as there is time."""
        start = self._scores.fastest_placed()
        if start is None or self._candidates.fixed or self._workers == 1:
            return
        here = best = start
        idle = 0
        for round_ in range(_ROUNDS):
            if self._allowance.spent or idle > _FRUITLESS:
                return
            tried = self._tried(here, round_)
            if tried.makespan > best.makespan * _HOPELESS and not self._keep_all:
                self._scores.drop(tried)
            slack = _SLACK * self._rng.random() * max(0.0, 1 - idle / _FRUITLESS)
            if tried.makespan <= here.makespan * (1 + slack):
                here = tried
            idle += 1
            if tried.makespan < best.makespan * (1 - 1e-9):
                best, idle = tried, 0
            elif idle % 40 == 0:
                here = best

    def _tried(self, here: Scored, round_: int) -> Scored:
        if self._candidates.lists and round_ % 8 == 0:
            return self._listed(round_)
        if self._candidates.lists and round_ % 2 == 0:
            relisted = self._relisted(here)
            if relisted is not None:
                return relisted
        return self._scores.score(self._moved(here))

    def _listed(self, round_: int) -> Scored:
        """Score a list schedule with perturbed ranks."""
        rng = self._rng
        style = STYLES[rng.randrange(len(STYLES))]
        style = replace(style, noise=rng.choice((0.05, 0.15, 0.4)), seed=round_)
        count = self._workers if rng.random() < 0.7 else rng.randint(1, self._workers)
        return self._candidates.list(self._kind, count, style)

    def _relisted(self, here: Scored) -> Scored | None:
        """Place the tasks of one or two workers, or of a period, anew."""
        rng, homes = self._rng, here.plan.placements
        if rng.random() < 0.5:
            workers = list(here.plan.workers)
            gone = rng.sample(workers, min(len(workers), rng.choice((1, 2))))
            moving = {task for task, placement in homes.items() if placement.worker in gone}
        else:
            begin = rng.random() * here.makespan
            end = begin + rng.choice((0.1, 0.2, 0.4)) * here.makespan
            spans = here.timeline.of_kind("execute")
            moving = {span.task for span in spans if span.task and begin <= span.start <= end}
        style = Style(thrift=rng.choice((0.0, 0.5, 1.0, 3.0)), insertion=rng.random() < 0.3)
        return self._candidates.relist(here, moving, style)

    def _moved(self, scored: Scored) -> Plan:
        """Return the plan with some tasks moved: of its critical path, or next to it."""
        plan, rng = scored.plan, self._rng
        path = critical_path(self._workflow, scored.timeline)
        homes = dict(plan.placements)
        known = {p.worker: p for p in homes.values() if p.worker is not None}
        crossings = [
            i for i in range(1, len(path)) if homes[path[i]].worker != homes[path[i - 1]].worker
        ]
        how = rng.random()
        if crossings and how < 0.4:
            moving, home = self._joined(path, rng.choice(crossings), homes)
        elif how < 0.7:
            moving, home = self._beside(path, homes, known)
        else:
            moving, home = self._family(rng.choice(path), homes, known)
        for task in moving:
            homes[task] = home
        return replace(plan, placements=homes, planner="moved")

    def _joined(
        self, path: Sequence[TaskId], at: int, homes: Homes
    ) -> tuple[Sequence[TaskId], Placement]:
        """Pick tasks of the critical path on one side of a transfer, and the other side's home."""
        reach = self._rng.choice((1, 1, 2, 4))
        if self._rng.random() < 0.5:
            return path[at : at + reach], homes[path[at - 1]]
        return path[max(0, at - reach) : at], homes[path[at]]

    def _beside(
        self, path: Sequence[TaskId], homes: Homes, known: dict[WorkerId, Placement]
    ) -> tuple[Sequence[TaskId], Placement]:
        """Pick a task on, or sharing a worker with, the critical path, and a worker for it."""
        rng = self._rng
        task = rng.choice(path)
        beside = [t for t, p in homes.items() if p.worker == homes[task].worker and t not in path]
        moving = rng.choice(beside) if beside and rng.random() < 0.7 else task
        near = [*self._workflow.upstream[moving], *self._workflow.downstream(moving)]
        if near and rng.random() < 0.5:
            return [moving], homes[rng.choice(near)]
        others = list(known.values())
        if len(known) < self._workers:
            others.append(Placement(_new_worker(known), others[0].resources))
        return [moving], rng.choice(others)

    def _family(
        self, task: TaskId, homes: Homes, known: dict[WorkerId, Placement]
    ) -> tuple[Sequence[TaskId], Placement]:
        """Pick a task with its upstream or downstream tasks on its worker, and a new worker."""
        rng, workflow, worker = self._rng, self._workflow, homes[task].worker
        moving, most = [task], rng.choice((2, 4, 8, 16))
        back = rng.random() < 0.5
        for here in moving:
            near = workflow.upstream[here] if back else workflow.downstream(here)
            moving += [t for t in near if homes[t].worker == worker and t not in moving]
            if len(moving) >= most:
                break
        return moving[:most], rng.choice(list(known.values()))


def _new_worker(known: dict[WorkerId, Placement]) -> WorkerId:
    number = len(known)
    while WorkerId(f"w{number}") in known:
        number += 1
    return WorkerId(f"w{number}")
