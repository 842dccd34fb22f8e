"""`Planner` and `Optimization`: what turns a workflow into a plan, and what refines a plan.

Both are pure: the same workflow and conditions give the same plan. They score plans with
`Conditions.simulate`, which runs the very machines that workers run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import PlanError
from shoal.execution.costs import Costs, Predictions
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import simulate
from shoal.execution.timeline import Timeline
from shoal.types import Resources, TaskId
from shoal.workflow import Workflow


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

    def simulate(self, plan: Plan, costs: Costs) -> Timeline:
        """The timeline that a plan is predicted to have."""
        return simulate(plan, costs, self.pool())


def validated(plan: Plan, workflow: Workflow, conditions: Conditions) -> Plan:
    """The plan, if it can be carried out; what it breaks is named."""
    if not isinstance(plan, Plan):
        raise PlanError("a planner returns a Plan", f"this one returned {type(plan).__name__}")
    unknown = [task for task in plan.placements if task not in workflow.calls]
    if unknown:
        raise PlanError("a plan has only the workflow's tasks", f"{unknown[0]!r} isn't one")
    missing = [task for task in workflow.calls if task not in plan.placements]
    if missing:
        raise PlanError(
            "each task has one placement", f"{len(missing)} have none, {missing[0]!r} among them"
        )
    free = [task for task, placement in plan.placements.items() if placement.worker is None]
    if free and not plan.flexible:
        raise PlanError(
            "either every task has a worker or none has",
            f"{len(free)} of {len(plan.placements)} have none, {free[0]!r} among them",
        )
    capacity = conditions.pool().capacity
    if plan.linger is None and len(plan.workers) > capacity:
        raise PlanError(
            "workers that never park fit into the platform together",
            f"{len(plan.workers)} are planned and {capacity} fit: give the plan a `linger`",
        )
    if plan.ranks is not None:
        unranked = [task for task in workflow.calls if task not in plan.ranks]
        if unranked:
            raise PlanError("a plan with ranks ranks every task", f"{unranked[0]!r} has none")
    return plan


class Stopwatch:
    """Tells when the time for planning is over.

    It is over when what is left is less than the longest time between two looks at it so far, so
    that the next step doesn't end too late.
    """

    def __init__(self, seconds: float | None) -> None:
        self._looked = time.monotonic()
        self._until = None if seconds is None else self._looked + seconds
        self._longest = 0.0

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
