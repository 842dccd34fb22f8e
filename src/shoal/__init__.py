"""Shoal: a serverless dataflow engine for Python.

from shoal import task

@task
def add(a: int, b: int) -> int:
    return a + b

add(add(1, 2), 3).compute()
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal import engine_hook

if sys.platform == "win32":
    from shoal.errors import UnsupportedSystem

    problem = UnsupportedSystem()
    command = sys.argv[0].replace("\\", "/").rpartition("/")[2].partition(".")[0] == "shoal"
    raise SystemExit(f"error: {problem}") if command else problem

if TYPE_CHECKING:
    from shoal.client.run import Run
    from shoal.engine import compute, plan, submit, warm
    from shoal.execution.costs import Costs
    from shoal.execution.plan import Placement, Plan, Prewarm
    from shoal.farm.streams import Farm, Pipeline
    from shoal.integrations.executor import ShoalExecutor
    from shoal.planning.auto import AutoPlanner
    from shoal.planning.base import Conditions, Optimization, Planner
    from shoal.planning.nonuniform import NonUniformPlanner
    from shoal.planning.optimizations import (
        PreLoadOptimization,
        PreWarmOptimization,
        TaskDupOptimization,
    )
    from shoal.planning.preview import Preview
    from shoal.planning.uniform import UniformPlanner
    from shoal.planning.wukong import WukongPlanner
    from shoal.session import Session
    from shoal.settings import Settings, options
    from shoal.types import SLA, Percentile, Resources, TaskId, WorkerId
    from shoal.workflow import Output, Task, Workflow, task

    DAGTask = task

__version__ = "0.1.0"

__all__ = [
    "SLA",
    "AutoPlanner",
    "Conditions",
    "Costs",
    "DAGTask",
    "Farm",
    "NonUniformPlanner",
    "Optimization",
    "Output",
    "Percentile",
    "Pipeline",
    "Placement",
    "Plan",
    "Planner",
    "PreLoadOptimization",
    "PreWarmOptimization",
    "Preview",
    "Prewarm",
    "Resources",
    "Run",
    "Session",
    "Settings",
    "ShoalExecutor",
    "Task",
    "TaskDupOptimization",
    "TaskId",
    "UniformPlanner",
    "WorkerId",
    "Workflow",
    "WukongPlanner",
    "compute",
    "options",
    "plan",
    "submit",
    "task",
    "warm",
]

_WHERE = {
    "client.run": ("Run",),
    "engine": ("compute", "plan", "submit", "warm"),
    "execution.costs": ("Costs",),
    "execution.plan": ("Placement", "Plan", "Prewarm"),
    "farm.streams": ("Farm", "Pipeline"),
    "integrations.executor": ("ShoalExecutor",),
    "planning.auto": ("AutoPlanner",),
    "planning.base": ("Conditions", "Optimization", "Planner"),
    "planning.nonuniform": ("NonUniformPlanner",),
    "planning.optimizations": (
        "PreLoadOptimization",
        "PreWarmOptimization",
        "TaskDupOptimization",
    ),
    "planning.preview": ("Preview",),
    "planning.uniform": ("UniformPlanner",),
    "planning.wukong": ("WukongPlanner",),
    "session": ("Session",),
    "settings": ("Settings", "options"),
    "types": ("SLA", "Percentile", "Resources", "TaskId", "WorkerId"),
    "workflow": ("Output", "Task", "Workflow", "task"),
}
"""Where names come from. Each is loaded on first use: a worker needs few, and starts sooner."""
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
_MODULE_OF["DAGTask"] = "workflow"  # what the papers call `task`


def _load_engine() -> engine_hook.OutputEngine:
    from shoal.engine import default_engine

    return default_engine


engine_hook.load_engine_by(_load_engine)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        module = import_module(f"shoal.{_MODULE_OF[name]}")
        found = getattr(module, "task" if name == "DAGTask" else name)
        globals()[name] = found
        return found
    try:
        return import_module(f"shoal.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
