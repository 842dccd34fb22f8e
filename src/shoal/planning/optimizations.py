"""Refine plans by pre-loading inputs, pre-warming sandboxes and duplicating tasks.

A planner applies an optimization to a whole plan. A task can also request one for itself with
`forced_optimizations`, regardless of the planner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from shoal.errors import PlanError, UsageError
from shoal.execution.costs import Costs
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.plan import Placement, Plan, Prewarm
from shoal.execution.timeline import Timeline
from shoal.planning.arguments import check, is_number, is_whole
from shoal.planning.base import Conditions, Optimization
from shoal.planning.critical_path import critical_path
from shoal.planning.estimates import Estimates
from shoal.planning.warm_groups import ColdGroup, Trigger, cold_groups
from shoal.types import Resources, TaskId

_LONGER = 1 + 1e-6
"""The factor up to which a makespan counts as no longer."""
_AIMS = (1.0, 0.5, 0.0, None)
"""The points of the window to try after the given one; None: after the window."""


@dataclass(frozen=True, slots=True)
class PreLoadOptimization:
    """Fetch each input of a task as soon as it is saved, while its worker may still be busy.

    It applies to every task with at least `threshold` upstream tasks on other workers, unless that
    lengthens the simulated makespan: inputs that are fetched together take one round trip, and
    pre-loaded ones don't. Then it is applied to the other tasks of the critical path that wait for
    another worker, repeatedly, as long as that shortens the simulated makespan.
    """

    threshold: int = 2
    iterations: int = 100

    def __post_init__(self) -> None:
        for name in ("threshold", "iterations"):
            value = getattr(self, name)
            where = f"PreLoadOptimization({name}={value!r})"
            check(is_whole(value, 0), where, "an integer of at least 0")

    def force(
        self, plan: Plan, tasks: Sequence[TaskId], conditions: Conditions, costs: Costs
    ) -> Plan:
        """Pre-load the inputs of these tasks."""
        return _preloaded(plan, tasks)

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """Return the plan with pre-loading where it helps."""
        allowance = conditions.allowance()
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
            if not more or allowance.spent:
                break
            trial = _preloaded(best, more)
            tried = conditions.simulate(trial, costs)
            if tried.makespan >= timeline.makespan:
                break
            best, timeline = trial, tried
        return best


@dataclass(frozen=True, slots=True)
class PreWarmOptimization:
    """Start sandboxes in advance for workers that would otherwise start cold.

    A task that is running at the right time triggers the start. The time window begins when the
    sandbox would no longer be removed as idle before it is used, and ends when it would no longer
    be ready in time. Workers that start at about the same time are tried together, then in smaller
    groups, each with several numbers of sandboxes and several points of the window.
    """

    aim: float = 0.75
    """Which point of the window to aim at first, from 0 (its beginning) to 1 (its end)."""
    iterations: int = 100
    """How many plans to simulate at most."""

    def __post_init__(self) -> None:
        where = f"PreWarmOptimization(aim={self.aim!r})"
        check(is_number(self.aim, 0, 1), where, "a share of the window from 0 to 1")
        where = f"PreWarmOptimization(iterations={self.iterations!r})"
        check(is_whole(self.iterations, 0), where, "an integer of at least 0")

    def force(
        self, plan: Plan, tasks: Sequence[TaskId], conditions: Conditions, costs: Costs
    ) -> Plan:
        """Make these tasks pre-warm a sandbox for each downstream worker as soon as they begin."""
        changes: dict[TaskId, dict[str, object]] = {}
        for task in tasks:
            here = plan.placements[task].worker
            others = {
                plan.placements[taker].worker: plan.placements[taker].resources
                for taker in plan.workflow.downstream(task)
            }
            counts = Counter(r for worker, r in others.items() if worker != here)
            wanted = [Prewarm(resources, 0.0, count) for resources, count in counts.items()]
            changes[task] = {"prewarm": _merged(plan.placements[task].prewarm, wanted)}
        return _changed(plan, changes)

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """Return the plan with triggers for the cold starts that they can hide."""
        return _PreWarming(self, plan, conditions, costs).best()


class _PreWarming:
    """The search for triggers, one group of cold starts after the other."""

    def __init__(
        self, options: PreWarmOptimization, plan: Plan, conditions: Conditions, costs: Costs
    ) -> None:
        self.aims = tuple(dict.fromkeys((options.aim, *_AIMS)))
        self.left = options.iterations
        self.allowance = conditions.allowance()
        self.conditions, self.costs = conditions, costs
        self.idle = conditions.pool().idle_seconds
        self.request = costs.coordination()
        self.plan, self.timeline = plan, conditions.simulate(plan, costs)
        self.tried: set[tuple[object, ...]] = set()

    def best(self) -> Plan:
        """Return the plan with triggers, searching anew after each group that is worth it."""
        while any(map(self._warm, cold_groups(self.timeline, self.plan.workers))):
            pass
        return self.plan

    def _warm(self, group: ColdGroup) -> bool:
        """Warm up a group with the first aim that is worth it; return whether there is one."""
        for aim in self.aims:
            trigger = group.trigger(self.timeline, aim, self.idle, self.request)
            if trigger is None:
                continue
            counts = group.counts(self.timeline, self.plan.workers, trigger.moment)
            trials = [self._tried(group, trigger, count) for count in counts]
            good = [trial for trial in trials if trial and self._is_better(trial[1])]
            if good:
                self.plan, self.timeline = min(good, key=lambda t: (t[1].makespan, _colds(t[1])))
                self.tried.clear()
                return True
        return False

    def _tried(
        self, group: ColdGroup, trigger: Trigger, count: int
    ) -> tuple[Plan, Timeline] | None:
        """Simulate the plan with one more trigger; None: it is known, or there is no time left."""
        key = (trigger.task, round(trigger.delay, 3), count, group.resources)
        if key in self.tried or not self.left or self.allowance.spent:
            return None
        self.tried.add(key)
        self.left -= 1
        known = self.plan.placements[trigger.task].prewarm
        wanted = _merged(known, [Prewarm(group.resources, trigger.delay, count)])
        plan = _changed(self.plan, {trigger.task: {"prewarm": wanted}})
        return plan, self.conditions.simulate(plan, self.costs)

    def _is_better(self, timeline: Timeline) -> bool:
        fewer = _colds(timeline) < _colds(self.timeline)
        return fewer and timeline.makespan <= self.timeline.makespan * _LONGER


@dataclass(frozen=True, slots=True)
class TaskDupOptimization:
    """Let a worker that waits for a short task's output run that task itself.

    Every task within the limits may be duplicated. The waiting worker decides at run time, and
    duplicates the task if that saves at least `gain` seconds.
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
        """Allow these tasks to be duplicated whatever they cost."""
        return self._duplicable(plan, tasks, conditions.simulate(plan, costs), costs)

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """Return the plan with the tasks marked that may be duplicated."""
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


