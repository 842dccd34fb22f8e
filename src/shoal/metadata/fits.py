"""Fit how an amount grows with what it depends on, in plain Python.

Everything is a logarithm here: amounts are multiples of each other rather than differences, and a
power law becomes a straight line.

1. A line is fitted by least squares. It combines three sources, each weighted by its precision: the
   samples of each thing (how one task's time changes from run to run), the means of things (how the
   tasks of a name differ), and a prior slope (twice as much input takes twice as long, until
   samples say otherwise). The first has little noise, the second often the wider range. Amounts far
   from the line are pulled in, so an outlier hardly moves it.
2. If the samples span more than a factor of four, a curve has a knot at each doubling. A knot's
   height is that of a line through the samples around it. Knots never fall, between them the curve
   is straight, and beyond them it continues the first or the last line.
3. Of several features, the one whose line leaves the least unexplained is taken, with a head start
   for the first one named. A second feature must explain much of the rest.
4. Last, samples that share a value (such as one string argument) may differ from the rest by a
   factor. It is shrunk by the part that chance explains.
5. A slope has a standard error. The further the asked size is from the samples, the more doubt it
   causes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import copysign, log, sqrt
from typing import NamedTuple

Features = Mapping[str, float | str]
"""What an amount may depend on: logarithms, and texts that are only equal or different."""

SINGLE = "input "
"""How the names of features begin that are the sizes of single inputs."""
_STEEPEST = 3.0
_PRIOR = 0.7
"""The standard deviation of slopes around the prior one."""
_AROUND_KNOT = 0.3
"""The same for the line of a knot, around the slope of all samples."""
NOISE = 0.05
"""The deviation to assume within a thing, worth one sample."""
_DIFFERENCE = 0.2
"""The deviation to assume between things, worth two things."""
_KNOT = log(2)
"""The distance of two knots."""
_REACH = log(4)
"""How far away samples count for a knot."""
_FEW = 5
"""The fewest samples around a knot."""
_FARTHEST = log(10_000)
"""How far from the samples, as a ratio, sizes are told apart."""
_FAR = 2.5
"""How many standard deviations away an amount is pulled in."""
_HEAD_START = 6.0
"""How much better (twice the gain in log-likelihood) a feature must be than the first one."""
_SECOND = 12.0
"""How much of the rest (likewise) a second feature must explain."""
_LEAST_NOISE = 0.005
"""The deviation that counts as none."""


class Point(NamedTuple):
    """An amount and what it may depend on."""

    amount: float
    """The logarithm of the amount."""
    thing: Hashable
    """What was measured: points of one thing differ only by its features and by chance."""
    features: Features


class _Dot(NamedTuple):
    x: float
    y: float
    weight: float
    thing: Hashable


class Line(NamedTuple):
    """A power law: a straight line between logarithms."""

    x: float
    y: float
    """A point on the line: the mean of the samples."""
    slope: float
    error: float
    """The standard error of the slope."""
    rest: float = 0.0
    """How badly it fits: minus twice the log-likelihood."""

    def at(self, x: float) -> float:
        """Return the height at `x`."""
        return self.y + self.slope * (x - self.x)


class Curve(NamedTuple):
    """How an amount grows with one feature."""

    feature: str
    lines: Sequence[Line]
    """One for each knot; a single one if there is no need for knots."""
    knots: Sequence[float] = ()
    heights: Sequence[float] = ()

    def at(self, x: float) -> float:
        """Return the height at `x`."""
        knots, heights = self.knots, self.heights
        if not knots:
            return self.lines[0].at(x)
        above = bisect_left(knots, x)
        if above == 0:
            return heights[0] + self.lines[0].slope * (x - knots[0])
        if above == len(knots):
            return heights[-1] + self.lines[-1].slope * (x - knots[-1])
        share = (x - knots[above - 1]) / (knots[above] - knots[above - 1])
        return heights[above - 1] + share * (heights[above] - heights[above - 1])

    def doubt(self, here: float, there: float) -> float:
        """Return the standard error of the difference between the heights at two places.

        The slopes on both sides of a knot are wrong independently of each other.
        """
        low, high = min(here, there), max(here, there)
        places = [low, *(knot for knot in self.knots if low < knot < high), high]
        return sqrt(sum([(self._error(b) * (b - a)) ** 2 for a, b in pairwise(places)]))

    def _error(self, x: float) -> float:
        """Return the standard error of the slope at `x`."""
        return self.lines[min(bisect_left(self.knots, x), len(self.lines) - 1)].error


class Fit(NamedTuple):
    """How an amount depends on features."""

    curves: Sequence[Curve] = ()
    shared: str = ""
    """The feature whose values have a factor of their own; empty if none has."""
    offsets: Mapping[float | str, float] = {}
    """The logarithms of these factors."""
    constant: Mapping[str, float] = {}
    """The features that were always the same: nothing is known about how they matter."""

    @property
    def slope(self) -> float:
        """How fast it grows with the first feature, amid the samples."""
        lines = self.curves[0].lines if self.curves else ()
        return lines[len(lines) // 2].slope if lines else 0.0

    @property
    def single_inputs(self) -> bool:
        """Whether it depends on the size of a single input."""
        return any(curve.feature.startswith(SINGLE) for curve in self.curves)

    def at(self, features: Features) -> float:
        """Return the logarithm of the amount, up to a summand that is the same for all features."""
        total = self.offsets.get(features.get(self.shared, ""), 0.0) if self.shared else 0.0
        for curve in self.curves:
            x = features.get(curve.feature)
            if isinstance(x, float):
                total += curve.at(x)
        return total

    def where(self, features: Features) -> tuple[float, ...]:
        """Return the features that curves depend on."""
        found = [features.get(curve.feature) for curve in self.curves]
        return tuple(x if isinstance(x, float) else 0.0 for x in found)

    def within_reach(self, features: Features, known: Sequence[float]) -> Features:
        """Return features that are no further from a place than anything can be predicted.

        Sizes are predicted from predicted sizes: without a limit, they could grow without end.
        """
        there = zip(self.curves, self.where(features), known, strict=True)
        far = {
            curve.feature: place + copysign(_FARTHEST, x - place)
            for curve, x, place in there
            if abs(x - place) > _FARTHEST
        }
        return {**features, **far} if far else features

    def doubt(self, here: Sequence[float], there: Sequence[float]) -> float:
        """Return the standard error of the difference between two places."""
        squares = [
            curve.doubt(x, known) ** 2
            for curve, x, known in zip(self.curves, here, there, strict=True)
        ]
        return sqrt(sum(squares))


def fit(
    points: Sequence[Point], first: str, slopes: Mapping[str, float] | None = None,
    noise: float = NOISE,
) -> Fit:  # fmt: skip
    """Fit how amounts depend on features.

    Args:
        points: The samples.
        first: The feature to prefer; every point has it.
        slopes: The prior slopes of features that grow in proportion unless samples say otherwise;
            by default, only the first one does.
        noise: The deviation to assume within a thing, worth one sample.
    """
    prior = {first: 1.0} if slopes is None else slopes
    numbers, constant = _numeric(points, first)
    rest = [point.amount for point in points]
    curves: list[Curve] = []
    for _ in range(2):
        found = _best(points, rest, numbers, first, prior, noise, second=bool(curves))
        if found is None:
            break
        curves.append(found)
        numbers = [name for name in numbers if name != found.feature]
        rest = [y - found.at(_number(p, found.feature)) for p, y in zip(points, rest, strict=True)]
    shared, offsets = _offsets(points, rest, first, {curve.feature for curve in curves})
    return Fit(curves, shared, offsets, constant)


def _number(point: Point, name: str) -> float:
    value = point.features[name]
    assert isinstance(value, float)
    return value


def _numeric(points: Sequence[Point], first: str) -> tuple[list[str], dict[str, float]]:
    """Return the numeric features that all points have: those that vary, and the constant ones."""
    varying, constant = [first], {}
    for name in points[0].features:
        values = {point.features.get(name) for point in points}
        if name == first or not all(isinstance(value, float) for value in values):
            continue
        if len(values) > 1:
            varying.append(name)
        else:
            constant[name] = _number(points[0], name)
    return varying, constant


def _best(
    points: Sequence[Point], rest: Sequence[float], names: Iterable[str], first: str,
    prior: Mapping[str, float], noise: float, *, second: bool,
) -> Curve | None:  # fmt: skip
    """Return the curve of the feature that explains most."""
    best: tuple[float, str, Line, list[_Dot]] | None = None
    for name in names:
        rows = [_Dot(_number(p, name), y, 1.0, p.thing) for p, y in zip(points, rest, strict=True)]
        line, rows = _robust(rows, 0.0 if second else prior.get(name, 0.0), noise)
        score = line.rest - (_HEAD_START if name == first else 0.0)
        if best is None or score < best[0]:
            best = score, name, line, rows
    if best is None:
        return None
    score, name, line, rows = best
    if second and _flat(rows, noise) - score < _SECOND:
        return None
    return _curve(name, rows, line, noise)


def _flat(rows: Sequence[_Dot], noise: float) -> float:
    """Return how badly a level line fits."""
    return _line([row._replace(x=0.0) for row in rows], 0.0, _PRIOR, noise).rest


def _robust(rows: list[_Dot], slope: float, noise: float) -> tuple[Line, list[_Dot]]:
    """Fit a line; return it with the rows, of which those far from it are pulled in."""
    line = _line(rows, slope, _PRIOR, noise)
    heights: dict[Hashable, list[float]] = {}
    for row in rows:
        heights.setdefault(row.thing, []).append(row.y - line.slope * row.x)
    levels = {thing: sorted(ys)[len(ys) // 2] for thing, ys in heights.items()}
    off = [row.y - line.slope * row.x - levels[row.thing] for row in rows]
    scale = sorted(map(abs, off))[round(0.68 * (len(off) - 1))]
    if len(rows) < 2 * _FEW or not scale:
        return line, rows
    most = _FAR * scale
    pulled = [
        row if abs(o) <= most else row._replace(y=row.y - o + (most if o > 0 else -most))
        for row, o in zip(rows, off, strict=True)
    ]
    return _line(pulled, slope, _PRIOR, noise), pulled


def _line(rows: Sequence[_Dot], slope: float, around: float, usual: float) -> Line:
    """Fit a line, given a prior slope and its standard deviation, and the usual noise."""
    sums: dict[Hashable, list[float]] = {}
    for x, y, weight, thing in rows:
        found = sums.get(thing)
        if found is None:
            found = sums[thing] = [0.0, 0.0, 0.0]
        found[0] += weight
        found[1] += weight * x
        found[2] += weight * y
    means = {thing: (x / weight, y / weight) for thing, (weight, x, y) in sums.items()}
    within = _Sums()
    for x, y, weight, thing in rows:
        mean = means[thing]
        within.add(x - mean[0], y - mean[1], weight)
    middle = [sum(each) / len(means) for each in zip(*means.values(), strict=True)]
    between = _Sums()
    for x, y in means.values():
        between.add(x - middle[0], y - middle[1], 1.0)
    freedom = max(0.0, within.weight - len(means) - 1)
    noise = (within.least() + usual**2) / (freedom + 1)
    others = max(0, len(means) - 2)
    difference = (between.least() + 2 * _DIFFERENCE**2) / (others + 2)
    precision = within.xx / noise + between.xx / difference + 1 / around**2
    best = (within.xy / noise + between.xy / difference + slope / around**2) / precision
    error = sqrt((1 + 2 / (freedom + others + 1)) / precision)
    best = min(max(best, 0.0), _STEEPEST)
    rest = within.rest(best, freedom + 1) + between.rest(best, others + 1)
    weight = sum([each[0] for each in sums.values()])
    x, y = (sum([each[i] for each in sums.values()]) / weight for i in (1, 2))
    return Line(x, y, best, error, rest)


class _Sums:
    """The sums that a line is fitted from."""

    def __init__(self) -> None:
        self.weight = self.xx = self.xy = self.yy = 0.0

    def add(self, x: float, y: float, weight: float) -> None:
        self.weight += weight
        self.xx += weight * x * x
        self.xy += weight * x * y
        self.yy += weight * y * y

    def least(self) -> float:
        """Return the sum of squares that the best line leaves."""
        return max(0.0, self.yy - self.xy**2 / self.xx) if self.xx else self.yy

    def rest(self, slope: float, count: float) -> float:
        """Return minus twice the log-likelihood of a slope."""
        left = max(0.0, self.yy - 2 * slope * self.xy + slope**2 * self.xx)
        return count * log(left / count + _LEAST_NOISE**2)


def _curve(name: str, rows: Sequence[_Dot], line: Line, noise: float) -> Curve:
    """Return the curve that follows a line, with knots if the samples span enough."""
    low, high = min(row.x for row in rows), max(row.x for row in rows)
    if high - low < _REACH:
        return Curve(name, [line])
    count = round((high - low) / _KNOT)
    knots: list[float] = []
    lines: list[Line] = []
    for number in range(count + 1):
        at = low + (high - low) * number / count
        near = [
            row._replace(weight=1 - abs(row.x - at) / _REACH)
            for row in rows
            if abs(row.x - at) < _REACH
        ]
        if len(near) >= _FEW:
            knots.append(at)
            lines.append(_line(near, line.slope, _AROUND_KNOT, noise))
    if len(knots) < 2:
        return Curve(name, [line])
    heights = _rising([each.at(knot) for each, knot in zip(lines, knots, strict=True)])
    return Curve(name, lines, knots, heights)


def _rising(heights: Sequence[float]) -> list[float]:
    """Return the nearest heights that never fall: neighbours that do share their mean."""
    pools: list[tuple[float, int]] = []
    for height in heights:
        pools.append((height, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (right, more), (left, some) = pools.pop(), pools.pop()
            pools.append(((left * some + right * more) / (some + more), some + more))
    return [height for height, count in pools for _ in range(count)]


def _offsets(
    points: Sequence[Point], rest: Sequence[float], first: str, taken: set[str]
) -> tuple[str, dict[float | str, float]]:
    """Return the feature whose values differ most beyond chance, and by how much each does.

    A size isn't such a feature: those of earlier runs stand for tasks and won't come again.
    """
    best: tuple[float, str, dict[float | str, float]] = (0.0, "", {})
    names = dict.fromkeys(name for point in points for name in point.features)
    for name in names:
        if name == first or name in taken or name.startswith(SINGLE):
            continue
        groups: dict[float | str, list[float]] = {}
        for point, y in zip(points, rest, strict=True):
            groups.setdefault(point.features.get(name, ""), []).append(y)
        if len(groups) < 2 or 2 * len(groups) > len(points):
            continue
        surplus, offsets = _shrunk(groups)
        if surplus > best[0]:
            best = surplus, name, offsets
    return best[1], best[2]


def _shrunk(
    groups: Mapping[float | str, Sequence[float]],
) -> tuple[float, dict[float | str, float]]:
    """Return how surely groups differ, and each group's distance from all, shrunk by chance."""
    means = {value: sum(ys) / len(ys) for value, ys in groups.items()}
    count = sum(map(len, groups.values()))
    left = sum((y - means[value]) ** 2 for value, ys in groups.items() for y in ys)
    chance = left / (count - len(groups)) + _LEAST_NOISE**2
    middle = sum(sum(ys) for ys in groups.values()) / count
    differ = sum(len(ys) * (means[value] - middle) ** 2 for value, ys in groups.items())
    others = len(groups) - 1
    surplus = differ / chance - others - 4 * sqrt(2 * others)
    spread = max(0.0, (differ - others * chance) / (count - count / len(groups)))
    shares = {value: spread / (spread + chance / len(ys)) for value, ys in groups.items()}
    return surplus, {value: shares[value] * (means[value] - middle) for value in groups}
