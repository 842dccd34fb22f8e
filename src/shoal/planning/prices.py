"""Compute what a run costs from a platform's prices for GB-seconds and invocations."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import UsageError, suggestion
from shoal.execution.plan import Plan
from shoal.execution.timeline import STARTS, Timeline


@dataclass(frozen=True, slots=True)
class Prices:
    """A platform's prices, in US dollars."""

    platform: str
    gb_second: float
    invocation: float

    @property
    def free(self) -> bool:
        """Whether nothing is charged, or no price is known."""
        return not (self.gb_second or self.invocation)


PRICES = {
    "aws-lambda": Prices("AWS Lambda, x86, us-east-1", 0.0000166667, 0.0000002),
    "aws-lambda-arm": Prices("AWS Lambda, Arm, us-east-1", 0.0000133334, 0.0000002),
    "none": Prices("no price list", 0.0, 0.0),
}
"""The prices of known platforms; AWS's are its published first-tier prices."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The resources that a run uses, and their price."""

    gb_seconds: float
    invocations: int
    cold_starts: int
    nbytes: int
    """The bytes saved and fetched."""
    price: float
    """The price in US dollars."""


def prices_of(name: str | Prices) -> Prices:
    """Return the prices of a platform by its name; `Prices` are returned as they are."""
    if isinstance(name, Prices):
        return name
    if name not in PRICES:
        raise UsageError(f"There are no prices for {name!r}; {suggestion(name, list(PRICES))}")
    return PRICES[name]


def gb_seconds(plan: Plan, timeline: Timeline) -> float:
    """Return the GB-seconds used, from each invocation of a worker until its exit."""
    return sum(
        resources.memory_mb / 1024 * (end - begin)
        for worker, lives in timeline.lives.items()
        if (resources := plan.resources_of(worker)) is not None
        for begin, end in lives
    )


def cost_of(plan: Plan, timeline: Timeline, prices: Prices) -> Cost:
    """Return what a run with this timeline costs."""
    held = gb_seconds(plan, timeline)
    invocations = len(timeline.of_kind(*STARTS))
    return Cost(
        gb_seconds=held,
        invocations=invocations,
        cold_starts=len(timeline.of_kind("cold start")),
        nbytes=sum(span.nbytes for span in timeline.of_kind("fetch", "save")),
        price=held * prices.gb_second + invocations * prices.invocation,
    )
