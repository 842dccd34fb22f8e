"""A workflow's value and shape, computed without any of the machinery that runs workflows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.types import TaskId
from shoal.workflow import Output, Ref, Workflow


def evaluated(output: Output[Any]) -> Any:
    """Return the output's value by calling every task in order, here."""
    workflow = Workflow.of(output)
    values: dict[TaskId, Any] = {}
    for task, call in workflow.calls.items():
        args = [resolved(value, values) for value in call.args]
        kwargs = {name: resolved(value, values) for name, value in call.kwargs.items()}
        for where, source in call.refs.items():
            place: Any = args if isinstance(where, int) else kwargs
            place[where] = values[source]
        values[task] = call.task.function(*args, **kwargs)
    return values[workflow.sinks[0]]


def resolved(value: Any, values: dict[TaskId, Any]) -> Any:
    if isinstance(value, Ref):
        return values[value.task]
    if isinstance(value, list | tuple):
        return type(value)(resolved(item, values) for item in value)
    if isinstance(value, dict):
        return {key: resolved(item, values) for key, item in value.items()}
    return value


def levels(workflow: Workflow) -> dict[TaskId, int]:
    """Return the length of each task's longest path from a root."""
    level: dict[TaskId, int] = {}
    for task, sources in workflow.upstream.items():
        level[task] = 1 + max((level[source] for source in sources), default=-1)
    return level


def shape(workflow: Workflow) -> Counter[tuple[int, str]]:
    """Return how many tasks of each name each level has."""
    return Counter(
        (level, workflow.calls[task].task.name) for task, level in levels(workflow).items()
    )
