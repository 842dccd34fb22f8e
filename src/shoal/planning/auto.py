"""Define `AutoPlanner`, the default planner, which searches plans with the simulator."""

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
from shoal.planning.spread import SpreadPlanner
from shoal.types import SLA, Resources
from shoal.workflow import Workflow

if TYPE_CHECKING:
    from shoal.planning.prices import Prices


class AutoPlanner:
    """Finds the plan that suits a goal: speed without waste, a deadline or a budget."""

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
        prices: str | Prices | None = None,
    ) -> None:
        """Create the planner.

        Args:
            resources: The configurations that workers may have; default: that of the settings.
            deadline: The seconds that the run may take at the service level. The planner chooses
                the cheapest such plan.
            budget: The US dollars that the run may cost. The planner chooses the fastest such plan.
            thrift: Without a deadline or a budget, how much slower than the fastest plan a cheaper
                one may be, as a fraction; 0 chooses the fastest plan, whatever it costs.
            sla: How conservative predictions are.
            seconds: How long planning may take; default: 5 % of the predicted makespan.
            optimizations: The optimizations to try; default: pre-loading and pre-warming.
            prices: What the platform charges: the name of a price list, or `Prices`; default: as
                set, or the platform's own.
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
        """Return the best plan found in time; without history, spread tasks evenly."""
        unknown = conditions.predictions.basis == "no history"
        if unknown and self.resources is None:
            plan = SpreadPlanner(sla=self.sla).plan(workflow, conditions)
            return self._unsure(plan, conditions, "there is no history yet")
        from shoal.planning.finalists import Goal
        from shoal.planning.optimizations import PreLoadOptimization, PreWarmOptimization
        from shoal.planning.search import Search

        default = (PreLoadOptimization, PreWarmOptimization)
        optimizations = default if self.optimizations is None else self.optimizations
        goal = Goal(self.resources, self.deadline, self.budget, self.thrift, self.sla,
                    self.seconds, optimizations, self._charged(conditions))  # fmt: skip
        search = Search(goal, workflow, conditions)
        plan = search.best()
        if unknown:
            return replace(plan, unmet=self._hopeless(conditions))
        if search.simulated:
            return plan
        return self._unsure(plan, conditions, "simulating it takes longer than planning may")

    def _unsure(self, plan: Plan, conditions: Conditions, why: str) -> Plan:
        """Add a note that the plan was not checked against the goal, or can't reach it."""
        if self.deadline is None and self.budget is None:
            return plan
        goal = f"${self.budget:g}" if self.deadline is None else f"{self.deadline:g} s"
        unmet = self._hopeless(conditions)
        note = unmet or f"not checked against the goal of {goal}: {why}"
        return replace(plan, notes=(*plan.notes, note), unmet=unmet)

    def _charged(self, conditions: Conditions) -> Prices:
        from shoal.planning.prices import prices_of

        return prices_of(conditions.prices if self.prices is None else self.prices)

    def _hopeless(self, conditions: Conditions) -> str:
        """Say why no run can reach the goal, even with no tasks; empty if one may."""
        costs, resources = conditions.predictions.at(self.sla), conditions.resources
        seconds = costs.launch() + costs.startup(resources, warm=True) + costs.coordination()
        if self.deadline is not None and self.deadline < seconds:
            without = f"even an empty run takes about {seconds:.2g} s"
            return f"no plan meets the deadline of {self.deadline:g} s: {without}"
        price = self._charged(conditions).invocation
        if self.budget is not None and self.budget < price:
            return f"no plan is within the budget of ${self.budget:g}: one worker costs ${price:g}"
        return ""
