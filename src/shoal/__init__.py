"""Shoal: a serverless dataflow engine for Python.

from shoal import task

@task
def add(a: int, b: int) -> int:
    return a + b

add(add(1, 2), 3).compute()
"""

from shoal.planning.auto import AutoPlanner
from shoal.planning.nonuniform import NonUniformPlanner
from shoal.planning.optimizations import (
    PreLoadOptimization,
    PreWarmOptimization,
    TaskDupOptimization,
)
from shoal.planning.preview import Preview
from shoal.planning.uniform import UniformPlanner
from shoal.planning.wukong import WukongPlanner
from shoal.run import Run
from shoal.session import Session, compute, plan, submit
from shoal.settings import Settings
from shoal.types import SLA, Percentile, Resources
from shoal.workflow import Output, Task, Workflow, task

DAGTask = task
"""`task` under the name that the papers use."""

__version__ = "0.1.0"

__all__ = [
    "SLA",
    "AutoPlanner",
    "DAGTask",
    "NonUniformPlanner",
    "Output",
    "Percentile",
    "PreLoadOptimization",
    "PreWarmOptimization",
    "Preview",
    "Resources",
    "Run",
    "Session",
    "Settings",
    "Task",
    "TaskDupOptimization",
    "UniformPlanner",
    "Workflow",
    "WukongPlanner",
    "compute",
    "plan",
    "submit",
    "task",
]