def _merged(known: Sequence[Prewarm], wanted: Sequence[Prewarm]) -> tuple[Prewarm, ...]:
    """Merge pre-warms; those for the same resources and time become one with the larger count."""
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
    """Apply a planner's optimizations and the forced ones of tasks.

    A flexible plan skips optimizations that need to know workers in advance, and adds a note.
    """
    for given in optimizations:
        optimization = optimization_of(given)
        if plan.flexible and needs_workers(optimization):
            plan = _without(plan, optimization)
        else:
            plan = applied(optimization, plan, conditions, costs)
    return forced(plan, conditions, costs)


def optimization_of(given: object, where: str = "optimizations=[…] of a planner") -> Optimization:
    """Return an optimization that was given as an object or as its class."""
    if not callable(getattr(given, "apply", None)):
        raise UsageError(
            f"{where}: {given!r} is not an optimization. It must have a method "
            "`apply(plan, conditions, costs)` that returns a plan, like PreLoadOptimization, "
            "PreWarmOptimization and TaskDupOptimization."
        )
    return cast(Optimization, given() if isinstance(given, type) else given)


def applied(optimization: Optimization, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
    """Apply one optimization to a plan."""
    return _made_by(optimization, optimization.apply(plan, conditions, costs))


def _made_by(optimization: Optimization, plan: object) -> Plan:
    if not isinstance(plan, Plan):
        raise PlanError(
            "an optimization returns a Plan",
            f"{type(optimization).__name__} returned {type(plan).__name__}",
        )
    return _without(replace(plan, reactions=()), optimization) if _unplaced(plan) else plan


def _unplaced(plan: Plan) -> bool:
    """Whether a plan has reactions, but no workers that could react."""
    return bool(plan.reactions) and plan.flexible


def forced(plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
    """Apply the optimizations that tasks request with `forced_optimizations`.

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
        if plan.flexible and needs_workers(optimization):
            plan = _without(plan, optimization)
        elif callable(getattr(optimization, "force", None)):
            plan = _made_by(optimization, optimization.force(plan, tasks, conditions, costs))
        else:
            plan = applied(optimization, plan, conditions, costs)
    return replace(plan, forced=True) if wanted else plan


def needs_workers(optimization: Optimization) -> bool:
    """Return whether an optimization needs to know workers in advance, so no flexible plan."""
    return isinstance(optimization, PreLoadOptimization | PreWarmOptimization | TaskDupOptimization)


def _without(plan: Plan, optimization: Optimization) -> Plan:
    note = f"{type(optimization).__name__} is skipped: workers are not known in advance."
    return plan if note in plan.notes else replace(plan, notes=(*plan.notes, note))


def _elsewhere(plan: Plan) -> dict[TaskId, int]:
    """Count, for each task with inputs from other workers, how many tasks these come from."""
    away = {}
    for task, sources in plan.workflow.upstream.items():
        here = plan.placements[task].worker
        count = sum([plan.placements[source].worker != here for source in sources])
        if count:
            away[task] = count
    return away


def _changed(plan: Plan, changes: dict[TaskId, dict[str, object]]) -> Plan:
    """Return the plan with some fields of placements changed."""
    if not changes:
        return plan
    placements: dict[TaskId, Placement] = dict(plan.placements)
    for task, change in changes.items():
        placements[task] = replace(placements[task], **change)  # type: ignore[arg-type]
    return replace(plan, placements=placements)


def _colds(timeline: Timeline) -> int:
    return len(timeline.of_kind("cold start"))
