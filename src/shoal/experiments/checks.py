"""What the workflows' parameters must be; each error names the workflow and the parameter."""

from __future__ import annotations

from math import inf

from shoal.errors import UsageError


def check_counts(workflow: str, least: int = 1, **counts: int) -> None:
    """Raise unless each is a whole number, and large enough."""
    for name, value in counts.items():
        if not isinstance(value, int) or value < least:
            raise UsageError(
                f"{workflow}({name}={value!r}): give a whole number, at least {least}."
            )


def check_seconds(workflow: str, **seconds: float) -> None:
    """Raise unless each is a time that a task can sleep."""
    for name, value in seconds.items():
        if not isinstance(value, int | float) or not 0 <= value < inf:
            raise UsageError(f"{workflow}({name}={value!r}): give seconds from 0.")
