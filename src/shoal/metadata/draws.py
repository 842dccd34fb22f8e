"""`Draws`: what a run to come may cost, told by what runs before it have cost.

1. A cost is a level of its own, times the pace of its run, times a deviation. All three are learnt
   as logarithms: what is rare is rather three times as much than so many seconds more.
2. A run has one pace for all tasks, and one for each kind of start, transfer and message, which no
   average evens out. What paces differ by for chance alone is taken off. The next run's is drawn
   from what a few runs tell of it, Student's distribution.
3. A task deviates as its namesakes do: the one in a hundred that takes thrice as long is seldom
   among the few times that this very task has run. Of a name that is rare, as all tasks do.
4. A level is known from a few samples only, and is drawn towards its namesakes' as far as these
   differ by no more than such samples do. What it may still be off is drawn once for a run.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, log, pi, sqrt
from statistics import NormalDist, fmean, median, stdev, variance
from typing import NamedTuple

from shoal.types import Resources

ENOUGH = 20
"""Deviations that a task shares with its namesakes; with all tasks if those are fewer."""
TASKS = "*"
"""All tasks, of every name."""
_LEAST_FREEDOM = 3
"""Degrees of freedom, for fewer would allow any pace."""
_GOLDEN = (sqrt(5) - 1) / 2
"""Whose multiples fill the unit interval evenly, however many there are."""
_NORMAL = NormalDist()
_ROUNDS = 3
"""Of fitting levels and paces to each other."""
_FEW = 3
"""Samples that a deviation is told from, and namesakes that a level isn't shrunk for yet."""
_OF_MEDIAN = pi / 2
"""A median's variance, in variances divided by the samples."""
_AMID = 0.6
"""By how many variances, divided by the samples, deviations from their median vary less."""
_SMALLEST = 0.1
"""Of what is usual: what cost less, or nothing, counts as that much."""


class Value(NamedTuple):
    """A cost, and which run it comes from."""

    amount: float
    run: int
    """0 is the latest."""
    weight: float = 1.0


class Kin(NamedTuple):
    """What a cost has in common with others."""

    part: str
    """Everything that has one pace in a run: `TASKS`, or a kind of start, transfer or message."""
    peers: str = ""
    """Those of them that deviate alike: a task's namesakes; unless empty."""
    thing: tuple[int, Resources | None] = (-1, None)
    """Which of its peers it is, and on which resources."""


Choice = Callable[[list[Value], Kin], float]
"""Makes one figure of what a cost has been."""
_Pool = tuple[str, str]
"""A part, and those of it that deviate alike; all of it if that is empty."""


class _Spread(NamedTuple):
    """Where a cost lies, in logarithms."""

    level: float
    error: float
    """The standard deviation of what the level may be off."""
    deviations: Sequence[float]
    peers: _Pool | None
    """Whose deviations these are, if not its own."""


class _Part(NamedTuple):
    """What has one pace in a run."""

    paces: Mapping[int, float]
    """How fast each run was, as a logarithm; 0 is as usual."""
    varies: float
    """The standard deviation that the next one is drawn with."""
    freedom: int


class _Family(NamedTuple):
    """Namesakes on the same resources."""

    tasks: int
    level: float
    variance: float
    """Of their levels as they were found."""


