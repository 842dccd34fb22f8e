"""What refines a plan: pre-loading, pre-warming, duplicating. Workers carry it out as planned.

An optimization is applied to a whole plan by its planner, or to single tasks that ask for it with
`forced_optimizations`: those get it whatever the planner thinks of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from shoal.errors import PlanError, UsageError
from shoal.execution.costs import Costs
from shoal.execution.machine import INLINE_NBYTES
from shoal.execution.plan import Placement, Plan, Prewarm
from shoal.execution.timeline import Span, Timeline
from shoal.planning.arguments import check, is_number, is_whole
from shoal.planning.base import Conditions, Optimization, Stopwatch
from shoal.planning.critical import critical_path
from shoal.planning.estimates import Estimates
from shoal.types import Resources, TaskId

_LONGER = 1 + 1e-6
"""What a makespan may be multiplied by and still count as no longer."""


@dataclass(frozen=True, slots=True)
class PreLoadOptimization:
    """Fetch a task's inputs as each is saved, while its worker may still be busy with others.

    Every task with at least `threshold` upstream tasks on other workers gets it, unless the
    simulated makespan is longer for it: inputs that are fetched together are one round trip,
    pre-loaded ones are not. Then the critical path is walked: its other tasks that wait for another
    worker get it as long as that shortens the simulated makespan and shows a new path.
    """

    threshold: int = 2
    iterations: int = 100

    def __post_init__(self) -> None:
        for name in ("threshold", "iterations"):
            value = getattr(self, name)
            where = f"PreLoadOptimization({name}={value!r})"
            check(is_whole(value, 0), where, "a whole number from 0")

    def force(
        self, plan: Plan, tasks: Sequence[TaskId], conditions: Conditions, costs: Costs
    ) -> Plan:
        """Give it to these tasks."""
        return _preloaded(plan, tasks)

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """The plan with pre-loading where it helps."""
        watch = Stopwatch(conditions.seconds)
        away = _elsewhere(plan)
        chosen = [task for task, count in away.items() if count >= self.threshold]
        best, timeline = plan, conditions.simulate(plan, costs)
        trial = _preloaded(plan, chosen)
        tried = conditions.simulate(trial, costs)
        if tried.makespan <= timeline.makespan * _LONGER:
            best, timeline = trial, tried
        for _ in range(self.iterations):
            path = critical_path(plan.workflow, timeline)
            more = [t for t in path if away.get(t) and not best.placements[t].preload]
            if not more or watch.over:
                break
            trial = _preloaded(best, more)
            tried = conditions.simulate(trial, costs)
            if tried.makespan >= timeline.makespan:
                break
            best, timeline = trial, tried
        return best


@dataclass(frozen=True, slots=True)
class PreWarmOptimization:
    """Have a sandbox ready before a worker that would start cold is invoked.

    A task that runs while the sandbox should begin to start triggers it. The window for that ends
    so early that the sandbox is ready in time, and begins so late that it isn't removed before;
    three quarters of the way through it is aimed at.
    """

    aim: float = 0.75
    """Where in the window, from 0 (its begin) to 1 (its end)."""

    def __post_init__(self) -> None:
        where = f"PreWarmOptimization(aim={self.aim!r})"
        check(is_number(self.aim, 0, 1), where, "a share of the window from 0 to 1")

    def force(
        self, plan: Plan, tasks: Sequence[TaskId], conditions: Conditions, costs: Costs
    ) -> Plan:
        """Let these tasks warm a sandbox for each worker behind them as soon as they begin."""
        changes: dict[TaskId, dict[str, object]] = {}
        for task in tasks:
            here = plan.placements[task].worker
            others = {
                plan.placements[taker].worker: plan.placements[taker].resources
                for taker in plan.workflow.downstream(task)
            }
            counts = Counter(r for worker, r in others.items() if worker != here)
            wanted = [Prewarm(resources, 0.0, count) for resources, count in counts.items()]
            changes[task] = {"prewarm": _with(plan.placements[task].prewarm, wanted)}
        return _changed(plan, changes)

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """The plan with triggers for the cold starts that they can hide."""
        watch = Stopwatch(conditions.seconds)
        timeline = conditions.simulate(plan, costs)
        idle = conditions.pool().idle_seconds
        kept: Counter[Resources] = Counter()
        for start in self._cold(plan, timeline):
            if watch.over:
                break
            found = self._trigger(start, timeline, idle, costs.coordination())
            if found is None:
                continue
            task, delay = found
            kind = plan.workers[start.worker]
            for count in dict.fromkeys((1, 1 + kept[kind])):  # those of other triggers may be idle
                wanted = _with(plan.placements[task].prewarm, [Prewarm(kind, delay, count)])
                trial = _changed(plan, {task: {"prewarm": wanted}})
                tried = conditions.simulate(trial, costs)
                fewer = _colds(tried) < _colds(timeline)
                if fewer and tried.makespan <= timeline.makespan * _LONGER:
                    plan, timeline = trial, tried
                    kept[kind] += 1
                    break
        return plan

    def _cold(self, plan: Plan, timeline: Timeline) -> Iterable[Span]:
        """The cold starts of workers that others start."""
        rooted = {
            plan.placements[task].worker
            for task, sources in plan.workflow.upstream.items()
            if not sources
        }
        return [s for s in timeline.of_kind("cold start") if s.worker not in rooted]

    def _trigger(
        self, start: Span, timeline: Timeline, idle: float, request: float
    ) -> tuple[TaskId, float] | None:
        latest = start.start - start.seconds - request
        earliest = max(0.0, start.start - request - idle)
        aim = earliest + self.aim * (latest - earliest)
        best: tuple[float, TaskId, float] | None = None
        for span in timeline.of_kind("execute"):
            assert span.task is not None
            moment = min(max(aim, span.start), span.end)
            if span.start > latest or moment < earliest or moment > latest:
                continue
            distance = abs(moment - aim)
            if best is None or distance < best[0]:
                best = (distance, span.task, moment - span.start)
        return None if best is None else (best[1], best[2])


@dataclass(frozen=True, slots=True)
class TaskDupOptimization:
    """Let a worker that waits for a short task's output run that task itself.

    Every task within the limits may be duplicated; the worker that waits decides at run time,
    when that saves at least `gain` seconds.
    """

    seconds: float = 2.0
    nbytes: int = 5 * 1024 * 1024
    gain: float = 0.5

    def __post_init__(self) -> None:
        for name in ("seconds", "nbytes", "gain"):
            value = getattr(self, name)
            where = f"TaskDupOptimization({name}={value!r})"
            check(is_number(value, 0), where, "a number from 0")

    def force(
        self, plan: Plan, tasks: Sequence[TaskId], conditions: Conditions, costs: Costs
    ) -> Plan:
        """Let these tasks be duplicated whatever they cost."""
        return self._duplicable(plan, tasks, conditions.simulate(plan, costs), costs)

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """The plan with the tasks that may be duplicated."""
        estimates = Estimates(plan.workflow, costs)
        homes = plan.placements
        fed = {
            source
            for task, sources in plan.workflow.upstream.items()
            for source in sources
            if homes[source].worker != homes[task].worker
        }
        chosen = [
            task
            for task, placement in plan.placements.items()
            if task in fed
            and estimates.seconds(placement.resources)[task] <= self.seconds
            and estimates.input_nbytes[task] <= self.nbytes
        ]
        if not chosen:
            return plan
        timeline = conditions.simulate(plan, costs)
        trial = self._duplicable(plan, chosen, timeline, costs)
        tried = conditions.simulate(trial, costs)
        return trial if tried.makespan <= timeline.makespan * _LONGER else plan

    def _duplicable(
        self, plan: Plan, tasks: Sequence[TaskId], timeline: Timeline, costs: Costs
    ) -> Plan:
        estimates = Estimates(plan.workflow, costs)
        runs = {span.task: span for span in timeline.of_kind("execute")}
        expected = dict(plan.expected)
        for task in tasks:
            resources = plan.placements[task].resources
            under_way = costs.coordination()
            if estimates.output_nbytes[task] > INLINE_NBYTES:
                under_way += estimates.transfer("save", task, resources)
                under_way += estimates.transfer("fetch", task, resources)
            seconds = estimates.seconds(resources)[task]
            expected[task] = (seconds, runs[task].end + under_way)
        changed = _changed(plan, {task: {"duplicable": True} for task in tasks})
        return replace(changed, expected=expected, duplication_gain=self.gain)


def _with(known: Sequence[Prewarm], wanted: Sequence[Prewarm]) -> tuple[Prewarm, ...]:
    """Warm-ups with some more; of those for the same thing at the same time the largest."""
    counts: dict[tuple[Resources, float], int] = {}
    for prewarm in (*known, *wanted):
        key = (prewarm.resources, prewarm.delay)
        counts[key] = max(prewarm.count, counts.get(key, 0))
    return tuple(Prewarm(*key, count) for key, count in counts.items())


def _preloaded(plan: Plan, tasks: Sequence[TaskId]) -> Plan:
    return _changed(plan, {task: {"preload": True} for task in tasks})


def optimized(
    plan: Plan,
    conditions: Conditions,
    costs: Costs,
    optimizations: Sequence[Optimization | type[Optimization]],
) -> Plan:
    """The plan refined by optimizations, and with what its tasks insist on.

    Those that need to know workers beforehand are left out of a flexible plan, which says so.
    """
    for given in optimizations:
        optimization = optimization_of(given)
        if plan.flexible and isinstance(optimization, _FOR_PLACED):
            plan = _without(plan, optimization)
        else:
            plan = applied(optimization, plan, conditions, costs)
    return forced(plan, conditions, costs)


def optimization_of(given: object, where: str = "optimizations=[…] of a planner") -> Optimization:
    """An optimization that was given as an object or as its class."""
    if not callable(getattr(given, "apply", None)):
        raise UsageError(
            f"{where}: {given!r} isn't an optimization. One has a method "
            "`apply(plan, conditions, costs)` that returns a plan, as PreLoadOptimization, "
            "PreWarmOptimization and TaskDupOptimization do."
        )
    return cast(Optimization, given() if isinstance(given, type) else given)


def applied(optimization: Optimization, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
    """The plan that an optimization makes of another."""
    return _made_by(optimization, optimization.apply(plan, conditions, costs))


def _made_by(optimization: Optimization, plan: object) -> Plan:
    if not isinstance(plan, Plan):
        raise PlanError(
            "an optimization returns a Plan",
            f"{type(optimization).__name__} returned {type(plan).__name__}",
        )
    return plan


def forced(plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
    """The plan with the optimizations that its tasks insist on.

    An optimization without a method `force` is applied to the whole plan.
    """
    wanted: list[tuple[object, list[TaskId]]] = []
    for task, call in plan.workflow.calls.items():
        for given in call.task.forced_optimizations:
            for known, tasks in wanted:
                if known == given:
                    tasks.append(task)
                    break
            else:
                wanted.append((given, [task]))
    for given, tasks in wanted:
        optimization = optimization_of(given, f"forced_optimizations of task {tasks[0]!r}")
        if plan.flexible and isinstance(optimization, _FOR_PLACED):
            plan = _without(plan, optimization)
        elif callable(getattr(optimization, "force", None)):
            plan = _made_by(optimization, optimization.force(plan, tasks, conditions, costs))
        else:
            plan = applied(optimization, plan, conditions, costs)
    return replace(plan, forced=True) if wanted else plan


_FOR_PLACED = (PreLoadOptimization, PreWarmOptimization, TaskDupOptimization)
"""What is decided for workers that are known beforehand."""


def _without(plan: Plan, optimization: Optimization) -> Plan:
    note = f"{type(optimization).__name__} is left out: no worker is known beforehand."
    return plan if note in plan.notes else replace(plan, notes=(*plan.notes, note))


def _elsewhere(plan: Plan) -> dict[TaskId, int]:
    """The tasks that take outputs of other workers, and of how many tasks."""
    away = {}
    for task, sources in plan.workflow.upstream.items():
        here = plan.placements[task].worker
        count = sum([plan.placements[source].worker != here for source in sources])
        if count:
            away[task] = count
    return away


def _changed(plan: Plan, changes: dict[TaskId, dict[str, object]]) -> Plan:
    """The plan with other fields in some placements."""
    if not changes:
        return plan
    placements: dict[TaskId, Placement] = dict(plan.placements)
    for task, change in changes.items():
        placements[task] = replace(placements[task], **change)  # type: ignore[arg-type]
    return replace(plan, placements=placements)


def _colds(timeline: Timeline) -> int:
    return len(timeline.of_kind("cold start"))
