"""Records for tests of reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.execution.timeline import Span, Timeline
from shoal.experiments.records import Experiment, Records, Row
from shoal.types import TaskId, WorkerId

EXPERIMENT = Experiment(
    "paper-000", "virtual", 2, 0, "2026-01-02T03:04:05+00:00", "2 cores, 8 GB", "0.1.0",
    "shoal experiments run --grid paper-000", {"memory_mb": [2048, 4096], "latency": 0.03},
)  # fmt: skip

ROW = Row(
    id="tree/uniform/50/0", workflow="tree", planner="uniform", sla=50, repeat=0, mode="virtual",
    tasks=63, makespan=1.0, gb_seconds=2.0, price=0.1, startup=0.5, waiting=0.1, executing=2.0,
    fetching=0.2, saving=0.2, uploaded=1, downloaded=2, operations=3, cold=4, warm=0, workers=4,
    planning=0.01,
)  # fmt: skip

TIMELINE = Timeline(
    (
        Span("cold start", WorkerId("w0"), None, 0.0, 0.5),
        Span("execute", WorkerId("w0"), TaskId("add#0"), 0.5, 1.0),
    ),
    1.0,
)


def runs(workflow: str, planner: str, *makespans: float, sla: int = 50) -> list[Row]:
    """Return a run for each makespan."""
    return [
        replace(
            ROW,
            id=f"{workflow}/{planner}/{sla}/{number}",
            workflow=workflow,
            planner=planner,
            sla=sla,
            repeat=number,
            makespan=makespan,
        )
        for number, makespan in enumerate(makespans)
    ]


def recorded(folder: Path, rows: Sequence[Row], experiment: Experiment = EXPERIMENT) -> Records:
    """Write these runs and their timelines to a folder."""
    records = Records(folder)
    records.begin(experiment)
    for row in rows:
        records.append(row, TIMELINE)
    return records
