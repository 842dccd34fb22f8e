"""Farms: streams of tasks with deadlines, on workers whose number an autoscaler chooses.

`model` is pure and shared by simulated and deployed farms; autoscalers and orders are plain objects
that work with both. Names are imported on first use: only simulated farms and trained autoscalers
need numpy, and only the environment needs Gymnasium.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.farm.autoscalers import Fixed, ReactiveAverage, ReactiveMaximum, SquareRootStaffing
    from shoal.farm.environment import FarmEnv
    from shoal.farm.learned import DoubleDqn, Sarsa
    from shoal.farm.model import Autoscaler, Deadline, Limits, Observation
    from shoal.farm.orders import EarliestDeadline, Fifo, LeastLaxity, QueueOrder
    from shoal.farm.predictive import ModelPredictive
    from shoal.farm.reward import Reward
    from shoal.farm.simulated import Overheads, SimulatedFarm
    from shoal.farm.workloads import Workload

__all__ = [
    "Autoscaler",
    "Deadline",
    "DoubleDqn",
    "EarliestDeadline",
    "FarmEnv",
    "Fifo",
    "Fixed",
    "LeastLaxity",
    "Limits",
    "ModelPredictive",
    "Observation",
    "Overheads",
    "QueueOrder",
    "ReactiveAverage",
    "ReactiveMaximum",
    "Reward",
    "Sarsa",
    "SimulatedFarm",
    "SquareRootStaffing",
    "Workload",
]

_WHERE = {
    "autoscalers": ("Fixed", "ReactiveAverage", "ReactiveMaximum", "SquareRootStaffing"),
    "environment": ("FarmEnv",),
    "learned": ("DoubleDqn", "Sarsa"),
    "model": ("Autoscaler", "Deadline", "Limits", "Observation"),
    "orders": ("EarliestDeadline", "Fifo", "LeastLaxity", "QueueOrder"),
    "predictive": ("ModelPredictive",),
    "reward": ("Reward",),
    "simulated": ("Overheads", "SimulatedFarm"),
    "workloads": ("Workload",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'shoal.farm' has no attribute {name!r}")
    found = getattr(import_module(f"shoal.farm.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found
