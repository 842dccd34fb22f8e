"""`polished`: a plan that simulated annealing has improved on the simulator.

The solver plans for a model that is simpler than the simulator; this makes its plans good ones. A
step moves a task, or some of a worker's, to another worker, changes the order, or changes what is
pre-loaded.
"""

from collections.abc import Callable
from dataclasses import replace
from math import log
from random import Random

from shoal.execution.plan import Placement, Plan
from shoal.types import TaskId, WorkerId
from shoal.workflow import Workflow

SLACK = 0.02
"""How much longer a plan may become in the first steps, as a fraction, on average."""

Makespan = Callable[[Plan], float]
"""Simulates a plan."""


def polished(plan: Plan, workers: int, simulations: int, makespan: Makespan) -> Plan:
    """Return the best plan found with so many simulations; a flexible plan stays as it is."""
    if plan.flexible:
        return plan
    rng = Random(1)
    steps = _Steps(plan.workflow, workers, rng)
    here = best = steps.first(plan)
    now = shortest = first = makespan(here)
    for number in range(simulations):
        slack = SLACK * first * (1 - number / simulations) ** 2
        tried = steps.changed(here)
        found = makespan(tried)
        if found <= now - slack * log(1 - rng.random()):
            here, now = tried, found
        if found < shortest:
            best, shortest = tried, found
    return best


class _Steps:
    """Changes plans at random."""

    def __init__(self, workflow: Workflow, workers: int, rng: Random) -> None:
        self._tasks = list(workflow.calls)
        self._near = {
            task: [*workflow.upstream[task], *workflow.downstream(task)] for task in self._tasks
        }
        self._workers = [WorkerId(f"w{number}") for number in range(workers)]
        self._rng = rng
        self._numbers = {task: number for number, task in enumerate(self._tasks)}

    def first(self, plan: Plan) -> Plan:
        """Return a plan with workers that wait, and with ranks, to begin with."""
        names = dict(zip(plan.workers, self._workers, strict=False))
        placements = {
            task: replace(placed, worker=names[WorkerId(str(placed.worker))])
            for task, placed in plan.placements.items()
        }
        ranks = plan.ranks or self._numbers
        return replace(plan, placements=placements, linger=None, ranks=ranks)

    def changed(self, plan: Plan) -> Plan:
        """Return a plan with one change."""
        task, how = self._rng.choice(self._tasks), self._rng.random()
        if how < 0.6:
            return replace(plan, placements=self._moved(plan, task))
        if how < 0.85:
            return replace(plan, ranks=self._reordered(plan, task))
        placed = plan.placements[task]
        other = replace(placed, preload=not placed.preload)
        return replace(plan, placements={**plan.placements, task: other})

    def _moved(self, plan: Plan, task: TaskId) -> dict[TaskId, Placement]:
        rng, placements = self._rng, dict(plan.placements)
        home = placements[task].worker
        near = [placements[other].worker for other in self._near[task]]
        to = rng.choice(near) if near and rng.random() < 0.4 else rng.choice(self._workers)
        beside = [other for other in self._near[task] if placements[other].worker == home]
        for moving in (task, *beside[: rng.choice((0, 0, 1, 2, 4))]):
            placements[moving] = replace(placements[moving], worker=to)
        return placements

    def _reordered(self, plan: Plan, task: TaskId) -> dict[TaskId, int]:
        order = sorted(self._tasks, key=(plan.ranks or self._numbers).__getitem__)
        at = order.index(task)
        to = self._rng.randrange(len(order)) if self._rng.random() < 0.6 else at + 1
        order.insert(to, order.pop(at))
        return {other: rank for rank, other in enumerate(order)}
