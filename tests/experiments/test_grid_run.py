"""A grid runs as requested, is recorded, and continues after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.execution.timeline import Span, Timeline
from shoal.experiments.calibration import fitted
from shoal.experiments.comparison import compared, table
from shoal.experiments.grid import GRIDS, Cell, Grid, restricted
from shoal.experiments.grid_run import (
    check_folder,
    check_space,
    left,
    run_cell,
    run_real,
    run_virtual,
    space,
)
from shoal.experiments.records import Experiment, Records
from shoal.experiments.scale import Case, cases, simulated
from shoal.experiments.trial import VirtualRunner, waiting
from shoal.experiments.virtual_costs import PlatformCosts, Varying, extra
from shoal.types import TaskId, WorkerId

SMALL = replace(
    restricted(GRIDS["paper-000"], ["tree"], ["uniform", "wukong-optimised"], [90]), warm_up=2
)


def experiment(grid: Grid = SMALL, mode: str = "virtual") -> Experiment:
    return Experiment(grid.name, mode, 2, 0, "", "", "", "", grid.settings())


def begun(folder: Path, grid: Grid = SMALL, mode: str = "virtual") -> Records:
    records = Records(folder / "records")
    records.begin(experiment(grid, mode))
    return records


def run(records: Records, repeat: int, seed: int = 0) -> int:
    counts: list[int] = []
    run_virtual(records, SMALL, repeat, seed, counts.append, processes=1)
    return sum(counts)


def test_every_run_is_recorded_with_its_timeline(tmp_path: Path) -> None:
    records = begun(tmp_path)
    assert left(records, SMALL, "virtual", 2) == 8
    assert run(records, 2) == 8
    rows, damaged = records.rows()
    assert not damaged
    assert {row.id for row in rows} == {
        f"tree/{planner}/90/{n}" for planner in ("uniform", "wukong-optimised") for n in (0, 1)
    }
    for row in rows:
        assert records.timeline(row.id).makespan == row.makespan
        assert row.predicted is not None
        assert row.predicted_median is not None
        assert row.predicted >= row.predicted_median
        assert row.cold > 0
        assert row.gb_seconds > 0
        assert row.mode == "virtual"
    assert left(records, SMALL, "virtual", 2) == 0


@pytest.mark.slow
def test_the_seed_determines_the_runs(tmp_path: Path) -> None:
    found = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        records = begun(tmp_path / folder)
        run(records, 1, seed)
        found.append({row.id: row.makespan for row in records.rows()[0]})
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_an_interrupted_experiment_continues_where_it_stopped(tmp_path: Path) -> None:
    """1. Three of five runs are done. 2. It is interrupted. 3. It continues with the other two."""
    whole, broken = begun(tmp_path / "whole"), begun(tmp_path / "broken")
    cell, stage = Cell("tree", "uniform", 90), VirtualRunner(SMALL)
    list(run_cell(whole, SMALL, cell, 3, 0, stage))
    going: Iterator[str] = run_cell(broken, SMALL, cell, 3, 0, stage)
    for _ in range(3):
        next(going)
    going = run_cell(Records(broken.folder), SMALL, cell, 3, 0, stage)
    assert list(going) == ["tree/uniform/90/1", "tree/uniform/90/2"]
    # Planning and promises depend on the machine's speed, the runs don't.
    ours, theirs = (
        [(row.id, row.makespan, row.gb_seconds) for row in records.rows()[0]]
        for records in (broken, whole)
    )
    assert ours == theirs


def test_an_unusable_record_folder_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    records = begun(tmp_path)
    with pytest.raises(UsageError, match="--resume"):
        check_folder(records, experiment(), resume=False)
    check_folder(records, experiment(), resume=True)
    with pytest.raises(UsageError, match="different seed"):
        check_folder(records, replace(experiment(), seed=5), resume=True)
    with pytest.raises(UsageError, match="no experiment"):
        check_folder(Records(tmp_path / "none"), experiment(), resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        check_folder(Records(tmp_path / "file" / "below"), experiment(), resume=False)
    with pytest.raises(UsageError, match="GB left"):
        check_space(tmp_path, space(SMALL, 10**12))


def test_waiting_is_the_time_that_workers_spend_on_nothing_else() -> None:
    w = WorkerId("w")
    spans = (
        Span("cold start", w, None, 0.0, 1.0),
        Span("execute", w, TaskId("a#0"), 2.0, 4.0),
        Span("execute", w, TaskId("a#1"), 3.0, 5.0),
        Span("leave", w, None, 7.0, 7.0),
    )
    assert waiting(Timeline(spans, 7.0)) == pytest.approx(3.0)


@pytest.mark.slow
def test_configurations_run_both_virtually_and_for_real_are_compared(tmp_path: Path) -> None:
    records = begun(tmp_path)
    run(records, 2)
    rows = records.rows()[0]
    slower = [replace(row, makespan=1.2 * row.makespan) for row in rows]
    assert all(pair.agrees for pair in compared(rows, rows))
    differing = [pair for pair in compared(rows, slower) if not pair.agrees]
    assert {pair.metric for pair in differing} == {"makespan"}
    assert "differs" in table(compared(rows, slower))
    with pytest.raises(UsageError, match="in common"):
        compared(rows, [])


def test_calibration_needs_real_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="calibrate from an experiment with"):
        fitted(begun(tmp_path))


@pytest.mark.slow
def test_calibration_recovers_the_costs_that_runs_were_made_with(tmp_path: Path) -> None:
    """The fit separates slow costs from contention for the cores and for the store.

    The runs are labelled as real.
    """
    grid = restricted(GRIDS["paper-000"], ["image", "tree"], ["wukong", "uniform"], [50])
    records = begun(tmp_path, grid, "real")
    made_with = PlatformCosts(
        cold=Varying(0.1), start=Varying(0.08), crowd=[(4.0, 0.01), (16.0, 0.1)],
        saving=2e-9, fetching=1e-9, sharing=0.8,
    )  # fmt: skip
    run_virtual(records, grid, 3, 0, lambda _: None, processes=1, platform=made_with)
    found = fitted(records)
    assert found.cold.median == pytest.approx(0.1, rel=0.2)
    assert found.start.median == pytest.approx(0.08, rel=0.2)
    assert found.saving == pytest.approx(2e-9, rel=0.2)
    assert found.fetching == pytest.approx(1e-9, rel=0.2)
    assert found.sharing == pytest.approx(0.8, rel=0.2)
    assert extra(found.crowd, 12) == pytest.approx(extra(made_with.crowd, 12), rel=0.3)


def test_large_workflows_take_at_least_the_ideal() -> None:
    for case in cases([200], [4, 500]):
        found = simulated(case, 0)
        assert found.id == case.id
        assert found.makespan >= found.ideal
        assert found.operations > 0
    assert Case("tree", 199, 500) not in cases([200], [4, 500])
    with pytest.raises(UsageError, match="at least 2"):
        cases([1], [4])


def test_the_plan_of_a_layered_graph_is_close_to_the_ideal() -> None:
    found = simulated(Case("layered", 5000, 20), 0)
    assert found.makespan < 1.1 * found.ideal


@pytest.mark.real
def test_real_runs_are_recorded_like_virtual_ones(tmp_path: Path) -> None:
    """Real sandboxes execute the same plans, and calibrate the platform."""
    pytest.importorskip("numpy")
    grid = replace(SMALL, latency=0.001, warm_up=1)
    records = begun(tmp_path, grid, "real")
    counts: list[int] = []
    run_real(records, grid, 1, 0, counts.append)
    assert sum(counts) == 4
    rows, _ = records.rows()
    assert {row.mode for row in rows} == {"real"}
    assert all(row.cold > 0 for row in rows)
    assert fitted(records).cold.median > 0


@pytest.mark.real
def test_tasks_can_compute_and_results_are_checked(tmp_path: Path) -> None:
    """The text's report and the matrix's product equal those computed here."""
    pytest.importorskip("numpy")
    grid = replace(
        restricted(SMALL, ["text", "matrix"], ["wukong-optimised"]), latency=0.001, warm_up=0
    )
    records = begun(tmp_path, grid, "real")
    counts: list[int] = []
    run_real(records, grid, 1, 0, counts.append, computing=True)
    assert [row.workflow for row in records.rows()[0]] == ["text", "matrix"]


@pytest.mark.real
def test_centralised_designs_are_recorded_too(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    grid = replace(restricted(SMALL, ["tree"], ["strawman"]), latency=0.001)
    records = begun(tmp_path, grid, "real")
    run_real(records, grid, 1, 0, lambda count: None)
    (row,) = records.rows()[0]
    assert (row.planner, row.cold + row.warm) == ("strawman", 63)
