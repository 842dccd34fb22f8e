"""Measure how accurate a run's predictions were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from shoal.execution.costs import Costs, Direction
from shoal.metadata.samples import FIRST, Sample
from shoal.types import TaskId

SHORTEST = 0.01
"""Seconds: executions predicted to be shorter count only if there are no longer ones.

The relative error of a short execution says little. Selecting by the recorded time instead would
favour short executions that were disturbed."""

_CONSTANT = TaskId("")
"""Not a task, like the constants that are moved."""


def prediction_errors(
    costs: Costs, samples: list[Sample], tasks: Sequence[TaskId]
) -> Mapping[str, float]:
    """Return the median relative error of each kind of prediction: `execute`, `start`, `transfer`.

    Args:
        costs: The predicted costs, at the median.
        samples: The recorded costs.
        tasks: All tasks, in the workflow's order.
    """
    errors: dict[str, list[float]] = {}
    short: list[float] = []
    named = {sample.name: tasks[sample.number] for sample in samples if sample.number >= 0}
    for sample in samples:
        found = _predicted(costs, sample, tasks, named)
        if found is None or sample.seconds <= 0:
            continue
        kind, predicted = found
        error = abs(predicted - sample.seconds) / sample.seconds
        if kind == "execute" and predicted < SHORTEST:
            short.append(error)
        else:
            errors.setdefault(kind, []).append(error)
    if "execute" not in errors and short:
        errors["execute"] = short
    return {kind: median(found) for kind, found in errors.items()}


def _predicted(
    costs: Costs, sample: Sample, tasks: Sequence[TaskId], named: Mapping[str, TaskId]
) -> tuple[str, float] | None:
    if sample.kind == "execute":
        task = tasks[sample.number]
        return "execute", costs.execution(task, sample.nbytes, sample.resources)
    if sample.kind in ("fetch", "save"):
        direction: Direction = "fetch" if sample.kind == "fetch" else "save"
        source = named.get(sample.name, _CONSTANT)
        return "transfer", costs.transfer_of(source, direction, sample.nbytes, sample.resources)
    if sample.kind in ("cold start", "warm start"):
        warm, first = sample.kind == "warm start", sample.name == FIRST
        return "start", costs.startup(
            sample.resources, warm=warm, first=first, beside=sample.nbytes
        )
    return None
