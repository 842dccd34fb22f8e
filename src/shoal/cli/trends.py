"""Summarize how a workflow's runs change over time: makespan, prediction error, SLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from shoal.execution.formatting import counted, percent
from shoal.metadata.history import RunRecord

_BARS = "▁▂▃▄▅▆▇█"


def relative_error(run: RunRecord) -> float | None:
    """Return how much longer a run took than predicted, relative to the prediction."""
    if not run.predicted or run.outcome != "done":
        return None
    return run.makespan / run.predicted - 1


def met_sla(run: RunRecord) -> bool | None:
    """Return whether a run stayed within its prediction; None if it was planned for no SLA."""
    if run.sla == "median" or run.predicted is None or run.outcome != "done":
        return None
    return run.makespan <= run.predicted


def trends(runs: Sequence[RunRecord]) -> list[str]:
    """Return a line for each trend in the successful runs, which are given oldest first."""
    done = [run for run in runs if run.outcome == "done"]
    lines = [
        *_trend("makespan", [run.makespan for run in done], lambda seconds: f"{seconds:,.3f} s"),
        *_trend(
            "execution-time error",
            [run.quality["execute"] for run in done if "execute" in run.quality],
            percent,
        ),
    ]
    for level in dict.fromkeys(run.sla for run in done):
        within = [found for run in done if run.sla == level and (found := met_sla(run)) is not None]
        if within:
            runs_of = counted(len(within), "run")
            lines.append(f"{f'SLA of {level}':<21} met in {sum(within):,} of {runs_of}")
    return lines


def _trend(what: str, values: Sequence[float], shown: Callable[[float], str]) -> list[str]:
    """Compare the medians of the earlier and the later half of the runs."""
    if len(values) < 2:
        return []
    half = len(values) // 2
    before, after = median(values[:half]), median(values[half:])
    return [
        f"{what:<21} {sparkline(values)}  median {shown(before)} in the first half of the runs, "
        f"{shown(after)} in the second"
    ]


def sparkline(values: Sequence[float]) -> str:
    """Draw a bar for each value, scaled between the smallest and the largest."""
    least, most = min(values), max(values)
    scale = (len(_BARS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BARS[round((value - least) * scale)] for value in values)
