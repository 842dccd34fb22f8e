"""`Draws`: what a run to come may cost, told by what runs before it have cost.

1. A cost is a level of its own, times the pace of its run, times a deviation. All three are learnt
   as logarithms: what is rare is rather three times as much than so many seconds more.
2. A run has one pace for everything: its tasks are slow together, which no average evens out. That
   of the next run is drawn from what a few runs tell of it, Student's distribution.
3. A task deviates as its namesakes do: the one in a hundred that takes thrice as long is seldom
   among the few times that this very task has run. Of a name that is rare, as all tasks do.
4. A level is known from a few samples only. What the next one may be off for that is drawn too, so
   that as many runs stay within a percentile of the draws as it says.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import exp, log, pi, sqrt
from statistics import NormalDist, fmean, median, stdev
from typing import NamedTuple

from shoal.types import Resources

ENOUGH = 20
"""Deviations that a task shares with its namesakes; with all tasks if those are fewer."""
_ALL = "*"
"""Stands for the tasks of every name."""
_LEAST_FREEDOM = 3
"""Degrees of freedom, for fewer would allow any pace."""
_GOLDEN = (sqrt(5) - 1) / 2
"""Whose multiples fill the unit interval evenly, however many there are."""
_NORMAL = NormalDist()
_ROUNDS = 3
"""Of fitting levels and paces to each other."""
_UNSURE = 2.5
"""By how many variances, divided by the samples, the median of a few misses the next: the median's
own error, and what deviations from it fall short of those from the true level."""
_SMALLEST = 0.1
"""Of what is usual: what cost less, or nothing, counts as that much."""


class Value(NamedTuple):
    """A cost, and which run it comes from."""

    amount: float
    run: int
    """0 is the latest."""
    weight: float = 1.0


Choice = Callable[[list[Value], str], float]
"""Makes one figure of what a cost has been, given whose deviations are like its own."""


class _Spread(NamedTuple):
    """Where a cost lies, in logarithms."""

    level: float
    error: float
    """The standard deviation of what the level may be off."""
    deviations: Sequence[float]
    """Its own."""
    peers: str
    """Whose deviations to draw from instead, unless empty."""


class Draws:
    """Learns levels, paces and deviations."""

    def __init__(self) -> None:
        self._of_task: dict[tuple[str, int, Resources], list[tuple[int, float]]] = {}
        self._paces: dict[int, float] | None = None
        self._pools: dict[str, list[float]] = {}
        self._spreads: dict[int, _Spread | None] = {}
        """By the identity of the list of values, which is kept by whoever made it."""

    def add(self, run: int, name: str, number: int, resources: Resources, seconds: float) -> None:
        """A task has taken so long."""
        if seconds > 0:
            key = (name, number, resources)
            self._of_task.setdefault(key, []).append((run, log(seconds)))

    def of_run(self, seed: int) -> Choice:
        """Draws costs at the pace of one run."""
        rng = random.Random(seed)
        paces = self.paces()
        pace = _next_pace(list(paces.values()), seed)
        spreads = self._spreads
        # How rare the rare ones are isn't known exactly either: each run has its own share of them.
        pools = {name: rng.choices(seen, k=len(seen)) for name, seen in self._pools.items()}

        def choose(values: list[Value], peers: str) -> float:
            key = id(values)
            if key not in spreads:
                spreads[key] = self._spread(values, peers)
            spread = spreads[key]
            if spread is None:
                return 0.0
            deviations = pools[spread.peers] if spread.peers else spread.deviations
            deviation = deviations[int(rng.random() * len(deviations))]
            return exp(spread.level + pace + deviation + rng.gauss(0.0, spread.error))

        return choose

    def paces(self) -> dict[int, float]:
        """How fast each run was, as a logarithm; 0 is as usual."""
        if self._paces is None:
            paces: dict[int, float] = {}
            for _ in range(_ROUNDS):
                found: dict[int, list[float]] = {}
                for seen in self._of_task.values():
                    level = fmean([took - paces.get(run, 0.0) for run, took in seen])
                    for run, took in seen:
                        found.setdefault(run, []).append(took - level)
                paces = {run: median(ratios) for run, ratios in found.items()}
            self._pools = self._pooled(paces)
            self._paces = paces
        return self._paces

    def _pooled(self, paces: dict[int, float]) -> dict[str, list[float]]:
        """How the tasks of each name deviate from their own medians."""
        pools: dict[str, list[float]] = {}
        for (name, _, _), seen in self._of_task.items():
            if len(seen) > 2:
                even = [took - paces[run] for run, took in seen]
                middle = median(even)
                for pool in (name, _ALL):
                    pools.setdefault(pool, []).extend([took - middle for took in even])
        return pools

    def _large_pool(self, peers: str) -> str:
        """The namesakes' deviations if there are enough of them, else those of all tasks."""
        for name in (peers, _ALL) if peers else ():
            if len(self._pools.get(name, ())) >= ENOUGH:
                return name
        return ""

    def _spread(self, values: list[Value], peers: str) -> _Spread | None:
        usual = median([value.amount for value in values])
        if usual <= 0:
            return None
        paces = self.paces()
        logs = sorted(
            (log(max(value.amount, _SMALLEST * usual)) - paces.get(value.run, 0.0), value.weight)
            for value in values
        )
        level = _weighted_median(logs)
        peers = self._large_pool(peers)
        deviations = self._pools[peers] if peers else [amount - level for amount, _ in logs]
        weights = [weight for _, weight in logs]
        count = sum(weights) ** 2 / sum([weight**2 for weight in weights])
        return _Spread(level, _scale(deviations) * sqrt(_UNSURE / count), deviations, peers)


def _weighted_median(rows: Sequence[tuple[float, float]]) -> float:
    """Of amounts in order, with their weights."""
    middles, before = [], 0.0
    for _, weight in rows:
        middles.append(before + weight / 2)
        before += weight
    at = bisect_left(middles, before / 2)
    if at == 0:
        return rows[0][0]
    low, high = rows[at - 1][0], rows[at][0]
    return low + (high - low) * (before / 2 - middles[at - 1]) / (middles[at] - middles[at - 1])


def _scale(deviations: Sequence[float]) -> float:
    """A standard deviation that the rare ones have no part in."""
    if len(deviations) < 3:
        return stdev(deviations) if len(deviations) > 1 else 0.0
    rows = sorted(deviations)
    low, high = (rows[round((len(rows) - 1) * share)] for share in (0.16, 0.84))
    return (high - low) / 2


def _next_pace(paces: list[float], seed: int) -> float:
    """The pace of a run to come.

    Of a few runs none is likely to have been as slow as one in ten is, and their median is off by
    more than their mean would be, but never by much for a single one's sake.
    """
    count = len(paces)
    if count < 2:
        return paces[0] if paces else 0.0
    off = stdev(paces) * sqrt(1 + pi / 2 / count) * _student(seed, max(_LEAST_FREEDOM, count - 1))
    return min(max(median(paces) + off, min(paces) - log(2)), max(paces) + log(2))


def _student(seed: int, freedom: int) -> float:
    """One of Student's distribution: of seeds in a row, as many below 0 as above, evenly spread.

    All previews draw with the same seeds. Were the paces random, a set that happens to be slow
    would make all of them too careful.
    """
    half = (seed // 2 + 1) * _GOLDEN % 1
    z = (1 - 2 * (seed % 2)) * _NORMAL.inv_cdf((1 + half) / 2)
    return (  # Cornish and Fisher's expansion around the normal distribution
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
