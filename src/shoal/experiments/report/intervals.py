"""Compute bootstrap confidence intervals of statistics of runs; pure.

1. Each group of runs (the repeats of one configuration) is resampled with replacement, as often as
   it has runs, and the statistic is computed again, 1,000 times. Workflows and SLAs are chosen, not
   drawn, so they are the same in every resample.
2. The interval is that between the percentiles 2.5 and 97.5 of these statistics.
3. The same runs always give the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite, nan
from random import Random
from statistics import median

RESAMPLES = 1000
TAIL = 0.025
"""The share of resamples beyond each end of an interval."""
FEWEST = 5
"""How many runs a configuration needs for an interval; with fewer, resamples are too much alike."""

Groups = Sequence[Sequence[float]]
"""The values of each configuration's runs."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its confidence interval."""

    value: float
    low: float = nan
    high: float = nan

    @property
    def known(self) -> bool:
        """Whether there are enough runs for the interval."""
        return isfinite(self.low) and isfinite(self.high)


def estimate(groups: Groups, statistic: Callable[[Groups], float]) -> Estimate:
    """Compute a statistic of groups of values, with its confidence interval."""
    value = statistic(groups)
    if min(map(len, groups)) < FEWEST:
        return Estimate(value)
    rng = Random(0)
    found = sorted(
        statistic([rng.choices(group, k=len(group)) for group in groups]) for _ in range(RESAMPLES)
    )
    cut = round(TAIL * RESAMPLES)
    return Estimate(value, found[cut], found[-1 - cut])


def pooled_median(groups: Groups) -> float:
    """Return the median over all groups."""
    return median(chain.from_iterable(groups))


def percentage(found: Estimate) -> str:
    """Describe a share with its interval, such as `7.2 % (6.9 to 7.6 %)`."""
    within = f" ({100 * found.low:.1f} to {100 * found.high:.1f} %)" if found.known else ""
    return f"{100 * found.value:.1f} %{within}"
