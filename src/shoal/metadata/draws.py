"""Sample the costs of a future run from the costs of past runs.

1. A cost is its own level, times the pace of its run, times a deviation. All three are estimated
   as logarithms, because outliers are multiples of the usual cost rather than fixed additions.
2. A run has one pace for all tasks, and one for each kind of start, transfer and message. A pace
   doesn't average out within a run. Differences between paces that chance alone explains are
   removed. The next run's pace is drawn from Student's distribution, since few runs are known.
3. A task's deviations are pooled with those of all tasks of the same name: an outlier of one in a
   hundred is rarely among the few executions of a single task. If a name is rare, all tasks are
   pooled.
4. Costs are factors of what a fit says for their sizes (`fits.py`). If whole runs had larger or
   smaller inputs, a fit may have taken paces for growth. So a drawn run also grows faster or slower
   than the fit says, by as much as the paces allow.
5. A level is estimated from a few samples, and shrunk towards the levels of tasks of the same name
   as far as their differences can be explained by small samples. Its remaining error is drawn once
   per run.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp, inf, log, pi, sqrt
from statistics import NormalDist, fmean, median, stdev, variance
from typing import NamedTuple, Protocol

from shoal.types import Resources

ENOUGH = 20
"""How many deviations a pool needs; with fewer, a task shares those of all tasks."""
TASKS = "*"
"""The part that contains all tasks, whatever their names."""
_LEAST_FREEDOM = 3
"""The fewest degrees of freedom to use: fewer would allow almost any pace."""
_GOLDEN = (sqrt(5) - 1) / 2
"""Its multiples fill the unit interval evenly, however many there are."""
_SILVER = sqrt(2) - 1
"""Likewise; the points that both make fill the unit square evenly."""
_NARROW = 0.05
"""The width of sizes, for each run, from which on paces may have been taken for growth."""
_NORMAL = NormalDist()
_ROUNDS = 3
"""How often levels and paces are fitted to each other in turn."""
_FEW = 3
"""The fewest samples to estimate deviations from; families must be larger to shrink a level."""
_OF_MEDIAN = pi / 2
"""The variance of a median, relative to the variance of a mean."""
_AMID = 0.6
"""By how many variances, divided by the number of samples, deviations from the median are too
small."""
_SMALLEST = 0.1
"""The least cost that counts, relative to the median; smaller ones are raised to it."""


class Value(NamedTuple):
    """A recorded cost, and the run that it comes from."""

    amount: float
    run: int
    """The index of the run; 0 is the latest."""
    weight: float = 1.0


class Kin(NamedTuple):
    """The groups of costs that a cost belongs to."""

    part: str
    """The costs that share one pace in a run: `TASKS`, or a kind of start, transfer or message."""
    peers: str = ""
    """The costs in the part that share their deviations, such as the tasks of one name; may be
    empty."""
    thing: tuple[int | str, Resources | None] = (-1, None)
    """Which of its peers it is, and with which resources."""


class Way(Protocol):
    """How to choose one figure for a cost."""

    def factor(self, values: list[Value], kin: Kin) -> float:
        """Reduce the recorded values of a cost to one."""
        ...

    def size(self, values: list[Value]) -> float:
        """Reduce the recorded sizes of an output to one."""
        ...

    def off(self, part: str, name: str, doubt: float, away: float) -> float:
        """Return by how much a fit is off, as a logarithm.

        Args:
            part: The part of the cost.
            name: The name of the fit.
            doubt: The standard error of what it says.
            away: By how much what it says differs from what it says for the samples.
        """
        ...


class AtLevel:
    """Chooses a percentile."""

    def __init__(self, p: float) -> None:
        self._p = p
        self._doubts = _NORMAL.inv_cdf(p / 100)
        self._known: dict[int, float] = {}
        """The percentile of each list of values, by its identity; the caller keeps it alive."""

    def factor(self, values: list[Value], kin: Kin) -> float:
        """Return the percentile, computed once per list."""
        return self.size(values)

    def size(self, values: list[Value]) -> float:
        """Return the percentile, computed once per list."""
        found = self._known.get(id(values))
        if found is None:
            found = self._known[id(values)] = percentile(values, self._p)
        return found

    def off(self, part: str, name: str, doubt: float, away: float) -> float:
        """Return the percentile of what the fit may be off by."""
        return self._doubts * doubt


_Pool = tuple[str, str]
"""A part, and the peers in it that share their deviations; empty for the whole part."""


class _Distribution(NamedTuple):
    """The distribution of a cost, in logarithms."""

    level: float
    error: float
    """The standard error of the level."""
    deviations: Sequence[float]
    peers: _Pool | None
    """The pool that the deviations come from; None if they are the cost's own."""


