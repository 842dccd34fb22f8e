"""Check the arguments of planners and optimizations."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from numbers import Integral, Real
from typing import TypeGuard, TypeVar, cast

from shoal.errors import UsageError
from shoal.types import Percentile, Resources

T = TypeVar("T")


def is_number(value: object, least: float = -inf, most: float = inf) -> TypeGuard[float]:
    """Return whether a value is a number in this range, of any library, but not a bool or NaN."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and least <= cast(float, value) <= most


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Return whether a value is an integer of at least `least`."""
    return isinstance(value, Integral) and is_number(value, least)


def check(fits: object, where: str, wanted: str) -> None:
    """Raise an error that says what to pass instead, unless the argument fits."""
    if not fits:
        raise UsageError(f"{where}: give {wanted}.")


def check_sla(sla: object, where: str) -> None:
    """Check that a service level is the median or a percentile."""
    fits = isinstance(sla, Percentile) or (isinstance(sla, str) and sla == "median")
    check(fits, where, "'median' or Percentile(90)")


def check_resources(resources: object, planner: str) -> None:
    """Check the resources of all workers; None stands for those of the settings."""
    fits = resources is None or isinstance(resources, Resources)
    check(fits, f"{planner}(resources={resources!r})", "Resources(memory_mb=…)")


def configurations(resources: Iterable[Resources], planner: str) -> tuple[Resources, ...]:
    """Check and return the configurations that workers may have."""
    where = f"{planner}(resources={resources!r})"
    found = listed(resources, where, "a list such as [Resources(4096), Resources(2048)]")
    check(found, where, "at least one configuration")
    for each in found:
        check(isinstance(each, Resources), where, f"Resources(memory_mb=…) instead of {each!r}")
    return found


def listed(given: Iterable[T], where: str, wanted: str) -> tuple[T, ...]:
    """Check that an argument is a list, a tuple or the like, and return it as a tuple."""
    check(isinstance(given, Iterable) and not isinstance(given, str | type), where, wanted)
    return tuple(given)


def optimizations_of(given: Iterable[T], planner: str) -> tuple[T, ...]:
    """Check and return the optimizations that a planner was given."""
    where = f"{planner}(optimizations={given!r})"
    return listed(given, where, "a list such as [PreLoadOptimization]")
