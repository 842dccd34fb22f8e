"""Compare a run with its plan in a report."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from shoal.execution.formatting import counted, figure, percent, seconds_text
from shoal.execution.gantt import gantt_text
from shoal.execution.timeline import Span, Timeline
from shoal.planning.preview import Preview
from shoal.planning.prices import cost_of
from shoal.types import WorkerId


def report(
    preview: Preview,
    recorded: Timeline,
    *,
    makespan: float | None = None,
    width: int = 100,
    color: bool = False,
) -> str:
    """Return a report with predicted and recorded figures, and one chart with both timelines.

    Args:
        preview: The prediction.
        recorded: The recorded timeline.
        makespan: The predicted makespan that was recorded with the run; default: the preview's.
        width: The maximum width of the chart, in characters.
        color: Whether to colour the chart.
    """
    predicted = preview.timeline
    makespan = preview.makespan if makespan is None else makespan
    before = cost_of(preview.plan, predicted, preview.prices)
    after = cost_of(preview.plan, recorded, preview.prices)
    rows = [
        ("", "predicted", "recorded", ""),
        _row("makespan s", makespan, recorded.makespan),
        _row("GB-seconds", before.gb_seconds, after.gb_seconds),
        *([] if preview.prices.free else [_row("price $", before.price, after.price)]),
        _row("cold starts", before.cold_starts, after.cold_starts),
        _row("MB moved", before.nbytes / 1e6, after.nbytes / 1e6),
        _row("executing s", *(_total(t) for t in (predicted, recorded))),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    took = f" in {seconds_text(preview.planning)}" if preview.planning else ""
    lines = [
        f"planned by {preview.plan.planner} from {preview.basis}{took}",
        *("  ".join(cell.rjust(widths[i]) if i else cell.ljust(widths[0])
                    for i, cell in enumerate(row)).rstrip() for row in rows),
    ]  # fmt: skip
    if recorded.cache_use:
        lines.append(f"cache: {recorded.cache_use}")
    lines += recorded.shard_use
    errors = _errors(predicted, recorded)
    if errors:
        lines.append(f"the median error of task times was {_off_by(median(errors))}")
    moved = [
        task
        for task, worker in recorded.placements.items()
        if preview.plan.placements[task].worker not in (worker, None)
    ]
    if moved:
        lines.append(
            f"{counted(len(moved), 'task')} ran on another worker than planned, such as {moved[0]}"
        )
    if not preview.learnt:
        lines.append("There was no history, so the prediction is a guess; the next one is better.")
    return "\n".join([*lines, "", _chart(predicted, recorded, width, color)])


def _row(what: str, predicted: float, recorded: float) -> tuple[str, str, str, str]:
    change = percent(recorded / predicted - 1, "+") if predicted else ""
    return what, figure(predicted), figure(recorded), change


def _off_by(error: float) -> str:
    return percent(error) if error < 10 else f"a factor of {1 + error:,.0f}"


def _total(timeline: Timeline) -> float:
    return sum(span.seconds for span in timeline.of_kind("execute"))


def _errors(predicted: Timeline, recorded: Timeline) -> list[float]:
    seconds = {span.task: span.seconds for span in predicted.of_kind("execute")}
    return [
        abs(seconds[span.task] - span.seconds) / span.seconds
        for span in recorded.of_kind("execute")
        if span.task in seconds and span.seconds > 0
    ]


def _chart(predicted: Timeline, recorded: Timeline, width: int, color: bool) -> str:
    """Draw one chart in which each worker has a planned row above its recorded row."""
    spans: list[Span] = []
    for timeline, suffix in ((predicted, "plan"), (recorded, "run")):
        spans += [replace(span, worker=_row_of(span.worker, suffix)) for span in timeline.spans]
    spans.sort(key=lambda span: span.start)
    together = Timeline(tuple(spans), max(predicted.makespan, recorded.makespan))
    workers = dict.fromkeys((*predicted.workers, *recorded.workers))
    order = [_row_of(worker, suffix) for worker in workers for suffix in ("plan", "run")]
    return gantt_text(together, width, color, order)


def _row_of(worker: WorkerId, suffix: str) -> WorkerId:
    return WorkerId(f"{worker} {suffix}")
