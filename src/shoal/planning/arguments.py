"""What planners and optimizations take; an argument that doesn't fit is refused in a line."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from numbers import Integral, Real
from typing import TypeGuard, TypeVar, cast

from shoal.errors import UsageError
from shoal.types import Percentile, Resources

T = TypeVar("T")


def is_number(value: object, least: float = -inf, most: float = inf) -> TypeGuard[float]:
    """Whether it is a number between these, of whatever library; true and NaN are none."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and least <= cast(float, value) <= most


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Whether it is a whole number from this one on."""
    return isinstance(value, Integral) and is_number(value, least)


def check(fits: object, where: str, wanted: str) -> None:
    """Refuse what doesn't fit, and say what is wanted instead."""
    if not fits:
        raise UsageError(f"{where}: give {wanted}.")


def check_sla(sla: object, where: str) -> None:
    """A service level is the median or a percentile."""
    fits = isinstance(sla, Percentile) or (isinstance(sla, str) and sla == "median")
    check(fits, where, "'median' or Percentile(90)")


def check_resources(resources: object, planner: str) -> None:
    """All workers have the same, or what the settings say."""
    fits = resources is None or isinstance(resources, Resources)
    check(fits, f"{planner}(resources={resources!r})", "Resources(memory_mb=…)")


def configurations(resources: Iterable[Resources], planner: str) -> tuple[Resources, ...]:
    """The configurations that workers may have."""
    where = f"{planner}(resources={resources!r})"
    found = listed(resources, where, "a list such as [Resources(4096), Resources(2048)]")
    check(found, where, "at least one configuration")
    for each in found:
        check(isinstance(each, Resources), where, f"Resources(memory_mb=…) instead of {each!r}")
    return found


def listed(given: Iterable[T], where: str, wanted: str) -> tuple[T, ...]:
    """What was given as a list, a tuple or the like; not one thing by itself."""
    check(isinstance(given, Iterable) and not isinstance(given, str | type), where, wanted)
    return tuple(given)


def optimizations_of(given: Iterable[T], planner: str) -> tuple[T, ...]:
    """The optimizations that a planner is given."""
    where = f"{planner}(optimizations={given!r})"
    return listed(given, where, "a list such as [PreLoadOptimization]")
