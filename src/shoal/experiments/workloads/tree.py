"""Define TR, a tree reduction like `tree_reduction`, but built with Dask."""

from __future__ import annotations

from shoal.experiments.parameters import check_counts, check_seconds
from shoal.experiments.tree_reduction import add, in_pairs
from shoal.experiments.workloads.libraries import Delayed, delayed


def tr(numbers: int = 1024, *, seconds: float = 0.0) -> Delayed:
    """Build the sum of the numbers below `numbers`; each addition sleeps `seconds` first."""
    check_counts("tr", least=2, numbers=numbers)
    check_seconds("tr", seconds=seconds)
    joined = delayed(add.function, pure=False)
    total: Delayed = in_pairs(lambda a, b: joined(a, b, seconds), range(numbers))
    return total
