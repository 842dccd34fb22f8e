"""Compare real and virtual runs by the medians of the configurations that both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shoal.errors import UsageError
from shoal.experiments.records import Row

TOLERANCE = 0.1
"""The relative difference up to which medians agree."""
METRICS = ("makespan", "gb_seconds")


@dataclass(frozen=True, slots=True)
class Pair:
    """The real and the virtual median of one configuration."""

    cell: str
    metric: str
    real: float
    virtual: float

    @property
    def difference(self) -> float:
        """The relative difference of the virtual median to the real one."""
        return self.virtual / self.real - 1

    @property
    def agrees(self) -> bool:
        """Whether the medians agree."""
        return abs(self.difference) <= TOLERANCE


def compared(real: Sequence[Row], virtual: Sequence[Row]) -> list[Pair]:
    """Compare every configuration that both have, and the medians of all, in each metric."""
    ours, theirs = _by_cell(real), _by_cell(virtual)
    both = [cell for cell in ours if cell in theirs]
    if not both:
        raise UsageError("The two experiments have no configuration in common.")
    pairs = [
        Pair(cell, metric, _median(ours[cell], metric), _median(theirs[cell], metric))
        for cell in both
        for metric in METRICS
    ]
    for metric in METRICS:
        alike = [pair for pair in pairs if pair.metric == metric]
        middle = (median(p.real for p in alike), median(p.virtual for p in alike))
        pairs.append(Pair("the median of all", metric, *middle))
    return pairs


def table(pairs: Sequence[Pair]) -> str:
    """Format the pairs as a table."""
    width = max(len(pair.cell) for pair in pairs)
    lines = [f"{'':{width}}  {'':10}  {'real':>9}  {'virtual':>9}"]
    for pair in pairs:
        note = "" if pair.agrees else "  differs"
        lines.append(
            f"{pair.cell:{width}}  {pair.metric:10}  {pair.real:9.3f}  {pair.virtual:9.3f}  "
            f"{pair.difference:+7.1%}{note}"
        )
    agreeing = sum(pair.agrees for pair in pairs)
    lines.append(f"{agreeing} of {len(pairs)} agree within {TOLERANCE:.0%}")
    return "\n".join(lines)


def _by_cell(rows: Sequence[Row]) -> dict[str, list[Row]]:
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row.id.rpartition("/")[0], []).append(row)
    return cells


def _median(rows: Sequence[Row], metric: str) -> float:
    return median(float(getattr(row, metric)) for row in rows)
