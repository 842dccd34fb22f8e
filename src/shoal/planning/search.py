"""Search for the best plan for `AutoPlanner`, scoring candidates with the simulator.

1. Candidates are: everything on one worker, tasks spread evenly, the papers' planners, and list
   schedules in several styles, each for several numbers of workers and configurations.
2. While there is time, they are improved: list schedules with perturbed ranks, and the best plan so
   far with tasks of its critical path moved. Then come the optimizations, and weaker workers off
   the critical path.
3. The plan returned is never slower, in simulation, than those of the papers' planners under the
   same conditions, if there was time to simulate them.
4. If there is no time to simulate anything, a workflow with less work than a worker takes to start
   runs on one worker, and any other is spread evenly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from shoal.execution.plan import Placement, Plan
from shoal.execution.timeline import Timeline
from shoal.planning.base import Conditions, Optimization
from shoal.planning.critical_path import critical_path
from shoal.planning.effort import STEPS_A_SECOND, Allowance, simulating_seconds
from shoal.planning.estimates import Estimates
from shoal.planning.list_scheduling import Lister, Style
from shoal.planning.nonuniform import NonUniformPlanner, downgraded, strongest_first
from shoal.planning.optimizations import (
    PreLoadOptimization,
    PreWarmOptimization,
    applied,
    forced,
    optimization_of,
)
from shoal.planning.preview import Preview
from shoal.planning.prices import Prices, cost_of
from shoal.planning.spread import spread
from shoal.planning.uniform import UniformPlanner
from shoal.types import SLA, Resources, TaskId, WorkerId
from shoal.workflow import Workflow

_SHARE = 0.05
"""The share of the predicted makespan that planning may take by default."""
_LEAST_SECONDS = 0.05
"""The seconds that planning may always take."""
_CHECKING_SECONDS = 0.2
"""The seconds spent on checking whether a plan meets a deadline."""
_MOST_SECONDS = 10.0
"""The most seconds that planning takes by default."""
_ROUNDS = 20_000
"""The most rounds of improvement."""
_FRUITLESS = 400
"""The number of rounds in a row without improvement after which to stop."""
_MOST_INSERTED = 2000
"""The most tasks for which a list schedule looks for gaps."""
_LOOKS_A_STEP = 10
"""Roughly how many pairs of task and worker a list schedule examines in the time of a step."""
_STYLES = (
    Style(),
    Style(insertion=True),
    Style(communication=0.0, insertion=True),
    Style(communication=0.0),
    Style(thrift=0.5),
    Style(thrift=1.0),
    Style(thrift=3.0),
    Style(communication=2.0, thrift=0.25),
)


OPTIMIZATIONS: Sequence[type[Optimization]] = (PreLoadOptimization, PreWarmOptimization)
"""The optimizations tried by default."""


@dataclass(frozen=True)
class Goal:
    """The goal of a search; see `AutoPlanner`."""

    resources: tuple[Resources, ...] | None
    deadline: float | None
    budget: float | None
    thrift: float
    sla: SLA
    seconds: float | None
    optimizations: Sequence[Optimization | type[Optimization]]
    prices: Prices


@dataclass(frozen=True, slots=True)
class _Scored:
    plan: Plan
    makespan: float
    gb_seconds: float
    price: float
    timeline: Timeline


class Search:
    """One search for a plan."""

    def __init__(self, goal: Goal, workflow: Workflow, conditions: Conditions) -> None:
        self.goal = goal
        self.workflow = workflow
        self.conditions = conditions
        self.configurations = strongest_first(
            conditions.offered(goal.resources or [conditions.resources])
        )
        self.costs = conditions.predictions.at(goal.sla)
        self.estimates = Estimates(workflow, self.costs)
        about = self._rough_makespan()
        self.linger = max(0.5, 2 * about)
        """How long a worker waits for work before it parks, if waiting is preferred."""
        limit = goal.seconds or conditions.seconds
        if limit is None:
            limit = min(_MOST_SECONDS, max(_LEAST_SECONDS, _SHARE * about))
        self.limit = limit
        self.fixed = any(workflow.resources(task) for task in workflow.calls)
        """Whether any task requests resources."""
        steps = len(workflow) * conditions.workers / _LOOKS_A_STEP
        self.lists = not self.fixed and steps < limit * STEPS_A_SECOND / 4
        """Whether to try list schedules, which are slow for many tasks and workers."""
        self.improving = Allowance(conditions.effort, 0.75 * limit)
        self.allowance = Allowance(conditions.effort, 0.9 * limit)
        self.optimizations = [optimization_of(given) for given in goal.optimizations]
        self.conditions = replace(conditions, seconds=limit / 4)
        self.scored: list[_Scored] = []
        self.bound = float("inf")
        """The best makespan of the papers' planners."""
        self._listers: dict[tuple[Resources, int], Lister] = {}

    def _rough_makespan(self) -> float:
        """Estimate the makespan from the total work and the longest path."""
        kind, workers = self.configurations[0], self.conditions.workers
        seconds = self.estimates.seconds(kind)
        ways: dict[TaskId, float] = {}
        for task, sources in self.workflow.upstream.items():
            ways[task] = seconds[task] + max([ways[s] for s in sources], default=0.0)
        return max(max(ways.values()), sum(seconds.values()) / (workers * kind.slots))

    def best(self) -> Plan:
        """Return the best plan found in time."""
        if simulating_seconds(self.workflow) > self.limit:
            return self._finished(self._unsimulated())
        for propose in self._proposals():
            propose()
            if self.allowance.spent:
                break
        self._improve()
        self.allowance.skip()
        return self._finished(self._refined(self._chosen()))

    def _unsimulated(self) -> Plan:
        """Return a sensible plan if there is no time to simulate."""
        kind = self.configurations[0]
        work = sum(self.estimates.seconds(kind).values())
        start = self.costs.startup(kind, warm=False) + self.costs.coordination()
        workers = 1 if work < 2 * start else self.conditions.workers
        return self._spread(workers, kind)

    def _proposals(self) -> Iterator[Callable[[], object]]:
        """Yield functions that make and score a plan, most promising first."""
        workers = self.conditions.workers
        kinds = self.configurations
        counts = sorted({1, 2, workers // 4, workers // 2, workers} - {0})
        counts = [count for count in counts if count <= workers]
        if self.lists:
            yield partial(self._try_list, kinds[0], workers, Style())
        yield partial(self._try_spread, workers, kinds[0])
        for kind in kinds:
            yield partial(self._try_spread, 1, kind)
        for kind in kinds:
            yield partial(self._papers, UniformPlanner(kind, sla=self.goal.sla))
        if len(kinds) > 1:
            yield partial(self._papers, NonUniformPlanner(kinds, sla=self.goal.sla))
        if self.lists:
            for style in _STYLES[1:]:
                yield partial(self._try_list, kinds[0], workers, style)
            for kind in kinds:
                for count in reversed(counts):
                    for style in (Style(insertion=True), Style(thrift=0.5)):
                        yield partial(self._try_list, kind, count, style)
        for count in counts:
            yield partial(self._try_spread, count, kinds[0])

    def _spread(self, workers: int, kind: Resources) -> Plan:
        return spread(self.workflow, workers, kind)

    def _try_spread(self, workers: int, kind: Resources) -> _Scored:
        return self._score(self._spread(workers, kind))

    def _try_list(self, kind: Resources, workers: int, style: Style) -> _Scored:
        return self._score(self._listed(kind, workers, style))

    def _papers(self, planner: UniformPlanner | NonUniformPlanner) -> None:
        """Score a plan of the papers, which is an upper bound, and try it with waiting workers."""
        scored = self._simulated(planner.plan(self.workflow, self.conditions))
        self.bound = min(self.bound, scored.makespan)
        if scored.makespan < 1.5 * self._fastest().makespan:
            self._score(scored.plan)

    def _listed(self, kind: Resources, count: int, style: Style) -> Plan:
        key = (kind, count)
        lister = self._listers.get(key)
        if lister is None:
            lister = self._listers[key] = Lister(self.estimates, [kind] * count)
        if style.insertion and len(self.workflow) > _MOST_INSERTED:
            style = replace(style, insertion=False)
        self.conditions.effort.add(len(self.workflow) * count / _LOOKS_A_STEP)
        return lister.listed(style)

    def _score(self, plan: Plan) -> _Scored:
        """Simulate a plan with workers that wait rather than park."""
        if len(plan.workers) > 1:
            plan = replace(plan, linger=self.linger)
        return self._simulated(plan)

    def _simulated(self, plan: Plan) -> _Scored:
        plan = self.conditions.sized(plan)
        timeline = self.conditions.simulate(plan, self.costs)
        cost = cost_of(plan, timeline, self.goal.prices)
        scored = _Scored(plan, timeline.makespan, cost.gb_seconds, cost.price, timeline)
        self.scored.append(scored)
        return scored

    def _fastest(self) -> _Scored:
        return min(self.scored, key=lambda s: (s.makespan, s.gb_seconds))

    def _improve(self) -> None:
        """Perturb list schedules and move tasks, leaving time for the refinement.

        As in simulated annealing, a slightly slower plan may be accepted, less and less so.
        """
        if self.fixed or self.conditions.workers == 1:
            return
        rng = Random(len(self.workflow))
        kind, workers = self.configurations[0], self.conditions.workers
        here = best = self._fastest()
        idle = 0
        for round_ in range(_ROUNDS):
            if self.improving.spent or idle > _FRUITLESS:
                return
            if self.lists and round_ % 8 == 0:
                style = replace(
                    _STYLES[rng.randrange(len(_STYLES))],
                    noise=rng.choice((0.05, 0.15, 0.4)),
                    seed=round_,
                )
                count = workers if rng.random() < 0.7 else rng.randint(1, workers)
                tried = self._try_list(kind, count, style)
            else:
                tried = self._simulated(self._moved(here, rng))
            self._discard(tried, best)
            slack = 0.02 * rng.random() * max(0.0, 1 - idle / _FRUITLESS)
            if tried.makespan <= here.makespan * (1 + slack):
                here = tried
            idle += 1
            if tried.makespan < best.makespan * (1 - 1e-9):
                best, idle = tried, 0
            elif idle % 40 == 0:
                here = best

    def _discard(self, tried: _Scored, best: _Scored) -> None:
        """Drop the last plan if it can't be chosen, to save memory."""
        limited = self.goal.deadline is not None or self.goal.budget is not None
        if not limited and tried.makespan > best.makespan * 1.1 and self.scored[-1] is tried:
            self.scored.pop()

    def _moved(self, scored: _Scored, rng: Random) -> Plan:
        """Return the plan with some tasks moved: of its critical path, or next to it."""
        plan = scored.plan
        path = critical_path(self.workflow, scored.timeline)
        homes = dict(plan.placements)
        known = {p.worker: p for p in homes.values() if p.worker is not None}
        crossings = [
            i for i in range(1, len(path)) if homes[path[i]].worker != homes[path[i - 1]].worker
        ]
        how = rng.random()
        if crossings and how < 0.4:
            at = rng.choice(crossings)
            reach = rng.choice((1, 1, 2, 4))
            if rng.random() < 0.5:
                moving, home = [*path[at : at + reach]], homes[path[at - 1]]
            else:
                moving, home = [*path[max(0, at - reach) : at]], homes[path[at]]
        elif how < 0.7:
            moving, home = self._beside(path, homes, known, rng)
        else:
            moving, home = self._family(rng.choice(path), homes, known, rng)
        for task in moving:
            homes[task] = home
        return replace(plan, placements=homes, planner="moved")

    def _beside(
        self,
        path: Sequence[TaskId],
        homes: dict[TaskId, Placement],
        known: dict[WorkerId, Placement],
        rng: Random,
    ) -> tuple[list[TaskId], Placement]:
        """Pick a task on, or sharing a worker with, the critical path, and a worker for it."""
        task = rng.choice(path)
        beside = [t for t, p in homes.items() if p.worker == homes[task].worker and t not in path]
        moving = rng.choice(beside) if beside and rng.random() < 0.7 else task
        near = [*self.workflow.upstream[moving], *self.workflow.downstream(moving)]
        if near and rng.random() < 0.5:
            return [moving], homes[rng.choice(near)]
        others = list(known.values())
        if len(known) < self.conditions.workers:
            others.append(Placement(_new_worker(known), others[0].resources))
        return [moving], rng.choice(others)

    def _family(
        self,
        task: TaskId,
        homes: dict[TaskId, Placement],
        known: dict[WorkerId, Placement],
        rng: Random,
    ) -> tuple[list[TaskId], Placement]:
        """Pick a task with its upstream or downstream tasks on its worker, and a new worker."""
        workflow, worker = self.workflow, homes[task].worker
        moving, most = [task], rng.choice((2, 4, 8, 16))
        back = rng.random() < 0.5
        for here in moving:
            near = workflow.upstream[here] if back else workflow.downstream(here)
            moving += [t for t in near if homes[t].worker == worker and t not in moving]
            if len(moving) >= most:
                break
        return moving[:most], rng.choice(list(known.values()))

    def _chosen(self) -> _Scored:
        """Return the best plan for the goal."""
        goal = self.goal
        if goal.deadline is not None:
            return self._in_time(goal.deadline)
        if goal.budget is not None:
            within = [s for s in self.scored if s.price <= goal.budget]
            if within:
                return min(within, key=lambda s: (s.makespan, s.price, s.gb_seconds))
            cheapest = min(self.scored, key=lambda s: (s.price, s.makespan))
            note = (
                f"no plan was found within the budget of ${goal.budget:g}: this one is the "
                f"cheapest, at ${cheapest.price:.3g}"
            )
            return replace(cheapest, plan=replace(cheapest.plan, notes=(note,), unmet=note))
        fastest = self._fastest()
        limit = max(fastest.makespan, min(fastest.makespan * (1 + goal.thrift), self.bound))
        good = [s for s in self.scored if s.makespan <= limit]
        return min(good, key=lambda s: (s.gb_seconds, s.makespan))

    def _in_time(self, deadline: float) -> _Scored:
        """Return the cheapest plan whose makespan at the service level meets the deadline.

        Only plans that are faster than all cheaper ones matter, so the first that meets the
        deadline is found by bisection.
        """
        front: list[_Scored] = []
        for scored in sorted(self.scored, key=lambda s: (s.price, s.gb_seconds, s.makespan)):
            if not front or scored.makespan < front[-1].makespan:
                front.append(scored)
        first = bisect_left(front, True, key=lambda scored: self._meets(scored, deadline))
        if first < len(front):
            return front[first]
        fastest = self._fastest()
        note = (
            f"no plan was found that meets the deadline of {deadline:g} s: this one is the "
            f"fastest, at {self._promised(fastest):.3g} s"
        )
        return replace(fastest, plan=replace(fastest.plan, notes=(note,), unmet=note))

    def _meets(self, scored: _Scored, deadline: float) -> bool:
        return self._promised(scored) <= deadline

    def _promised(self, scored: _Scored) -> float:
        """Return the predicted makespan at the service level."""
        return Preview(scored.plan, self.conditions, self.goal.sla).predicted(_CHECKING_SECONDS)

    def _refined(self, scored: _Scored) -> Plan:
        """Apply the optimizations that shorten the plan, and downgrade workers."""
        plan, makespan = scored.plan, scored.makespan
        if plan.linger == self.linger and not self.allowance.spent:
            parking = self._simulated(replace(plan, linger=0.5))
            if parking.makespan <= makespan and parking.gb_seconds < scored.gb_seconds:
                plan = parking.plan
        for optimization in self.optimizations:
            if self.allowance.spent:
                break
            trial = applied(optimization, plan, self.conditions, self.costs)
            tried = self._simulated(trial)
            if tried.makespan < makespan * (1 - 1e-6):
                plan, makespan = trial, tried.makespan
        if len(self.configurations) > 1 and not self.allowance.spent:
            kinds = self.configurations
            plan = downgraded(plan, self.conditions, self.costs, kinds, self.allowance)
        return plan

    def _finished(self, plan: Plan) -> Plan:
        plan = replace(plan, planner=f"auto ({plan.planner})")
        return forced(plan, self.conditions, self.costs)


def _new_worker(known: dict[WorkerId, Placement]) -> WorkerId:
    number = len(known)
    while WorkerId(f"w{number}") in known:
        number += 1
    return WorkerId(f"w{number}")
