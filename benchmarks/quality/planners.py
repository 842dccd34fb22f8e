"""List Shoal's own planners."""

from collections.abc import Callable

from shoal import AutoPlanner, UniformPlanner
from shoal.planning.base import Planner
from shoal.planning.spread import SpreadPlanner

OURS: dict[str, Callable[[], Planner]] = {
    "auto": lambda: AutoPlanner(thrift=0.0),
    "uniform": UniformPlanner,
    "spread": SpreadPlanner,
}