class _Part(NamedTuple):
    """The paces of costs that are slow or fast together."""

    paces: Mapping[int, float]
    """The logarithm of each run's pace; 0 is the usual pace."""
    varies: float
    """The standard deviation of paces, from which the next one is drawn."""
    freedom: int
    wide: float = 0.0
    """How much larger the inputs of some runs were than those of others."""


class _Family(NamedTuple):
    """The tasks of one name with the same resources."""

    tasks: int
    level: float
    variance: float
    """The variance of their estimated levels."""


class _Seen(NamedTuple):
    """A recorded cost."""

    run: int
    factor: float
    """The logarithm of what it was, relative to what the fit says."""
    height: float
    """The logarithm of what the fit says."""


class Draws:
    """Estimates levels, paces and deviations, and draws costs from them; thread-safe."""

    def __init__(self) -> None:
        self.pools: dict[_Pool, list[float]] = {}
        """The deviations of costs that share them."""
        self._seen: dict[str, dict[Kin, list[_Seen]]] = {}
        """Each cost, by part."""
        self._parts: dict[str, _Part] = {}
        self._families: dict[tuple[str, Resources | None], _Family] = {}
        """The families of tasks, by name and resources."""
        self._spreads: dict[int, _Distribution | None] = {}
        """The spread of each list of values, by its identity; the caller keeps the list alive."""
        self._learning = threading.Lock()

    def add(self, run: int, kin: Kin, factor: float, height: float = 0.0) -> None:
        """Add a recorded cost: a factor of what the fit says, and the logarithm of that."""
        if factor > 0:
            seen = _Seen(run, log(factor), height)
            self._seen.setdefault(kin.part, {}).setdefault(kin, []).append(seen)

    def of_run(self, seed: int) -> Way:
        """Return what draws the costs of one simulated run."""
        return _DrawnRun(self, seed)

    def part(self, part: str) -> _Part:
        """Return a part's paces; on first use, estimate its pools and families as well."""
        found = self._parts.get(part)
        if found is None:
            things = self._seen.get(part, {})
            found = self._parts[part] = _estimate_paces(list(things.values()))
            self._pool(things, found.paces)
        return found

    def _pool(self, things: Mapping[Kin, list[_Seen]], paces: Mapping[int, float]) -> None:
        """Collect the deviations of each cost from its median, and the medians of each family."""
        levels: dict[tuple[str, Resources | None], list[float]] = {}
        for kin, took in things.items():
            if len(took) < _FEW:
                continue
            even = [each - paces.get(run, 0.0) for run, each, _ in took]
            middle = median(even)
            if kin.part == TASKS:
                levels.setdefault((kin.peers, kin.thing[1]), []).append(middle)
            deviations = _stretched(even, middle)
            for peers in {kin.peers, ""}:
                self.pools.setdefault((kin.part, peers), []).extend(deviations)
        for key, found in levels.items():
            if len(found) > _FEW:
                self._families[key] = _Family(len(found), fmean(found), variance(found))

    def _large_pool(self, kin: Kin) -> _Pool | None:
        """Return the pool of the peers if it is large enough, else that of the whole part."""
        for peers in (kin.peers, "") if kin.peers else ():
            if len(self.pools.get((kin.part, peers), ())) >= ENOUGH:
                return kin.part, peers
        return None

    def spread(self, values: list[Value], kin: Kin) -> _Distribution | None:
        """Return the distribution of a cost, estimated once per list; None if it is always zero."""
        with self._learning:
            if id(values) not in self._spreads:
                self._spreads[id(values)] = self._estimate_spread(values, kin)
            return self._spreads[id(values)]

    def _estimate_spread(self, values: list[Value], kin: Kin) -> _Distribution | None:
        usual = median([value.amount for value in values])
        if usual <= 0:
            return None
        paces = self.part(kin.part).paces
        logs = sorted(
            (log(max(value.amount, _SMALLEST * usual)) - paces.get(value.run, 0.0), value.weight)
            for value in values
        )
        level = _weighted_median(logs)
        peers = self._large_pool(kin)
        own = [amount for amount, _ in logs]
        deviations = self.pools[peers] if peers else _stretched(own, level)
        weights = [weight for _, weight in logs]
        count = sum(weights) ** 2 / sum([weight**2 for weight in weights])
        off = _OF_MEDIAN * _scale(deviations) ** 2 / count
        family = self._families.get((kin.peers, kin.thing[1])) if kin.part == TASKS else None
        if family is not None:
            level, off = _shrunk(level, off, family)
        return _Distribution(level, sqrt(off), deviations, peers)


