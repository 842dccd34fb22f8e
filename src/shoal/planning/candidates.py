"""Propose plans to `AutoPlanner`'s search: those of all planners, and list schedules.

1. The plans of other planners come before list schedules in other styles, so that the search is
   never behind them, unless there is too little time to simulate even these.
2. Every kind of plan is tried with fewer workers, too: transfers may cost more than they gain.
3. A flexible plan is also proposed with the placements that its simulated run came to. Workers then
   know beforehand what they will run, and the search can improve it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush

from shoal.execution.plan import Placement, Plan
from shoal.planning.base import Conditions, Planner
from shoal.planning.effort import STEPS_A_SECOND
from shoal.planning.estimates import Estimates
from shoal.planning.list_scheduling import Lister, Style
from shoal.planning.nonuniform import NonUniformPlanner
from shoal.planning.scoring import Scored, Scores
from shoal.planning.spread import spread
from shoal.planning.uniform import UniformPlanner
from shoal.planning.wukong import WukongPlanner
from shoal.types import SLA, Resources, TaskId, WorkerId

_MOST_INSERTED = 2000
"""The most tasks for which a list schedule looks for gaps."""
_LOOKS_A_STEP = 6
"""Roughly how many pairs of task and worker a list schedule examines in the time of a step."""
_PREPARED_A_STEP = 2
"""Roughly how many tasks a planner that simulates nothing handles in the time of a step."""
_NEAR = 1.5
"""The ratio to the fastest plan up to which a plan is worth trying in other ways."""
STYLES = (
    Style(),
    Style(insertion=True),
    Style(communication=0.0, insertion=True),
    Style(order="sufferage"),
    Style(order="shortest"),
    Style(order="earliest"),
    Style(communication=0.0),
    Style(thrift=0.5),
    Style(thrift=1.0),
    Style(thrift=3.0),
    Style(communication=2.0, thrift=0.25),
    Style(order="longest"),
    Style(order="sufferage", thrift=1.0),
)
"""The styles of list schedules, most promising first."""
_FOR_FEWER = (Style(insertion=True), Style(thrift=0.5), Style(order="sufferage"))
"""The styles that are tried with fewer workers, too."""
Propose = Callable[[], object]
"""Makes and scores a plan."""


class Candidates:
    """The plans that a search begins with."""

    def __init__(
        self,
        scores: Scores,
        configurations: Sequence[Resources],
        estimates: Estimates,
        sla: SLA,
        limit: float,
    ) -> None:
        """Prepare them.

        Args:
            scores: Where plans are scored.
            configurations: The resources that workers may have, strongest first.
            estimates: What tasks are predicted to cost.
            sla: The service level.
            limit: The seconds that the search may take.
        """
        self.conditions: Conditions = scores.conditions
        self.workflow = estimates.workflow
        self.fixed = any(self.workflow.resources(task) for task in self.workflow.calls)
        """Whether any task requests resources."""
        steps = len(self.workflow) * self.conditions.workers / _LOOKS_A_STEP
        self.lists = not self.fixed and steps < limit * STEPS_A_SECOND / 4
        """Whether to try list schedules, which are slow for many tasks and workers."""
        self._insists = any(c.task.forced_optimizations for c in self.workflow.calls.values())
        self._scores = scores
        self._kinds = configurations
        self._estimates = estimates
        self._sla = sla
        self._listers: dict[tuple[Resources, int], Lister] = {}

    def all(self) -> Iterator[Propose]:
        """Yield functions that make and score a plan."""
        kinds, workers = self._kinds, self.conditions.workers
        for kind in kinds:
            yield partial(self.spread, 1, kind)
        if self.lists:
            yield partial(self.list, kinds[0], workers, Style())
        yield partial(self.spread, workers, kinds[0])
        yield from self._shipped()
        if self.lists:
            yield from self._lists()
        for count in self._counts():
            yield partial(self.spread, count, kinds[0])
        if not self._insists:
            yield from self._flexible()

    def _counts(self) -> list[int]:
        """Return smaller numbers of workers, largest first."""
        found, count = [], self.conditions.workers // 2
        while count > 1:
            found.append(count)
            count //= 2
        return found

    def _lists(self) -> Iterator[Propose]:
        """Yield list schedules in all styles, for all workers and for fewer."""
        kinds, workers = self._kinds, self.conditions.workers
        for style in STYLES[1:]:
            yield partial(self.list, kinds[0], workers, style)
        for kind in kinds:
            for count in (workers, *self._counts()):
                for style in _FOR_FEWER:
                    if kind is not kinds[0] or count < workers:
                        yield partial(self.list, kind, count, style)

    def _shipped(self) -> Iterator[Propose]:
        """Yield the plans of other planners."""
        kinds, sla = self._kinds, self._sla
        for kind in kinds:
            yield partial(self._shipped_by, UniformPlanner(kind, sla=sla))
        if len(kinds) > 1:
            yield partial(self._shipped_by, NonUniformPlanner(kinds, sla=sla))
        if not self._insists:
            for kind in kinds:
                yield partial(self._shipped_by, WukongPlanner(kind, sla=sla))
        for kind in kinds:
            yield partial(self._keep, partial(spread, self.workflow, self.conditions.workers, kind))

    def _flexible(self) -> Iterator[Propose]:
        """Yield flexible plans with other policies, and the best one as it was carried out."""
        found = [scored for scored in self._scores.all if scored.plan.flexible]
        best = min(found, key=lambda scored: scored.makespan, default=None)
        if best is None or best.makespan > _NEAR * self._scores.fastest.makespan:
            return
        kind = next(iter(best.plan.placements.values())).resources
        plain = partial(
            WukongPlanner,
            kind,
            sla=self._sla,
            fan_out_clustering=False,
            fan_in_clustering=False,
            delayed_io=False,
        )
        for planner in (
            plain(),
            plain(large_fan_out=None),
            WukongPlanner(kind, sla=self._sla, decide="predicted"),
        ):
            yield partial(self._flexible_by, planner)
        yield self._settled

    def _flexible_by(self, planner: WukongPlanner) -> None:
        self._scores.score(planner.plan(self.workflow, self.conditions))

    def _settled(self) -> None:
        """Score the best flexible plan with the placements of its simulated run."""
        found = [scored for scored in self._scores.all if scored.plan.flexible]
        best = min(found, key=lambda scored: scored.makespan)
        plan = _placed(best)
        if len(plan.workers) <= self.conditions.workers:
            self._scores.score_waiting(plan)

    def _shipped_by(self, planner: Planner) -> None:
        self.conditions.effort.add(len(self.workflow) / _PREPARED_A_STEP)
        self._keep(partial(planner.plan, self.workflow, self.conditions))

    def _keep(self, make: Callable[[], Plan]) -> None:
        """Score a planner's plan, which is an upper bound; if it is good, with waiting workers."""
        scored = self._scores.score(make())
        self._scores.shipped.append(scored)
        if scored.plan.flexible or len(scored.plan.workers) == 1:
            return
        if scored.makespan < _NEAR * self._scores.fastest.makespan:
            self._scores.score_waiting(scored.plan)

    def spread(self, workers: int, kind: Resources) -> Scored:
        """Score an even plan."""
        return self._scores.score_waiting(spread(self.workflow, workers, kind))

    def list(self, kind: Resources, count: int, style: Style) -> Scored:
        """Score a list schedule."""
        if style.insertion and len(self.workflow) > _MOST_INSERTED:
            style = replace(style, insertion=False)
        return self._listed(kind, count, lambda lister: lister.listed(style))

    def relist(self, scored: Scored, moving: Container[TaskId], style: Style) -> Scored | None:
        """Score a plan with some tasks placed anew; None if its workers are of several kinds."""
        plan = scored.plan
        kinds = set(plan.workers.values())
        if len(kinds) > 1:
            return None
        number = {worker: i for i, worker in enumerate(plan.workers)}
        kept = {
            task: number[placement.worker]
            for task, placement in plan.placements.items()
            if placement.worker and task not in moving
        }
        starts = {span.task: span.start for span in scored.timeline.of_kind("execute") if span.task}
        count = max(self.conditions.workers, len(number))
        return self._listed(kinds.pop(), count, lambda lister: lister.relisted(kept, starts, style))

    def _listed(self, kind: Resources, count: int, make: Callable[[Lister], Plan]) -> Scored:
        key = (kind, count)
        lister = self._listers.get(key)
        if lister is None:
            self.conditions.effort.add(len(self.workflow) / _PREPARED_A_STEP)
            lister = self._listers[key] = Lister(self._estimates, [kind] * count)
        before = lister.looks
        plan = make(lister)
        self.conditions.effort.add((lister.looks - before) / _LOOKS_A_STEP)
        return self._scores.score_waiting(plan)


def _placed(flexible: Scored) -> Plan:
    """Return the plan with the placements and the order of its simulated run.

    Workers that run one after the other become one.
    """
    plan, timeline = flexible.plan, flexible.timeline
    spans = sorted(timeline.of_kind("execute"), key=lambda span: span.start)
    lives = {worker: (at[0][0], at[-1][1]) for worker, at in timeline.lives.items()}
    names: dict[WorkerId, WorkerId] = {}
    free: list[tuple[float, int]] = []
    for worker in sorted(lives, key=lambda worker: lives[worker]):
        begin, end = lives[worker]
        _, number = heappop(free) if free and free[0][0] <= begin else (0.0, len(free))
        names[worker] = WorkerId(f"w{number}")
        heappush(free, (end, number))
    homes = {span.task: names[span.worker] for span in spans if span.task}
    return Plan(
        plan.workflow,
        {task: Placement(homes[task], given.resources) for task, given in plan.placements.items()},
        planner="settled",
        ranks={task: rank for rank, task in enumerate(homes)},
    )
