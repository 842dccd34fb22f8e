"""`Planner` and `Optimization`: what turns a workflow into a plan, and what refines a plan.

Both are pure: the same workflow and conditions give the same plan. They score plans with
`Conditions.simulate`, which runs the very machines that workers run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal.execution.costs import Costs, Predictions
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import simulate
from shoal.execution.timeline import Timeline
from shoal.types import Resources
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