class _DrawnRun:
    """Draws the costs of one simulated run."""

    def __init__(self, draws: Draws, seed: int) -> None:
        self._draws = draws
        self._seed = seed
        self._rng = random.Random(seed)
        self._pools: dict[_Pool, Sequence[float]] = {}
        self._levels: dict[int, tuple[float, Sequence[float]]] = {}
        self._errors: dict[tuple[str, str], float] = {}
        self._tilts: dict[str, float] = {}

    def factor(self, values: list[Value], kin: Kin) -> float:
        """Draw a cost."""
        found = self._levels.get(id(values))
        if found is None:
            found = self._levels[id(values)] = self._level(values, kin)
        level, deviations = found
        return exp(level + deviations[int(self._rng.random() * len(deviations))])

    def _level(self, values: list[Value], kin: Kin) -> tuple[float, Sequence[float]]:
        """Draw the level in this run; return it with the deviations from it."""
        spread = self._draws.spread(values, kin)
        if spread is None:
            return -inf, (0.0,)
        deviations = spread.deviations
        if spread.peers:
            # The frequency of outliers is uncertain too, so each run resamples the pool.
            if spread.peers not in self._pools:
                resampled = self._rng.choices(deviations, k=len(deviations))
                self._pools[spread.peers] = resampled
            deviations = self._pools[spread.peers]
        pace = _next_pace(self._draws.part(kin.part), self._seed)
        return spread.level + pace + self._rng.gauss(0.0, spread.error), deviations

    def size(self, values: list[Value]) -> float:
        """Draw the size of an output."""
        return values[int(self._rng.random() * len(values))].amount

    def off(self, part: str, name: str, doubt: float, away: float) -> float:
        """Draw by how much a fit is off, the same for all tasks of a name."""
        key = (part, name)
        found = self._errors.get(key)
        if found is None:  # antithetic: half of the runs grow faster, and half as much slower
            drawn = random.Random(f"{self._seed // 2} {key}").gauss(0.0, 1.0)
            found = self._errors[key] = drawn * (1 - 2 * (self._seed % 2))
        if part not in self._tilts:
            self._tilts[part] = _tilt(self._draws.part(part), self._seed)
        return found * doubt + self._tilts[part] * away


def _estimate_paces(things: Sequence[Sequence[_Seen]]) -> _Part:
    """Estimate the pace of each run, in which all costs were slow or fast together.

    Each pace is shrunk by the share of the paces' variance that chance explains.
    """
    paces: dict[int, float] = {}
    rest: list[float] = []
    for _ in range(_ROUNDS):
        found: dict[int, list[float]] = {}
        for took in things:
            level = fmean([each - paces.get(run, 0.0) for run, each, _ in took])
            for run, each, _ in took:
                found.setdefault(run, []).append(each - level)
        paces = {run: median(ratios) for run, ratios in found.items()}
        rest = [ratio - paces[run] for run, ratios in found.items() for ratio in ratios]
    runs = len(paces)
    if runs < 2 or len(rest) < 2 * runs:
        return _Part({}, 0.0, 1)
    each = len(rest) / runs
    chance = _OF_MEDIAN * _scale(rest) ** 2 / (each - 1) / (1 - 1 / runs)
    wide = _width(things)
    freedom = runs - 2 if wide > _NARROW * sqrt(runs) and runs > 2 else runs - 1
    whole = variance(paces.values()) * (runs - 1) / freedom
    real = max(0.0, whole - chance)
    share = real / whole if whole else 0.0
    middle = median(paces.values())
    paces = {run: share * (pace - middle) for run, pace in paces.items()}
    return _Part(paces, sqrt(real), freedom, wide if freedom < runs - 1 else 0.0)


