"""`shoal experiments run` and `compare`: output, records and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.main import main
from shoal.experiments.records import Records

RUN = ["experiments", "run", "--workflows", "tree", "--planners", "uniform", "--slas", "75"]


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let experiments run in this process."""
    monkeypatch.setattr("shoal.experiments.grid_run.cores", lambda: 1)


def test_part_of_a_grid_can_be_run_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--to", str(tmp_path / "here")]
    assert main([*RUN, *to, "--repeat", "1", "--warm-up", "1"]) == 0
    assert "2 runs" in capsys.readouterr().out
    assert main([*RUN, *to, "--repeat", "2", "--warm-up", "1"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*RUN, *to, "--repeat", "2", "--warm-up", "1", "--resume"]) == 0
    assert "1 runs" in capsys.readouterr().out
    records = Records(tmp_path / "here")
    assert records.experiment().repeat == 2
    assert {row.id for row in records.rows()[0]} == {"tree/uniform/75/0", "tree/uniform/75/1"}


def test_large_workflows_are_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = str(tmp_path / "scale")
    sizes = ["--tasks", "50", "--workers", "5,10"]
    assert main(["experiments", "run", "--grid", "scale", *sizes, "--to", to]) == 0
    assert "4 simulations" in capsys.readouterr().out
    lines, _ = Records(Path(to)).scale()
    assert [(line.shape, line.workers) for line in lines] == [
        ("tree", 5), ("tree", 10), ("layered", 5), ("layered", 10),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["--grid", "paper-1"], "no grid 'paper-1'"),
        (["--workflows", "tre"], "no workflow 'tre'"),
        (["--planners", "unifrom"], "no planner 'unifrom'"),
        (["--slas", "fifty"], "comma-separated integers"),
        (["--repeat", "0"], "at least 1"),
        (["--repeat", "1000000000000"], "GB left"),
        (["--work", "0"], "greater than 0"),
        (["--computing"], "--mode real"),
        (["--platform", "nowhere.json"], "nowhere.json"),
        (["--to", "/proc/nowhere"], "can't be written"),
        (["--resume"], "no experiment"),
    ],
)
def test_impossible_arguments_are_errors_before_anything_runs(
    given: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = [] if "--to" in given else ["--to", str(tmp_path / "here")]
    assert main(["experiments", "run", *given, *to]) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / "here" / "runs.jsonl").exists()


def test_virtual_runs_are_not_compared_as_if_they_were_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = str(tmp_path / "here")
    assert main([*RUN, "--to", here, "--repeat", "1", "--warm-up", "1"]) == 0
    assert main(["experiments", "compare", here, here]) == 2
    assert "virtual runs" in capsys.readouterr().err


@pytest.mark.real
def test_configurations_are_distributed_over_processes(tmp_path: Path) -> None:
    grid = {"workflows": ["tree"], "planners": ["uniform", "wukong"], "slas": [50], "warm_up": 1}
    (tmp_path / "mine.json").write_text(json.dumps(grid))
    program = (
        "import sys; from shoal import system; system.cores = lambda: 2\n"
        "from shoal.cli.main import main\n"
        "if __name__ == '__main__': sys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py", "experiments", "run", "--grid", "mine.json",
               "--repeat", "2", "--to", "here"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    rows, damaged = Records(tmp_path / "here").rows()
    assert len(rows) == 4
    assert not damaged
