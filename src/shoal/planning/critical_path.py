"""Find the critical path of a simulated run: the tasks that determine its makespan."""

from __future__ import annotations

from shoal.execution.timeline import Span, Timeline
from shoal.types import TaskId, WorkerId
from shoal.workflow import Workflow

_SAME = 1e-9
"""Two times that differ by at most so many seconds count as equal."""


def critical_path(workflow: Workflow, timeline: Timeline) -> tuple[TaskId, ...]:
    """Return the path from a first task to the last sink, where each task waited for the previous.

    A task waits for its latest input, or for the previous task on its worker if that ended later.
    """
    runs = _in_order(workflow, timeline)
    fetched = {(s.worker, s.task): s.end for s in timeline.of_kind("fetch") if s.task}
    position = {task: number for number, task in enumerate(runs)}
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
            if span.task and position[span.task] < position[here.task]
        ]
        here = _before(here, workflow, runs, fetched, earlier[-1] if earlier else None)
    return tuple(reversed(path))


def _in_order(workflow: Workflow, timeline: Timeline) -> dict[TaskId, Span]:
    """Return each task's execution by its start; a task that takes no time comes after its inputs.

    A timeline orders what starts at once by name, so a walk back along it might not end.
    """
    found = {span.task: span for span in timeline.of_kind("execute") if span.task}
    order = {task: number for number, task in enumerate(workflow.calls)}
    return {task: found[task] for task in sorted(found, key=lambda t: (found[t].start, order[t]))}


def _before(
    span: Span,
    workflow: Workflow,
    runs: dict[TaskId, Span],
    fetched: dict[tuple[WorkerId, TaskId], float],
    earlier: Span | None,
) -> Span | None:
    """Return the span that this one waited for; `earlier` ended on its worker when it began."""
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
