"""How the runs of a workflow changed over time: in makespan, predictions and service level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from shoal.execution.wording import counted, percent
from shoal.metadata.history import RunRecord

_BARS = "▁▂▃▄▅▆▇█"


def relative_error(run: RunRecord) -> float | None:
    """How much longer a run took than predicted, as a share of that."""
    if not run.predicted or run.outcome != "done":
        return None
    return run.makespan / run.predicted - 1


def kept(run: RunRecord) -> bool | None:
    """Whether a run stayed within what was predicted, if it was planned for a percentile."""
    if run.sla == "median" or run.predicted is None or run.outcome != "done":
        return None
    return run.makespan <= run.predicted


def trends(runs: Sequence[RunRecord]) -> list[str]:
    """A line for each thing that can be said of the runs that ended well, the oldest first."""
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
        within = [found for run in done if run.sla == level and (found := kept(run)) is not None]
        if within:
            runs_of = counted(len(within), "run")
            lines.append(f"{f'SLA of {level}':<21} kept in {sum(within):,} of {runs_of}")
    return lines


def _trend(what: str, values: Sequence[float], shown: Callable[[float], str]) -> list[str]:
    """The medians of the earlier and the later half."""
    if len(values) < 2:
        return []
    half = len(values) // 2
    before, after = median(values[:half]), median(values[half:])
    return [
        f"{what:<21} {sparkline(values)}  median {shown(before)} in the first half of the runs, "
        f"{shown(after)} in the second"
    ]


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, from the smallest to the largest."""
    least, most = min(values), max(values)
    scale = (len(_BARS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BARS[round((value - least) * scale)] for value in values)
