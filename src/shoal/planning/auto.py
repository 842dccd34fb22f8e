"""`AutoPlanner`: the default. It searches plans with the simulator (see `search`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.execution.plan import Plan
from shoal.planning.arguments import (
    check,
    check_sla,
    configurations,
    is_number,
    optimizations_of,
)
from shoal.planning.base import Conditions, Optimization
from shoal.planning.preview import DEFAULT_PRICES
from shoal.planning.spread import SpreadPlanner
from shoal.types import SLA, Resources
from shoal.workflow import Workflow

if TYPE_CHECKING:
    from shoal.planning.prices import Prices


class AutoPlanner:
    """Finds a plan for a goal: the fastest without waste, or within a deadline or a budget."""

    def __init__(
        self,
        resources: Sequence[Resources] | None = None,
        *,
        deadline: float | None = None,
        budget: float | None = None,
        thrift: float = 0.02,
        sla: SLA = "median",
        seconds: float | None = None,
        optimizations: Sequence[Optimization | type[Optimization]] | None = None,
        prices: str | Prices = DEFAULT_PRICES,
    ) -> None:
        """Set it up.

        Args:
            resources: The configurations that workers may have; default: what the settings say.
            deadline: Seconds that the run may take at the service level: the cheapest such plan.
            budget: US dollars that the run may cost: the fastest such plan.
            thrift: Without either: by what share a plan may be slower than the fastest one if it
                is cheaper; 0: the fastest, whatever it costs.
            sla: How careful the predictions are that it plans with.
            seconds: How long planning may take; default: a twentieth of the predicted makespan.
            optimizations: What may refine the plan, each where it helps; default: pre-loading and
                pre-warming.
            prices: What the platform charges: the name of a platform, or prices.
        """
        for name, value in (("deadline", deadline), ("budget", budget), ("seconds", seconds)):
            fits = value is None or (is_number(value) and value > 0)
            check(fits, f"AutoPlanner({name}={value!r})", "a number greater than 0")
        if deadline is not None and budget is not None:
            raise UsageError("AutoPlanner: give a deadline or a budget, not both.")
        check(
            is_number(thrift, 0), f"AutoPlanner(thrift={thrift!r})", "a share from 0, such as 0.02"
        )
        check_sla(sla, f"AutoPlanner(sla={sla!r})")
        self.resources = None if resources is None else configurations(resources, "AutoPlanner")
        self.deadline = deadline
        self.budget = budget
        self.thrift = thrift
        self.sla = sla
        self.seconds = seconds
        self.optimizations = (
            None if optimizations is None else optimizations_of(optimizations, "AutoPlanner")
        )
        self.prices = prices

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """The best plan that was found in time; without history, an even spread."""
        unknown = conditions.predictions.basis == "no history"
        if unknown and self.resources is None:
            plan = SpreadPlanner(sla=self.sla).plan(workflow, conditions)
            return self._unsure(plan, conditions, "there is no history yet")
        from shoal.planning.prices import prices_of
        from shoal.planning.search import OPTIMIZATIONS, Goal, Search

        optimizations = OPTIMIZATIONS if self.optimizations is None else self.optimizations
        goal = Goal(self.resources, self.deadline, self.budget, self.thrift, self.sla,
                    self.seconds, optimizations, prices_of(self.prices))  # fmt: skip
        search = Search(goal, workflow, conditions)
        plan = search.best()
        if unknown:
            return replace(plan, unmet=self._hopeless(conditions))
        if search.scored:
            return plan
        return self._unsure(plan, conditions, "to simulate it takes longer than planning may")

    def _unsure(self, plan: Plan, conditions: Conditions, why: str) -> Plan:
        """The plan, saying that it wasn't held against the goal, or that no plan reaches it."""
        if self.deadline is None and self.budget is None:
            return plan
        goal = f"${self.budget:g}" if self.deadline is None else f"{self.deadline:g} s"
        unmet = self._hopeless(conditions)
        note = unmet or f"nobody knows whether it keeps to {goal}: {why}"
        return replace(plan, notes=(*plan.notes, note), unmet=unmet)

    def _hopeless(self, conditions: Conditions) -> str:
        """Why no run reaches the goal, however little its tasks take; empty: one may."""
        from shoal.planning.prices import prices_of

        costs, resources = conditions.predictions.at(self.sla), conditions.resources
        seconds = costs.launch() + costs.startup(resources, warm=True) + costs.coordination()
        if self.deadline is not None and self.deadline < seconds:
            without = f"without any task a run takes about {seconds:.2g} s"
            return f"no plan meets the deadline of {self.deadline:g} s: {without}"
        price = prices_of(self.prices).invocation
        if self.budget is not None and self.budget < price:
            return f"no plan is within the budget of ${self.budget:g}: one worker costs ${price:g}"
        return ""
