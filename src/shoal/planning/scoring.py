"""Score candidate plans in the simulator, with every cost at the service level."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.execution.costs import Costs
from shoal.execution.plan import Plan
from shoal.execution.timeline import Timeline
from shoal.planning.base import Conditions
from shoal.planning.prices import Prices, cost_of


@dataclass(frozen=True, slots=True)
class Scored:
    """A plan, and what it does in the simulation."""

    plan: Plan
    makespan: float
    gb_seconds: float
    price: float
    timeline: Timeline
    effort: float
    """The seconds that the simulation counted."""


class Scores:
    """All plans of a search that were simulated and may be chosen."""

    def __init__(self, conditions: Conditions, costs: Costs, prices: Prices, linger: float) -> None:
        """Start without any plan.

        Args:
            conditions: What the plans are made for.
            costs: What everything costs at the service level.
            prices: What the platform charges.
            linger: How long a worker waits for work before it parks, if waiting is preferred.
        """
        self.conditions = conditions
        self.costs = costs
        self.linger = linger
        self.all: list[Scored] = []
        self.shipped: list[Scored] = []
        """The plans of other planners as they are, which the chosen plan must not lose to."""
        self._prices = prices

    def score(self, plan: Plan) -> Scored:
        """Simulate a plan."""
        plan = self.conditions.sized(plan)
        before = self.conditions.effort.seconds
        timeline = self.conditions.simulate(plan, self.costs)
        effort = self.conditions.effort.seconds - before
        cost = cost_of(plan, timeline, self._prices)
        scored = Scored(plan, timeline.makespan, cost.gb_seconds, cost.price, timeline, effort)
        self.all.append(scored)
        return scored

    def score_waiting(self, plan: Plan) -> Scored:
        """Simulate a plan with workers that wait rather than park."""
        if len(plan.workers) > 1:
            plan = replace(plan, linger=self.linger)
        return self.score(plan)

    def drop(self, scored: Scored) -> None:
        """Forget the latest plan, to save memory."""
        if self.all[-1] is scored:
            self.all.pop()

    @property
    def fastest(self) -> Scored:
        """The fastest plan, and the cheapest among equally fast ones."""
        return min(self.all, key=_speed)

    def fastest_placed(self) -> Scored | None:
        """Return the fastest plan that says which worker runs each task."""
        placed = [scored for scored in self.all if not scored.plan.flexible]
        return min(placed, key=_speed, default=None)


def _speed(scored: Scored) -> tuple[float, float]:
    return scored.makespan, scored.gb_seconds
