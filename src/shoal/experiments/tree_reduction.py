"""Define tree reduction, which adds numbers in pairs: 63 additions of 64 numbers in six levels.

    level  tasks
        0  add   32   two numbers each
        1  add   16   the sums of level 0, and so on
        2  add    8
        3  add    4
        4  add    2
        5  add    1

If a level has an odd number of values, the last one is added a level later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal.experiments.parameters import check_counts, check_seconds
from shoal.workflow import Output, task


def tree_reduction(numbers: int = 64, *, seconds: float = 0.0) -> Output[int]:
    """Build a workflow that adds the numbers below `numbers`; each task sleeps `seconds` first."""
    check_counts("tree_reduction", least=2, numbers=numbers)
    check_seconds("tree_reduction", seconds=seconds)
    total: Output[int] = in_pairs(lambda a, b: add(a, b, seconds), range(numbers))
    return total


def in_pairs(join: Callable[[Any, Any], Any], items: Sequence[Any]) -> Any:
    """Join all items in a binary tree, neighbours first."""
    layer = list(items)
    while len(layer) > 1:
        odd_one_out = layer[len(layer) // 2 * 2 :]
        layer = [join(a, b) for a, b in zip(layer[::2], layer[1::2], strict=False)] + odd_one_out
    return layer[0]


@task
def add(a: int, b: int, seconds: float) -> int:
    """Add two numbers."""
    if seconds:
        time.sleep(seconds)
    return a + b