def _width(things: Sequence[Sequence[_Seen]]) -> float:
    """Return how differently large the inputs of runs were, as far as fits consider them."""
    heights: dict[int, list[float]] = {}
    for took in things:
        level = fmean([seen.height for seen in took])
        for seen in took:
            heights.setdefault(seen.run, []).append(seen.height - level)
    return sqrt(sum(fmean(found) ** 2 for found in heights.values()))


def _shrunk(level: float, off: float, family: _Family) -> tuple[float, float]:
    """Shrink a level and its variance towards its family: Morris's empirical Bayes estimate.

    The more of the family's differences small samples explain, the closer the level moves to the
    family's mean, and the more certain it becomes.
    """
    count, mean, found = family
    share = min(1.0, off / found if found else 1.0) * (count - 3) / (count - 1)
    away = level - mean
    left = off * (1 - share * (count - 1) / count) + 2 / (count - 3) * (share * away) ** 2
    return mean + (1 - share) * away, min(off, left)


def _stretched(amounts: Sequence[float], middle: float) -> list[float]:
    """Return deviations from the true median: those from a sample's own median are too small."""
    stretch = 1 / sqrt(1 - _AMID / len(amounts))
    return [(amount - middle) * stretch for amount in amounts]


def _weighted_median(rows: Sequence[tuple[float, float]]) -> float:
    """Return the weighted median of sorted pairs of amount and weight."""
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
    """Return a standard deviation that is robust against outliers."""
    if len(deviations) < 3:
        return stdev(deviations) if len(deviations) > 1 else 0.0
    rows = sorted(deviations)
    low, high = (rows[round((len(rows) - 1) * share)] for share in (0.16, 0.84))
    return (high - low) / 2


def _next_pace(part: _Part, seed: int) -> float:
    """Draw the pace of a future run.

    Few runs are unlikely to include one as slow as the slowest tenth, so the distribution is wider
    than theirs. The pace stays within a factor of two of the paces seen.
    """
    if not part.varies:
        return 0.0
    paces = part.paces.values()
    wide = part.varies * sqrt(1 + _OF_MEDIAN / len(paces))
    off = wide * _student(seed, max(_LEAST_FREEDOM, part.freedom))
    return min(max(off, min(paces) - log(2)), max(paces) + log(2))


def _tilt(part: _Part, seed: int) -> float:
    """Draw by how much faster costs grow than fits say, because paces were taken for growth."""
    if not part.wide or not part.varies:
        return 0.0
    share = (seed + 0.5) * _SILVER % 1
    return part.varies / part.wide * _NORMAL.inv_cdf(share)


def _student(seed: int, freedom: int) -> float:
    """Return a quantile of Student's distribution; consecutive seeds give evenly spread ones.

    All previews draw with the same seeds. If the paces were random, a set that happens to be slow
    would make every preview too pessimistic.
    """
    half = (seed // 2 + 1) * _GOLDEN % 1
    z = (1 - 2 * (seed % 2)) * _NORMAL.inv_cdf((1 + half) / 2)
    return (  # Cornish and Fisher's expansion around the normal distribution
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def percentile(values: Sequence[Value], p: float) -> float:
    """Return the weighted percentile `p` of sorted values."""
    wanted = p / 100 * sum([value.weight for value in values])
    before, below, at = 0.0, values[0].amount, 0.0
    for value in values:
        middle = before + value.weight / 2
        if middle >= wanted:
            if value is values[0]:
                return value.amount
            return below + (value.amount - below) * (wanted - at) / (middle - at)
        before, below, at = before + value.weight, value.amount, middle
    return below
