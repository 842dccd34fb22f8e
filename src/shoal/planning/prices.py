"""What platforms charge: memory held for a time, and invocations."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.execution.plan import Plan
from shoal.execution.timeline import STARTS, Timeline


@dataclass(frozen=True, slots=True)
class Prices:
    """A platform's prices, in US dollars."""

    platform: str
    gb_second: float
    invocation: float


PRICES = {
    "aws-lambda": Prices("AWS Lambda, x86, us-east-1", 0.0000166667, 0.0000002),
    "aws-lambda-arm": Prices("AWS Lambda, Arm, us-east-1", 0.0000133334, 0.0000002),
    "none": Prices("no charge", 0.0, 0.0),
}
"""AWS's are those that it publishes for its first tier; other platforms are added here."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run takes of a platform."""

    gb_seconds: float
    invocations: int
    cold_starts: int
    nbytes: int
    """Saved and fetched."""
    price: float
    """In US dollars."""


def prices_of(name: str | Prices) -> Prices:
    """The prices of a platform by its name, or those given."""
    if isinstance(name, Prices):
        return name
    if name not in PRICES:
        raise UsageError(f"There are no prices for {name!r}; there are {', '.join(PRICES)}.")
    return PRICES[name]


def gb_seconds(plan: Plan, timeline: Timeline) -> float:
    """Memory held for a time, from each invocation of a worker until it left."""
    return sum(
        resources.memory_mb / 1024 * (end - begin)
        for worker, lives in timeline.lives.items()
        if (resources := plan.resources_of(worker)) is not None
        for begin, end in lives
    )


def cost_of(plan: Plan, timeline: Timeline, prices: Prices) -> Cost:
    """What a timeline costs."""
    held = gb_seconds(plan, timeline)
    invocations = len(timeline.of_kind(*STARTS))
    return Cost(
        gb_seconds=held,
        invocations=invocations,
        cold_starts=len(timeline.of_kind("cold start")),
        nbytes=sum(span.nbytes for span in timeline.of_kind("fetch", "save")),
        price=held * prices.gb_second + invocations * prices.invocation,
    )
