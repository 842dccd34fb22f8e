"""Format figures and tables of text."""

from collections.abc import Iterable, Sequence
from math import exp, log, nan
from statistics import mean


def geometric(ratios: Iterable[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    logs = [log(ratio) for ratio in ratios]
    return exp(mean(logs)) if logs else nan


def rounded(figure: float) -> str:
    """Format a figure with about four digits."""
    return f"{figure:.0f}" if figure >= 1000 else f"{figure:.4g}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format a table with right-aligned figures and a left-aligned first column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)
