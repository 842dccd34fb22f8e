"""Choose among the plans that a search has scored, by the goal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.planning.base import Optimization
from shoal.planning.preview import Preview
from shoal.planning.prices import Prices
from shoal.planning.scoring import Scored, Scores
from shoal.types import SLA, Resources

_CHECKING_SECONDS = 0.2
"""The seconds spent on checking whether a plan meets a deadline."""


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

    @property
    def plain(self) -> bool:
        """Whether the fastest plan is wanted, with neither a deadline nor a budget."""
        return self.deadline is None and self.budget is None


def chosen(goal: Goal, scores: Scores) -> Scored:
    """Return the best plan for the goal."""
    if goal.deadline is not None:
        return _in_time(goal.deadline, goal, scores)
    if goal.budget is not None:
        return _within(goal.budget, scores)
    fastest = scores.fastest
    bound = min([scored.makespan for scored in scores.shipped], default=fastest.makespan)
    limit = max(fastest.makespan, min(fastest.makespan * (1 + goal.thrift), bound))
    good = [scored for scored in scores.all if scored.makespan <= limit]
    return min(good, key=lambda s: (s.gb_seconds, s.makespan))


def _within(budget: float, scores: Scores) -> Scored:
    """Return the fastest plan that is cheap enough, else the cheapest."""
    within = [scored for scored in scores.all if scored.price <= budget]
    if within:
        return min(within, key=lambda s: (s.makespan, s.price, s.gb_seconds))
    cheapest = min(scores.all, key=lambda s: (s.price, s.makespan))
    return _noted(
        cheapest,
        f"no plan was found within the budget of ${budget:g}: this one is the cheapest, at "
        f"${cheapest.price:.3g}",
    )


def _in_time(deadline: float, goal: Goal, scores: Scores) -> Scored:
    """Return the cheapest plan whose makespan at the service level meets the deadline.

    Only plans that are faster than all cheaper ones matter, so the first that meets the deadline is
    found by bisection.
    """

    def promised(scored: Scored) -> float:
        preview = Preview(scored.plan, scores.conditions, goal.sla)
        return preview.predicted(_CHECKING_SECONDS)

    front: list[Scored] = []
    for scored in sorted(scores.all, key=lambda s: (s.price, s.gb_seconds, s.makespan)):
        if not front or scored.makespan < front[-1].makespan:
            front.append(scored)
    first = bisect_left(front, True, key=lambda scored: promised(scored) <= deadline)
    if first < len(front):
        return front[first]
    return _noted(
        scores.fastest,
        f"no plan was found that meets the deadline of {deadline:g} s: this one is the fastest, "
        f"at {promised(scores.fastest):.3g} s",
    )


def _noted(scored: Scored, note: str) -> Scored:
    return replace(scored, plan=replace(scored.plan, notes=(note,), unmet=note))