class Draws:
    """Learns levels, paces and deviations; several threads may ask."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[Kin, list[tuple[int, float]]]] = {}
        """How long each thing has taken, by its part."""
        self._parts: dict[str, _Part] = {}
        self._pools: dict[_Pool, list[float]] = {}
        self._families: dict[tuple[str, Resources | None], _Family] = {}
        """Of tasks."""
        self._spreads: dict[int, _Spread | None] = {}
        """By the identity of the list of values, which is kept by whoever made it."""
        self._learning = threading.Lock()

    def add(self, run: int, kin: Kin, seconds: float) -> None:
        """Something has taken so long."""
        if seconds > 0:
            self._seen.setdefault(kin.part, {}).setdefault(kin, []).append((run, seconds))

    def of_run(self, seed: int) -> Choice:
        """Draws costs at the paces of one run."""
        rng = random.Random(seed)
        pools: dict[_Pool, Sequence[float]] = {}
        met: dict[int, tuple[float, Sequence[float]]] = {}

        def meet(values: list[Value], kin: Kin) -> tuple[float, Sequence[float]]:
            """The level in this run, and what deviates from it."""
            spread = self._spread(values, kin)
            if spread is None:
                return -inf, (0.0,)
            deviations = spread.deviations
            if spread.peers:
                # How rare the rare ones are isn't known exactly either: each run has its share.
                if spread.peers not in pools:
                    pools[spread.peers] = rng.choices(deviations, k=len(deviations))
                deviations = pools[spread.peers]
            pace = _next_pace(self._parts[kin.part], seed)
            return spread.level + pace + rng.gauss(0.0, spread.error), deviations

        def choose(values: list[Value], kin: Kin) -> float:
            found = met.get(id(values))
            if found is None:
                found = met[id(values)] = meet(values, kin)
            level, deviations = found
            return exp(level + deviations[int(rng.random() * len(deviations))])

        return choose

    def _part(self, part: str) -> _Part:
        """A part's paces; learns its pools and families too."""
        found = self._parts.get(part)
        if found is None:
            things = {
                kin: [(run, log(seconds)) for run, seconds in took]
                for kin, took in self._seen.get(part, {}).items()
            }
            found = self._parts[part] = _paced(list(things.values()))
            self._pool(things, found.paces)
        return found

    def _pool(
        self, things: Mapping[Kin, list[tuple[int, float]]], paces: Mapping[int, float]
    ) -> None:
        """How things deviate from their own medians, and where those lie."""
        levels: dict[tuple[str, Resources | None], list[float]] = {}
        for kin, took in things.items():
            if len(took) < _FEW:
                continue
            even = [each - paces.get(run, 0.0) for run, each in took]
            middle = median(even)
            if kin.part == TASKS:
                levels.setdefault((kin.peers, kin.thing[1]), []).append(middle)
            deviations = _stretched(even, middle)
            for peers in {kin.peers, ""}:
                self._pools.setdefault((kin.part, peers), []).extend(deviations)
        for key, found in levels.items():
            if len(found) > _FEW:
                self._families[key] = _Family(len(found), fmean(found), variance(found))

    def _large_pool(self, kin: Kin) -> _Pool | None:
        """The peers' deviations if there are enough of them, else those of the whole part."""
        for peers in (kin.peers, "") if kin.peers else ():
            if len(self._pools.get((kin.part, peers), ())) >= ENOUGH:
                return kin.part, peers
        return None

    def _spread(self, values: list[Value], kin: Kin) -> _Spread | None:
        with self._learning:
            if id(values) not in self._spreads:
                self._spreads[id(values)] = self._found(values, kin)
            return self._spreads[id(values)]

    def _found(self, values: list[Value], kin: Kin) -> _Spread | None:
        usual = median([value.amount for value in values])
        if usual <= 0:
            return None
        paces = self._part(kin.part).paces
        logs = sorted(
            (log(max(value.amount, _SMALLEST * usual)) - paces.get(value.run, 0.0), value.weight)
            for value in values
        )
        level = _weighted_median(logs)
        peers = self._large_pool(kin)
        own = [amount for amount, _ in logs]
        deviations = self._pools[peers] if peers else _stretched(own, level)
        weights = [weight for _, weight in logs]
        count = sum(weights) ** 2 / sum([weight**2 for weight in weights])
        off = _OF_MEDIAN * _scale(deviations) ** 2 / count
        family = self._families.get((kin.peers, kin.thing[1])) if kin.part == TASKS else None
        if family is not None:
            level, off = _shrunk(level, off, family)
        return _Spread(level, sqrt(off), deviations, peers)


def _paced(things: Sequence[Sequence[tuple[int, float]]]) -> _Part:
    """The pace of each run, in which all things were slow or fast together.

    What the paces of a few things differ by without any reason is taken off: a pace that is no
    larger than that is none.
    """
    paces: dict[int, float] = {}
    rest: list[float] = []
    for _ in range(_ROUNDS):
        found: dict[int, list[float]] = {}
        for took in things:
            level = fmean([each - paces.get(run, 0.0) for run, each in took])
            for run, each in took:
                found.setdefault(run, []).append(each - level)
        paces = {run: median(ratios) for run, ratios in found.items()}
        rest = [ratio - paces[run] for run, ratios in found.items() for ratio in ratios]
    runs = len(paces)
    if runs < 2 or len(rest) < 2 * runs:
        return _Part({}, 0.0, 1)
    each = len(rest) / runs
    chance = _OF_MEDIAN * _scale(rest) ** 2 / (each - 1) / (1 - 1 / runs)
    whole = variance(paces.values())
    real = max(0.0, whole - chance)
    share = real / whole if whole else 0.0
    middle = median(paces.values())
    paces = {run: share * (pace - middle) for run, pace in paces.items()}
    return _Part(paces, sqrt(real), runs - 1)


def _shrunk(level: float, off: float, family: _Family) -> tuple[float, float]:
    """A level and its variance, given its namesakes' levels: Morris's empirical Bayes estimate.

    The more of what namesakes differ by is explained by their few samples, the nearer to their mean
    is the level, and the surer.
    """
    count, mean, found = family
    share = min(1.0, off / found if found else 1.0) * (count - 3) / (count - 1)
    away = level - mean
    left = off * (1 - share * (count - 1) / count) + 2 / (count - 3) * (share * away) ** 2
    return mean + (1 - share) * away, min(off, left)


def _stretched(amounts: Sequence[float], middle: float) -> list[float]:
    """Deviations from a median, as they would be from the true one: it lies amid its samples."""
    stretch = 1 / sqrt(1 - _AMID / len(amounts))
    return [(amount - middle) * stretch for amount in amounts]


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


def _next_pace(part: _Part, seed: int) -> float:
    """The pace of a run to come.

    Of a few runs none is likely to have been as slow as one in ten is, and their median is off by
    more than their mean would be, but never by much for a single one's sake.
    """
    if not part.varies:
        return 0.0
    paces = part.paces.values()
    wide = part.varies * sqrt(1 + _OF_MEDIAN / len(paces))
    off = wide * _student(seed, max(_LEAST_FREEDOM, part.freedom))
    return min(max(off, min(paces) - log(2)), max(paces) + log(2))


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
