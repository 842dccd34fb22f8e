"""`critical_path`: the tasks that a simulated run's makespan hangs on."""

from __future__ import annotations

from shoal.execution.timeline import Span, Timeline
from shoal.types import TaskId, WorkerId
from shoal.workflow import Workflow

_SAME = 1e-9
"""Seconds within which two moments are one."""


def critical_path(workflow: Workflow, timeline: Timeline) -> tuple[TaskId, ...]:
    """From a first task to the last sink, each the one that the next had to wait for.

    A task waits for its latest input, or for the task before it on its worker if that ended later
    than its inputs were there.
    """
    runs = {span.task: span for span in timeline.of_kind("execute") if span.task}
    fetched = {(s.worker, s.task): s.end for s in timeline.of_kind("fetch") if s.task}
    places = {task: place for place, task in enumerate(runs)}
    ended: dict[tuple[WorkerId, float], list[Span]] = {}
    for span in runs.values():
        ended.setdefault((span.worker, round(span.end, 9)), []).append(span)
    path: list[TaskId] = []
    here: Span | None = max(
        (runs[sink] for sink in workflow.sinks if sink in runs), key=lambda s: s.end, default=None
    )
    while here is not None and here.task is not None:
        path.append(here.task)
        earlier = [
            span
            for span in ended.get((here.worker, round(here.start, 9)), ())
            if span.task and places[span.task] < places[here.task]
        ]
        here = _before(here, workflow, runs, fetched, earlier[-1] if earlier else None)
    return tuple(reversed(path))


def _before(
    span: Span,
    workflow: Workflow,
    runs: dict[TaskId, Span],
    fetched: dict[tuple[WorkerId, TaskId], float],
    earlier: Span | None,
) -> Span | None:
    """What a span had to wait for; `earlier` ended on its worker as it began."""
    assert span.task is not None
    latest, at = None, -1.0
    for source in workflow.upstream[span.task]:
        if source in runs:
            there = fetched.get((span.worker, source), runs[source].end)
            if there > at:
                latest, at = runs[source], there
    if earlier is not None and at < span.start - _SAME and earlier.end > at:
        return earlier
    return latest
