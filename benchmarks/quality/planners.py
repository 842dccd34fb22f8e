"""Shoal's own planners: a line each."""

from collections.abc import Callable

from shoal.planning.base import Planner
from shoal.planning.spread import SpreadPlanner

OURS: dict[str, Callable[[], Planner]] = {
    "spread": SpreadPlanner,
}
