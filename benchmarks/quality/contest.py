"""Run a contest: each contestant plans a case, and Shoal's simulator scores the plan."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from types import FrameType

from quality.bounds import lower_bound
from quality.costs import FixedCosts, costs_at
from quality.shapes import Shape
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import simulate
from shoal.experiments.schedulers import NoPlanError
from shoal.planning.base import Conditions, Planner
from shoal.planning.prices import gb_seconds
from shoal.types import MB_PER_CPU, Resources

RESOURCES = Resources(memory_mb=MB_PER_CPU)
"""The resources of every worker: one slot."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A named planner."""

    name: str
    make: Callable[[], Planner]
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a contestant's plan."""

    makespan: float
    gb_seconds: float
    planning: float
    """How many seconds planning took."""


@dataclass(slots=True)
class Case:
    """A shape at a ratio of communication to computation, with each contestant's score."""

    shape: str
    tasks: int
    edges: int
    ccr: float
    workers: int
    lower_bound: float
    scores: dict[str, Score] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a contestant has no score."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The rules of all cases."""

    workers: int
    seconds: float | None
    """How long Shoal's planners may plan; None lets them choose."""
    limit: float
    """CPU seconds, unaffected by other load, after which a contestant is stopped."""

    def conditions(self, costs: FixedCosts) -> Conditions:
        """Return the conditions that a contestant plans for."""
        return Conditions(costs, self.workers, RESOURCES, self.pool, self.seconds)

    def pool(self) -> WarmPool[Resources]:
        """Create a pool for the allowed number of workers; further ones wait."""
        return WarmPool(capacity=self.workers)


class OverLimitError(NoPlanError):
    """Planning took too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"takes over {seconds:g} s")


def contend(
    shape: Shape,
    ccr: float,
    contestants: Sequence[Contestant],
    barred: dict[str, str],
    terms: Terms,
) -> Case:
    """Score all contestants; one that exceeds the limit is excluded from then on."""
    costs = costs_at(shape, ccr)
    bound = lower_bound(shape.workflow, costs, terms.workers, RESOURCES)
    size = len(shape.workflow), len(shape.edges)
    case = Case(shape.name, *size, ccr, terms.workers, bound)
    for contestant in contestants:
        name = contestant.name
        if name in barred:
            case.missing[name] = barred[name]
            continue
        try:
            case.scores[name] = score(contestant, shape, costs, terms)
        except OverLimitError as error:
            barred[name] = case.missing[name] = f"{error} on {shape.name}"
        except NoPlanError as error:
            case.missing[name] = str(error)
        except Exception as error:
            if contestant.ours:
                raise
            # The report shows whatever a third-party scheduler raises.
            case.missing[name] = f"raises {type(error).__name__}"
    return case


def score(contestant: Contestant, shape: Shape, costs: FixedCosts, terms: Terms) -> Score:
    """Plan and simulate a case.

    Raises:
        OverLimitError: Planning took too long.
    """
    plan, planning = planned(contestant, shape, costs, terms)
    return Score(*simulated(plan, costs, terms), planning)


def planned(
    contestant: Contestant, shape: Shape, costs: FixedCosts, terms: Terms
) -> tuple[Plan, float]:
    """Return a contestant's plan of a case, and how many seconds planning took.

    Raises:
        OverLimitError: Planning took too long.
    """
    planner = contestant.make()
    with _at_most(terms.limit):
        start = perf_counter()
        plan = planner.plan(shape.workflow, terms.conditions(costs))
        return plan, perf_counter() - start


def simulated(plan: Plan, costs: FixedCosts, terms: Terms) -> tuple[float, float]:
    """Return a plan's makespan and GB-seconds."""
    timeline = simulate(plan, costs, terms.pool())
    return timeline.makespan, gb_seconds(plan, timeline)


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise OverLimitError(seconds)

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
