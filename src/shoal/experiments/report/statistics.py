"""Compute statistics of an experiment's records; pure.

1. A median of a planner is taken over all its runs, of all workflows and SLAs alike.
2. A change compares two planners: -0.126 is 12.6 % less. Besides the change of the medians there is
   the typical one: the median of the changes within each case (a workflow with its parameters, at
   an SLA), so that no workflow dominates by its size.
3. Medians, changes and savings have confidence intervals (`intervals.py`).
4. A promise is kept if the run took no longer than was predicted at its SLA before it began.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, nan, sqrt
from statistics import NormalDist, fmean, median, quantiles
from typing import Literal, TypeVar

from shoal.execution.timeline import Timeline
from shoal.experiments.records import Row, Scale
from shoal.experiments.report.intervals import TAIL, Estimate, Groups, estimate, pooled_median

PLANNERS = {
    "wukong": "WUKONG",
    "wukong-optimised": "WUKONG optimised",
    "uniform": "Uniform",
    "uniform-optimised": "Uniform optimised",
    "non-uniform": "Non-Uniform",
    "non-uniform-optimised": "Non-Uniform optimised",
    "auto-fastest": "Auto, fastest",
    "auto-cheapest": "Auto, cheapest",
}
"""The names of the compared planners, by the names in the records, in order."""

DESIGNS = {
    "strawman": "strawman",
    "pubsub": "pub/sub",
    "parallel-invokers": "parallel invokers",
    "decentralised": "decentralised",
    "fan-out-invoker": "+ fan-out invoker",
    "clustering": "+ clustering",
    "delayed-io": "+ delayed I/O",
}
"""The designs of the WUKONG paper, each with what it adds to the one before."""

VARIANTS = {
    "without-fan-out-invoker": "all but the invoker",
    "without-clustering": "all but clustering",
    "predicted": "all, by predictions",
    "ideal-storage": "all, with ideal storage",
}
"""The design that the last one is compared with."""

PEERS = {"dask": "Dask, 25 slots", "laptop": "Dask, laptop"}

_LABELS = {**PEERS, **DESIGNS, **VARIANTS, **PLANNERS}

BREAKDOWN = {
    "startup": "start-up",
    "waiting": "waiting for dependencies",
    "fetching": "fetching",
    "executing": "executing",
    "saving": "saving",
}
"""How the workers of a run spend their time."""

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Quartiles:
    """The distribution of values: minimum, quartiles and maximum."""

    low: float
    first: float
    median: float
    third: float
    high: float


@dataclass(frozen=True, slots=True)
class Promises:
    """How many runs had a predicted makespan, and how many met it."""

    made: int
    kept: int

    @property
    def share(self) -> float:
        """The share of predictions that were met."""
        return self.kept / self.made

    @property
    def interval(self) -> Estimate:
        """The share with its confidence interval (Wilson's)."""
        n, z = self.made, NormalDist().inv_cdf(1 - TAIL)
        centre = (self.share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * sqrt(self.share * (1 - self.share) / n + z * z / (4 * n * n))
        return Estimate(self.share, centre - half, centre + half)


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Group rows by a key, in order of appearance."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def by_planner(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by planner or design, known ones first, in their order."""
    groups = grouped(rows, lambda row: row.planner)
    order = [*(name for name in _LABELS if name in groups), *groups]
    return {name: groups[name] for name in dict.fromkeys(order)}


def label(planner: str) -> str:
    """Return the display name of a planner or design."""
    return _LABELS.get(planner, planner)


def values(rows: Iterable[Row], metric: str) -> list[float]:
    """Return the values of a metric, of the runs that have it."""
    found = (getattr(row, metric) for row in rows)
    return [float(value) for value in found if value is not None]


def spread(numbers: Sequence[float]) -> Quartiles:
    """Return the distribution of values, of which there is at least one."""
    if len(numbers) == 1:
        return Quartiles(*(numbers[0] for _ in range(5)))
    first, middle, third = quantiles(numbers, n=4, method="inclusive")
    return Quartiles(min(numbers), first, middle, third, max(numbers))


def change(rows: Sequence[Row], metric: str, of: str, than: str) -> Estimate | None:
    """Return the relative change of a planner's median to another's; None if unknown."""
    planners = by_planner(rows)
    ours, theirs = (_by_case(planners.get(name, []), metric) for name in (of, than))
    if not ours or not theirs or not pooled_median(theirs):
        return None
    count = len(ours)
    return estimate([*ours, *theirs], lambda groups: _change(groups[:count], groups[count:]))


def typical_change(rows: Sequence[Row], metric: str, of: str, than: str) -> Estimate | None:
    """Return the median of the changes within each case that has both planners."""
    pairs: list[list[float]] = []
    for group in grouped(rows, _case).values():
        planners = by_planner(group)
        ours, theirs = (values(planners.get(name, []), metric) for name in (of, than))
        if ours and theirs and median(theirs):
            pairs += [ours, theirs]
    if not pairs:
        return None
    return estimate(
        pairs,
        lambda groups: median(
            _change([ours], [theirs])
            for ours, theirs in zip(groups[::2], groups[1::2], strict=True)
        ),
    )


def saving(rows: Sequence[Row], metric: str, of: str, than: str) -> Estimate | None:
    """Return by how much a planner's mean is below another's; None if unknown."""
    planners = by_planner(rows)
    before, after = (_by_case(planners.get(name, []), metric) for name in (than, of))
    if not before or not after:
        return None
    count = len(before)
    return estimate(
        [*before, *after],
        lambda groups: fmean(chain(*groups[:count])) - fmean(chain(*groups[count:])),
    )


def middle(rows: Sequence[Row], metric: str) -> Estimate | None:
    """Return the median of a metric over all runs that have it."""
    groups = _by_case(rows, metric)
    return estimate(groups, pooled_median) if groups else None


def best_of(rows: Sequence[Row], metric: str, names: Collection[str]) -> str:
    """Return which of these planners has the least median; empty if none has run."""
    medians = {
        planner: median(values(group, metric))
        for planner, group in by_planner(rows).items()
        if planner in names and values(group, metric)
    }
    return min(medians, key=medians.__getitem__, default="")


def _by_case(rows: Sequence[Row], metric: str) -> list[list[float]]:
    """Return the values of each configuration that has any."""
    groups = (values(group, metric) for group in configurations(rows))
    return [group for group in groups if group]


def _change(ours: Groups, theirs: Groups) -> float:
    other = pooled_median(theirs)
    return pooled_median(ours) / other - 1 if other else nan


def _case(row: Row) -> tuple[str, str, int]:
    return row.workflow, repr(sorted(row.parameters.items())), row.sla


def promises(rows: Iterable[Row]) -> Promises | None:
    """Count the runs that met their prediction; None if there were no predictions."""
    promised = [row for row in rows if row.predicted is not None]
    if not promised:
        return None
    kept = sum(row.makespan <= (row.predicted or 0.0) for row in promised)
    return Promises(len(promised), kept)


def breakdown(rows: Sequence[Row]) -> dict[str, Estimate]:
    """Return the mean seconds per run that workers spend on each part."""
    return {
        part: estimate(_by_case(rows, part), lambda groups: fmean(chain(*groups)))
        for part in BREAKDOWN
    }


def middle_run(rows: Sequence[Row]) -> Row:
    """Return the run with the median makespan; of two in the middle, the shorter."""
    return sorted(rows, key=lambda row: (row.makespan, row.id))[(len(rows) - 1) // 2]


def configurations(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the number of repeats of each case and planner."""
    return list(grouped(rows, lambda row: (*_case(row), row.planner)).values())


def missing(rows: Sequence[Row], repeat: int) -> int:
    """Return how many runs are missing until all planners have equally many in each case."""
    groups = configurations(rows)
    wanted = len({_case(row) for row in rows}) * len({row.planner for row in rows})
    return repeat * wanted - sum(min(repeat, len(group)) for group in groups)


def curves(
    rows: Iterable[Scale], value: Callable[[Scale], float], along: Literal["tasks", "workers"]
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return the points (tasks or workers, value) for each shape and other dimension."""
    other = "workers" if along == "tasks" else "tasks"
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    rows = sorted(rows, key=lambda row: row.shape, reverse=True)
    for row in sorted(rows, key=lambda row: (getattr(row, other), getattr(row, along))):
        points = found.setdefault((row.shape, f"{getattr(row, other):,} {other}"), {})
        points.setdefault(getattr(row, along), []).append(value(row))
    return {
        name: [(at, median(each)) for at, each in points.items()] for name, points in found.items()
    }


Points = list[tuple[float, float]]


def sweep(rows: Sequence[Row]) -> tuple[str, dict[str, Points]] | None:
    """Return the parameter that differs, and each planner's medians by it; None if none does."""
    found: dict[str, set[float]] = {}
    for row in rows:
        for name, value in row.parameters.items():
            found.setdefault(name, set()).add(value)
    names = [name for name, seen in found.items() if len(seen) > 1]
    if len(names) != 1:
        return None
    (name,) = names
    lines: dict[str, Points] = {}
    for planner, group in by_planner(rows).items():
        by_value = grouped(group, lambda row: float(row.parameters[name]))
        lines[planner] = [
            (value, median(values(runs, "makespan"))) for value, runs in sorted(by_value.items())
        ]
    return name, lines


def distribution(seconds: Sequence[float]) -> Points:
    """Return points (seconds, per cent that took no longer) of a cumulative distribution."""
    ranked = sorted(seconds)
    shares = [*range(5, 100, 5), 99, 100]
    return [(ranked[ceil(len(ranked) * share / 100) - 1], float(share)) for share in shares]


def latencies(timeline: Timeline) -> dict[str, list[float]]:
    """Return how long executions took, and reads and writes of the store."""
    kinds = {"reads": "fetch", "executions": "execute", "writes": "save"}
    return {
        part: [span.seconds for span in timeline.of_kind(kind) if not span.came_along]
        for part, kind in kinds.items()
    }
