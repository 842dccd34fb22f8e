"""`shoal experiments report`: output and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_examples import ROW

from shoal.cli.main import main
from shoal.experiments.records import Experiment, Records


@pytest.fixture
def records(tmp_path: Path) -> Records:
    records = Records(tmp_path)
    records.begin(Experiment("paper-000", "virtual", 1, 0, "2026-01-02", "here", "0.1.0", "run"))
    records.append(ROW)
    records.append(replace(ROW, id="tree/wukong-optimised/50/0", planner="wukong-optimised",
                           makespan=2.0))  # fmt: skip
    return records


def test_claims_and_the_location_of_the_page_are_printed(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiments", "report", str(records.folder)]) == 0
    printed = capsys.readouterr()
    claim = next(line for line in printed.out.splitlines() if "Uniform is faster" in line)
    assert "12.6 % less" in claim
    assert "50.0 % less" in claim
    assert claim.rstrip().endswith("too few runs")
    assert "Auto" not in printed.out  # there is nothing to report
    assert "on this platform: simulated" in printed.out
    assert f"written to {records.folder / 'report.html'}" in printed.out
    assert "skipped: There is no timeline of tree/uniform/50/0" in printed.err


def test_a_missing_folder_is_a_bad_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiments", "report", str(tmp_path / "nowhere")]) == 2
    assert "no folder" in capsys.readouterr().err
