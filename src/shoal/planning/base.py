"""`Planner` and `Optimization`: what turns a workflow into a plan, and what refines a plan.

Both are pure: the same workflow and conditions give the same plan. They score plans with
`Conditions.simulate`, which runs the very machines that workers run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shortened
from typing import Protocol

from shoal.errors import PlanError
from shoal.execution.costs import Costs, Predictions
from shoal.execution.plan import Plan, Prewarm
from shoal.execution.policies import Policies
from shoal.execution.pool import WarmPool
from shoal.execution.timeline import Timeline
from shoal.planning.arguments import is_number, is_whole
from shoal.planning.estimates import Estimates
from shoal.storage.keys import CLIENT
from shoal.types import Resources, TaskId, WorkerId
from shoal.workflow import Workflow

_LONGEST = 100
"""Characters of a worker's id."""
_SIMULATED_A_SECOND = 25_000
"""Tasks and edges, about, on a slow machine."""


@dataclass(frozen=True)
class Conditions:
    """What a plan is made for."""

    predictions: Predictions
    workers: int
    """How many workers may be at work at once."""
    resources: Resources
    """What a worker has unless a task or the planner asks for something else."""
    pool: Callable[[], WarmPool[Resources]] = WarmPool
    """Makes a pool like the platform's, with the sandboxes that are warm now."""
    seconds: float | None = None
    """How long planning may take; None: the planner's own choice."""
    memory_mb: int | None = None
    """The most that the platform gives to a worker; None: it doesn't say."""
    limit: float | None = None
    """How long the platform lets a function run; None: for ever."""
    inline_nbytes: int | None = None
    """What the platform lets an invocation carry; None: as much as is worth it."""

    def offered(self, configurations: Sequence[Resources]) -> list[Resources]:
        """Those that the platform has; all of them if it has none, for `validated` to name."""
        found = [resources for resources in configurations if self.offers(resources)]
        return found or list(configurations)

    def offers(self, resources: Resources) -> bool:
        """Whether a worker can have these resources."""
        return self.memory_mb is None or resources.memory_mb <= self.memory_mb

    def simulate(self, plan: Plan, costs: Costs) -> Timeline:
        """The timeline that a plan is predicted to have."""
        from shoal.execution.simulator import simulate

        return simulate(self._limited(plan), costs, self.pool(), workers=self.workers)

    def makespan(self, plan: Plan, costs: Costs) -> float:
        """The makespan alone, which takes less time."""
        from shoal.execution.simulator import makespan_of

        return makespan_of(self._limited(plan), costs, self.pool(), workers=self.workers)

    def _limited(self, plan: Plan) -> Plan:
        return plan if plan.limit == self.limit else replace(plan, limit=self.limit)


def simulating_seconds(workflow: Workflow) -> float:
    """About how long it takes to simulate a plan."""
    return (len(workflow) + sum(map(len, workflow.upstream.values()))) / _SIMULATED_A_SECOND


def validated(plan: Plan, workflow: Workflow, conditions: Conditions) -> Plan:
    """The plan, if it can be carried out; the rule that it breaks is named, and where."""
    if not isinstance(plan, Plan):
        raise PlanError("a planner returns a Plan", f"this one returned {type(plan).__name__}")
    if plan.workflow is not workflow:
        raise PlanError(
            "a plan is for the very workflow that its planner was given",
            "this one is for another: dataclasses.replace(plan, workflow=…) makes it fit",
        )
    unknown = [task for task in plan.placements if task not in workflow.calls]
    if unknown:
        raise PlanError("a plan has only the workflow's tasks", f"{unknown[0]!r} isn't one")
    _check_fields(plan)
    if plan.ranks is not None:
        unranked = [task for task in workflow.calls if task not in plan.ranks]
        if unranked:
            raise PlanError("a plan with ranks ranks every task", f"{unranked[0]!r} has none")
    for task in workflow.calls:
        _check_placement(plan, task, conditions)
    _check_workers(plan, conditions)
    return replace(plan, limit=conditions.limit) if conditions.limit is not None else plan


def check_limit(plan: Plan, conditions: Conditions) -> None:
    """No task may be known to take longer than the platform lets a function run."""
    if conditions.limit is None or conditions.predictions.basis == "no history":
        return
    estimates = Estimates(plan.workflow, conditions.predictions.at("median"))
    for task, placement in plan.placements.items():
        seconds = estimates.seconds(placement.resources)[task]
        if seconds > conditions.limit:
            raise PlanError(
                "no task takes longer than the platform lets a function run",
                f"{task!r} takes about {seconds:.3g} s of {conditions.limit:g} with "
                f"{placement.resources}: split it, or give it more CPUs",
            )


