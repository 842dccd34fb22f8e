"""Check the parameters of workflows."""

from __future__ import annotations

from math import inf

from shoal.errors import UsageError


def check_counts(workflow: str, least: int = 1, **counts: int) -> None:
    """Raise an error unless each value is an integer of at least `least`."""
    for name, value in counts.items():
        if not isinstance(value, int) or value < least:
            raise UsageError(
                f"{workflow}({name}={value!r}): must be an integer of at least {least}."
            )


def check_seconds(workflow: str, **seconds: float) -> None:
    """Raise an error unless each value is a number of seconds that a task can sleep."""
    for name, value in seconds.items():
        if not isinstance(value, int | float) or not 0 <= value < inf:
            raise UsageError(
                f"{workflow}({name}={value!r}): must be a finite number of seconds, at least 0."
            )
