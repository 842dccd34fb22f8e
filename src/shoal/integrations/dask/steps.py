"""Define the functions that workers run for Dask graphs; it imports nothing heavy for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def apply(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the function of a Dask task."""
    return function(*args, **kwargs)


def follow(steps: Sequence[tuple[Any, Any]], names: Sequence[Any], /, *values: Any) -> Any:
    """Run a chain of Dask tasks.

    Args:
        steps: The name that each task uses for the previous output, and the task.
        names: The names that the tasks use for the values.
        *values: The inputs from other tasks.
    """
    given = dict(zip(names, values, strict=True))
    value = None
    for before, step in steps:
        known = given if before is None else {**given, before: value}
        value = step(known)
    return value