def _check_fields(plan: Plan) -> None:
    """Each field is what simulations and workers take it for."""
    notes, linger, limit = plan.notes, plan.linger, plan.limit
    lines = isinstance(notes, tuple | list) and all(isinstance(note, str) for note in notes)
    for name, fits, rule in (
        ("planner", isinstance(plan.planner, str), "a plan has its planner's name"),
        ("notes", lines, "notes are a tuple of strings"),
        ("linger", linger is None or is_number(linger, 0), "a worker lingers for 0 s or more"),
        ("limit", limit is None or is_number(limit, 0), "a worker has 0 s or more"),
        ("duplication_gain", is_number(plan.duplication_gain, 0), "a copy saves 0 s or more"),
        ("policies", isinstance(plan.policies, Policies), "flexible workers have Policies"),
        ("unmet", isinstance(plan.unmet, str), "what a plan doesn't reach is a string"),
        ("ranks", isinstance(plan.ranks, Mapping | None), "ranks are a dict of tasks' numbers"),
        ("expected", isinstance(plan.expected, Mapping), "what is expected is a dict of tasks'"),
    ):
        if not fits:
            raise PlanError(rule, f"`{name}` is {shortened(getattr(plan, name))}")
    for task, rank in (plan.ranks or {}).items():
        if type(rank) is not int and not is_number(rank):
            raise PlanError("a rank is a number", f"that of {task!r} is {rank!r}")
    for task, times in plan.expected.items():
        pair = isinstance(times, tuple | list) and len(times) == 2
        if not (pair and all(is_number(seconds, 0) for seconds in times)):
            raise PlanError(
                "expected are two times of 0 s or more, how long a task runs and when its output "
                "is there",
                f"those of {task!r} are {shortened(times)}",
            )


def _check_workers(plan: Plan, conditions: Conditions) -> None:
    for worker, resources in plan.workers.items():
        if not (isinstance(worker, str) and 0 < len(worker) <= _LONGEST and worker.isprintable()):
            raise PlanError(
                f"a worker's id has 1 to {_LONGEST} printable characters", f"there is {worker!r}"
            )
        if worker == CLIENT:
            raise PlanError(
                f"no worker is called {CLIENT!r}, for so is whoever waits for the run",
                f"task {_first(plan, worker)!r} is placed there",
            )
        if not conditions.offers(resources):
            raise PlanError(
                f"workers have what the platform offers, at most {conditions.memory_mb} MB",
                f"task {_first(plan, worker)!r} on {worker} is to have {resources}",
            )
    free = [task for task, placement in plan.placements.items() if placement.worker is None]
    if free and not plan.flexible:
        raise PlanError(
            "either every task has a worker or none has",
            f"{len(free)} of {len(plan.placements)} have none, {free[0]!r} among them",
        )
    together = min(conditions.workers, conditions.pool().capacity)
    if plan.linger is None and len(plan.workers) > together:
        raise PlanError(
            "workers that never park can all be at work at once",
            f"{len(plan.workers)} are planned and {together} can: give the plan a `linger`, or "
            "raise `workers`",
        )


def _check_placement(plan: Plan, task: TaskId, conditions: Conditions) -> None:
    placement, asked = plan.placements[task], plan.workflow.resources(task)
    has = placement.resources
    if not isinstance(has, Resources):
        raise PlanError(
            "a worker has Resources(memory_mb=…)",
            f"task {task!r} on {placement.worker} is to have {has!r}",
        )
    if asked and (has.memory_mb < asked.memory_mb or has.cpu_share < asked.cpu_share):
        raise PlanError(
            "a task has at least the resources that it asks for",
            f"{task!r} asks for {asked}, and {placement.worker} has {has}",
        )
    if placement.prewarm != ():
        _check_prewarms(placement.prewarm, task, conditions)


def _check_prewarms(prewarms: object, task: TaskId, conditions: Conditions) -> None:
    if not isinstance(prewarms, tuple):
        raise PlanError("`prewarm` is a tuple", f"that of {task!r} is {shortened(prewarms)}")
    for prewarm in prewarms:
        if not (isinstance(prewarm, Prewarm) and isinstance(prewarm.resources, Resources)):
            raise PlanError(
                "sandboxes are warmed with Prewarm(Resources(memory_mb=…))",
                f"{task!r} has {prewarm!r}",
            )
        if not (is_number(prewarm.delay, 0) and is_whole(prewarm.count, 1)):
            raise PlanError(
                "one sandbox or more is warmed after its task began",
                f"{task!r} is to warm {prewarm.count!r} after {prewarm.delay!r} s",
            )
        if not conditions.offers(prewarm.resources):
            raise PlanError(
                f"sandboxes have what the platform offers, at most {conditions.memory_mb} MB",
                f"{task!r} is to warm one of {prewarm.resources}",
            )


def _first(plan: Plan, worker: WorkerId) -> TaskId:
    return next(task for task, found in plan.placements.items() if found.worker == worker)


class Stopwatch:
    """Tells when the time for planning is over.

    It is over when what is left is less than the longest time between two looks at it so far, so
    that the next step doesn't end too late.
    """

    def __init__(self, seconds: float | None) -> None:
        self._looked = time.monotonic()
        self._until = None if seconds is None else self._looked + seconds
        self._longest = 0.0

    def skip(self) -> None:
        """What was done since the last look was no step like those to come."""
        self._looked = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        now = time.monotonic()
        self._longest = max(self._longest, now - self._looked)
        self._looked = now
        return self._until is not None and now + self._longest >= self._until


class Planner(Protocol):
    """Decides which worker runs which task, and with what."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """A plan for a workflow under these conditions."""
        ...


class Optimization(Protocol):
    """Refines a plan."""

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """A plan that isn't worse; `costs` are those that its planner plans with."""
        ...

    def force(
        self, plan: Plan, tasks: Sequence[TaskId], conditions: Conditions, costs: Costs
    ) -> Plan:
        """The plan with this optimization for tasks that insist on it."""
        return self.apply(plan, conditions, costs)
