"""Workflows, costs and conditions for tests of planners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.testing import TableCosts as Table
from shoal.testing.planner_examples import (
    LARGE,
    MIDDLE,
    SMALL,
    chain,
    conditions,
    fan,
    step,
    tree,
)
from shoal.types import TaskId
from shoal.workflow import Output, Workflow

__all__ = [
    "LARGE",
    "MIDDLE",
    "SMALL",
    "Table",
    "chain",
    "conditions",
    "fan",
    "step",
    "tasks_by_worker",
    "tree",
    "workflow",
]


def tasks_by_worker(placements: Mapping[TaskId, Any]) -> dict[str, list[str]]:
    """Return the task numbers of each worker."""
    found: dict[str, list[str]] = {}
    for name, placement in placements.items():
        found.setdefault(placement.worker, []).append(name.rpartition("#")[2])
    return found


def workflow(output: Output[Any]) -> Workflow:
    return Workflow.of(output)
