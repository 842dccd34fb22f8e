"""Choose among the plans that a search has scored, by the goal.

1. A run is promised the percentile of makespans with drawn costs. In a simulation in which every
   cost is the median, a wide plan looks too good: of many starts and tasks, some are late. So a few
   plans that differ much, the finalists, are simulated with the same drawn costs.
2. Without time for several draws, or if predictions are certain, the first simulation decides.
3. The chosen plan is promised no more than the other planners' best one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter

from shoal.planning.base import Optimization
from shoal.planning.preview import Preview, level_of
from shoal.planning.prices import Prices
from shoal.planning.scoring import Scored, Scores
from shoal.types import SLA, Resources

_MOST_FINALISTS = 6
_MOST_DRAWS = 20
_FEWEST_DRAWS = 4
_DRAWING = 2.0
"""Roughly how many times as long a simulation takes if its costs have to be drawn."""
_SLOWER = 1.5
"""The ratio to the fastest plan up to which a cheaper plan may become a finalist."""
_CHEAPER = 0.8
"""The ratio of GB-seconds from one finalist to the next."""
_CHECKING_SECONDS = 0.2
"""The seconds spent on checking whether a plan meets a deadline."""
_speed = attrgetter("makespan", "gb_seconds")


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


def chosen(goal: Goal, scores: Scores, seconds: float) -> Scored:
    """Return the best plan for the goal; draw costs for about so many seconds."""
    if goal.deadline is not None:
        return _in_time(goal.deadline, goal, scores)
    if goal.budget is not None:
        return _within(goal.budget, scores)
    promises = _promises(goal, scores, seconds)
    fastest = min(promises.values())
    bound = min([promises[i] for i in map(id, scores.shipped) if i in promises], default=fastest)
    limit = max(fastest, min(fastest * (1 + goal.thrift), bound))
    good = [scored for scored in scores.all if promises.get(id(scored), inf) <= limit]
    return min(good, key=lambda s: (s.gb_seconds, promises[id(s)]))


def _promises(goal: Goal, scores: Scores, seconds: float) -> dict[int, float]:
    """Return the makespans to compare, by the identity of each plan that may be chosen."""
    usual = {id(scored): scored.makespan for scored in scores.all}
    seconds /= _DRAWING
    finalists = _affordable(_finalists(scores, goal.thrift), seconds / _FEWEST_DRAWS)
    if len(finalists) < 2:
        return usual
    draws = min(_MOST_DRAWS, int(seconds / _effort(finalists)))
    drawn: list[list[float]] = [[] for _ in finalists]
    for seed in range(draws):
        costs = scores.conditions.predictions.sampled(seed)
        for scored, found in zip(finalists, drawn, strict=True):
            found.append(scores.conditions.makespan(scored.plan, costs))
        if seed == 1 and all(
            found == [scored.makespan] * 2 for scored, found in zip(finalists, drawn, strict=True)
        ):
            return usual
    p = 50.0 if goal.sla == "median" else goal.sla.p
    pairs = zip(finalists, drawn, strict=True)
    return {id(scored): level_of(sorted(found), p) for scored, found in pairs}


def _finalists(scores: Scores, thrift: float) -> list[Scored]:
    """Return the fastest plan of each kind, and much cheaper plans that aren't much slower."""
    fastest = scores.fastest
    near = [scored for scored in scores.all if scored.makespan <= fastest.makespan * (1 + thrift)]
    cheap = min(near, key=attrgetter("gb_seconds", "makespan"))
    flexible = [scored for scored in scores.all if scored.plan.flexible]
    kinds = [min(kind, key=_speed) for kind in (flexible, scores.shipped) if kind]
    found = {id(scored): scored for scored in (fastest, cheap, *kinds)}
    for scored in sorted(scores.all, key=_speed):
        if scored.makespan > fastest.makespan * _SLOWER or len(found) == _MOST_FINALISTS:
            break
        if scored.gb_seconds < _CHEAPER * cheap.gb_seconds:
            found[id(scored)] = cheap = scored
    return list(found.values())


def _affordable(finalists: list[Scored], seconds: float) -> list[Scored]:
    """Leave out the plans that take longest to simulate, until one draw takes so many seconds."""
    while len(finalists) > 1 and _effort(finalists) > seconds:
        longest = max(finalists[1:], key=attrgetter("effort"))
        finalists = [scored for scored in finalists if scored is not longest]
    return finalists


def _effort(finalists: Sequence[Scored]) -> float:
    return sum([scored.effort for scored in finalists])


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
