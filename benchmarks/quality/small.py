"""Compare planners on workflows so small that every plan can be tried.

Two yardsticks: saga's brute force, whose best schedule in its own model is simulated here like any
other plan, and the best makespan that any plan has in Shoal's simulator. They differ because a
worker here moves one output at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from quality.contest import RESOURCES, Contestant, Score, Terms, score, simulated
from quality.costs import FixedCosts, costs_at
from quality.shapes import Shape, random_shape
from shoal.execution.plan import Placement, Plan
from shoal.experiments.schedulers import BRUTE_FORCE, SagaPlanner
from shoal.types import TaskId, WorkerId
from shoal.workflow import Workflow

SMALLEST, SPAN = 6, 5
"""The fewest tasks, and the number of sizes."""

SCHEDULES = 30_000
"""The most schedules for brute force, which tries 5,000 to 10,000 per second."""

FEWEST_ORDERS = 8
"""The fewest orders of tasks; with fewer, a shape is hardly more than a chain."""


@dataclass(slots=True)
class SmallCase:
    """A small shape with its yardsticks and each contestant's score."""

    shape: str
    ccr: float
    workers: int
    brute_force: float
    optimum: float
    scores: dict[str, Score] = field(default_factory=dict)


def small_shapes(number: int, seed: int) -> Iterator[tuple[Shape, int]]:
    """Generate random shapes for two and three workers in turn, small enough for brute force."""
    found = (
        (random_shape(SMALLEST + step // 2 % SPAN, seed + step), 2 + step % 2) for step in count()
    )
    return islice((each for each in found if _fits(*each)), number)


def _fits(shape: Shape, workers: int) -> bool:
    number = sum(1 for _ in orders(shape.workflow))
    return number >= FEWEST_ORDERS and number * workers ** len(shape.workflow) <= SCHEDULES


def contend_small(
    shape: Shape, ccr: float, contestants: Sequence[Contestant], workers: int, terms: Terms
) -> SmallCase:
    """Score all contestants that have a plan, and the yardsticks."""
    terms = replace(terms, workers=workers)
    costs = costs_at(shape, ccr)
    brute = score(Contestant("brute force", lambda: SagaPlanner(BRUTE_FORCE)), shape, costs, terms)
    case = SmallCase(
        shape.name, ccr, workers, brute.makespan, optimum(shape.workflow, costs, terms)
    )
    for contestant in contestants:
        try:
            case.scores[contestant.name] = score(contestant, shape, costs, terms)
        except Exception:  # noqa: BLE001 - the main part of the report says why
            continue
    return case


def optimum(workflow: Workflow, costs: FixedCosts, terms: Terms) -> float:
    """Return the shortest makespan over all placements and orders, without duplicates."""
    ranked = [{task: rank for rank, task in enumerate(order)} for order in orders(workflow)]
    return min(
        simulated(Plan(workflow, placements, linger=None, ranks=ranks), costs, terms)[0]
        for places in _places(len(workflow), terms.workers)
        for placements in [dict(zip(workflow.calls, map(_placement, places), strict=True))]
        for ranks in ranked
    )


def _placement(worker: int) -> Placement:
    return Placement(WorkerId(f"w{worker}"), RESOURCES)


def _places(tasks: int, workers: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to distribute tasks among identical workers."""
    if not tasks:
        yield ()
        return
    for places in _places(tasks - 1, workers):
        for worker in range(min(workers, max(places, default=-1) + 2)):
            yield (*places, worker)


def orders(workflow: Workflow, begun: tuple[TaskId, ...] = ()) -> Iterator[tuple[TaskId, ...]]:
    """Yield every topological order of a workflow's tasks."""
    if len(begun) == len(workflow):
        yield begun
    for task, sources in workflow.upstream.items():
        if task not in begun and all(source in begun for source in sources):
            yield from orders(workflow, (*begun, task))
