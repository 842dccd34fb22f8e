"""An experiment's records can be read again, even after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.execution.timeline import Span, Timeline
from shoal.experiments.records import Experiment, Records, Row, Scale
from shoal.types import TaskId, WorkerId

EXPERIMENT = Experiment(
    "paper-000", "virtual", 10, 0, "2026-01-01T00:00:00+00:00", "2 cores", "0.1", "shoal", {}
)


def row(number: int) -> Row:
    return Row(
        id=f"matrix/uniform/50/{number}", workflow="matrix", planner="uniform", sla=50,
        repeat=number, mode="virtual", tasks=17, makespan=1.5, gb_seconds=3.0, price=0.1,
        startup=0.2, waiting=0.3, executing=1.0, fetching=0.1, saving=0.1, uploaded=10,
        downloaded=20, operations=4, cold=2, warm=0, workers=2, planning=0.01, predicted=1.6,
        parameters={"size": 2000},
    )  # fmt: skip


def timeline() -> Timeline:
    a, b = WorkerId("a"), WorkerId("b")
    spans = (
        Span("cold start", a, None, 0.0, 0.5),
        Span("cold start", b, None, 0.1, 0.6),
        Span("execute", a, TaskId("add#0"), 0.5, 1.0, 0.4, 100),
        Span("fetch", b, TaskId("add#0"), 1.0, 1.2, 0.0, 100),
    )
    return Timeline(spans, 1.5)


def begun(folder: Path) -> Records:
    records = Records(folder / "experiment")
    records.begin(EXPERIMENT)
    return records


def test_runs_and_timelines_survive_a_round_trip(tmp_path: Path) -> None:
    records = begun(tmp_path)
    records.append(row(0), timeline())
    records.append(row(1), timeline())
    assert records.experiment() == EXPERIMENT
    assert records.rows() == ([row(0), row(1)], [])
    assert records.timeline(row(0).id) == timeline()
    assert records.done() == {row(0).id, row(1).id}


def test_scale_runs_have_a_separate_file(tmp_path: Path) -> None:
    records = begun(tmp_path)
    line = Scale("tree", 10_000, 100, 10.0, 9.0, 12_000, 0.4, 90.0)
    records.append(line)
    assert records.scale() == ([line], [])
    assert records.rows() == ([], [])
    assert records.done() == {"tree/10000/100"}


def test_a_truncated_line_is_reported_and_its_run_repeated(tmp_path: Path) -> None:
    records = begun(tmp_path)
    records.append(row(0))
    path = records.folder / "runs.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole[:40])
    records.append(row(2))
    rows, damaged = records.rows()
    assert rows == [row(0), row(2)]
    assert len(damaged) == 1
    assert "line 2" in damaged[0]


def test_a_folder_without_an_experiment_is_an_error(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert not records.exists
    with pytest.raises(UsageError, match="no experiment"):
        records.experiment()
    with pytest.raises(UsageError, match="no timeline"):
        records.timeline("matrix/uniform/50/0")


def test_a_damaged_timeline_is_an_error(tmp_path: Path) -> None:
    records = begun(tmp_path)
    records.append(row(0), timeline())
    records.timeline_path(row(0).id).write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="damaged"):
        records.timeline(row(0).id)
