"""Compare Auto with the optimum of small graphs, or with a proven bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from quality.contest import Contestant, Terms, planned
from quality.costs import costs_at
from quality.graphs import graph
from quality.optimum import bounded
from quality.planners import OURS
from quality.polish import polished
from quality.shapes import Shape, generate
from quality.tables import aligned, rounded
from shoal.execution.plan import Plan
from shoal.execution.simulator import makespan_of, simulate

FEWEST, MOST = 20, 60
"""The tasks of a graph."""

SIMULATIONS = 2000
"""How many plans polishing simulates, which takes seconds."""

TOLERANCE = 1e-3
"""The relative difference between a plan and the bound below which the plan is optimal."""


@dataclass(frozen=True, slots=True)
class BoundedCase:
    """A small graph with Auto's plan, the best plan that is known, and a bound."""

    shape: str
    tasks: int
    ccr: float
    workers: int
    auto: float
    """The makespan of Auto's plan."""
    planning: float
    """How many seconds Auto planned."""
    best: float
    """The shortest makespan of Auto's plan, the solver's, and what polishing makes of them."""
    bound: float
    """No plan's makespan is below it."""
    solving: float
    """How many seconds the solver took."""

    @property
    def proven(self) -> bool:
        """Whether the best plan is optimal."""
        return self.best <= self.bound * (1 + TOLERANCE)

    @property
    def over_best(self) -> float:
        """How much longer Auto's plan is than the best, as a fraction."""
        return self.auto / self.best - 1

    @property
    def over_bound(self) -> float:
        """How much longer Auto's plan is than the bound at most, as a fraction."""
        return self.auto / self.bound - 1


def small_graphs(kinds: Sequence[str], recipes: Sequence[str], seed: int) -> Iterator[Shape]:
    """Generate the kinds, and the recipes that have so small a graph."""
    for kind in kinds:
        yield graph(kind, seed, small=True)
    for recipe in recipes:
        shape = generate(recipe, FEWEST, seed)
        if len(shape.workflow) <= MOST:
            yield shape


def contend_bound(shape: Shape, ccr: float, terms: Terms, seconds: float) -> BoundedCase:
    """Plan a graph with Auto, then have the solver look for better plans and a bound.

    Raises:
        AssertionError: A plan is better than the bound, so the model is wrong.
    """
    costs = costs_at(shape, ccr)

    def makespan(plan: Plan) -> float:
        return makespan_of(plan, costs, terms.pool())

    auto, planning = planned(Contestant("auto", OURS["auto"]), shape, costs, terms)
    known = polished(auto, terms.workers, SIMULATIONS, makespan)
    timeline = simulate(known, costs, terms.pool())
    answer = bounded(shape.workflow, costs, terms.workers, timeline, seconds)
    plans = [plan for schedule in answer.schedules for plan in schedule.plans(shape.workflow)]
    solved = polished(min([known, *plans], key=makespan), terms.workers, SIMULATIONS, makespan)
    best = min(makespan(auto), makespan(solved))
    assert best >= answer.bound * (1 - 1e-9), f"{best} is below the bound {answer.bound}"
    case = (shape.name, len(shape.workflow), ccr, terms.workers)
    return BoundedCase(*case, makespan(auto), planning, best, answer.bound, answer.seconds)


def distance_table(cases: Sequence[BoundedCase]) -> str:
    """Return a row for each case, then means."""
    head = ["graph", "tasks", "ccr", "workers", "auto", "best", "bound"]
    head += ["over best", "over bound", "optimum", "planning", "solving"]
    rows = [
        [
            *(case.shape, str(case.tasks), f"{case.ccr:g}", str(case.workers)),
            *(rounded(case.auto), rounded(case.best), rounded(case.bound)),
            *(_percent(case.over_best), _percent(case.over_bound)),
            *("proven" if case.proven else "", f"{case.planning:.2f}", f"{case.solving:.0f}"),
        ]
        for case in cases
    ]
    title = (
        "Small graphs: seconds with Auto, with the best plan known, and a bound that no plan beats"
    )
    return "\n".join([title, aligned([head, *rows]), "", *_summary(cases)])


def _summary(cases: Sequence[BoundedCase]) -> Iterator[str]:
    proven = [case for case in cases if case.proven]
    yield f"The optimum is proven in {len(proven)} of {len(cases)} cases"
    for name, some in (("in these", proven), ("in all", cases)):
        if some:
            yield f"Auto {name}: {_far(some)}"
    for ccr in sorted({case.ccr for case in cases}):
        some = [case for case in cases if case.ccr == ccr]
        yield f"  ccr {ccr:g}: {_far(some)}; {sum(case.proven for case in some)} proven"
    planning = [case.planning for case in cases]
    yield f"seconds to plan with Auto: median {median(planning):.2f}, at most {max(planning):.2f}"


def _far(cases: Sequence[BoundedCase]) -> str:
    best = [case.over_best for case in cases]
    bound = [case.over_bound for case in cases]
    return (
        f"{_percent(mean(best))} over the best plan known on average, {_percent(max(best))} at "
        f"worst; {_percent(mean(bound))} over the bound, {_percent(max(bound))} at worst"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
