"""What workers run for a graph of Dask's; imports nothing, so that they needn't either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def apply(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the function of one of Dask's tasks."""
    return function(*args, **kwargs)


def follow(steps: Sequence[tuple[Any, Any]], names: Sequence[Any], /, *values: Any) -> Any:
    """Run tasks of Dask's in a row.

    Args:
        steps: Each task, and what it calls the output of the one before it.
        names: What the tasks call the values.
        *values: What they take from elsewhere.
    """
    given = dict(zip(names, values, strict=True))
    value = None
    for before, step in steps:
        known = given if before is None else {**given, before: value}
        value = step(known)
    return value
