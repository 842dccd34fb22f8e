"""The output of user code is stored per run, and not forever."""

import os
from pathlib import Path

import pytest

from shoal.platform import logs
from shoal.platform.base import LogLine
from shoal.platform.logs import RunLogs
from shoal.types import RunId

ONE, OTHER = RunId("run-1"), RunId("run-2")


def texts(kept: RunLogs, run: RunId = ONE) -> list[str]:
    return [line.text for line in kept.read(run)]


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    kept = RunLogs(tmp_path / "made" / "when needed")
    kept.append(ONE, "w0", "stdout", "first")
    kept.extend(ONE, "w1", "stderr", ["ünïcode \x00", ""])
    kept.append(OTHER, "w0", "stdout", "elsewhere")
    first, second, third = kept.read(ONE)
    assert (first.worker, first.stream, first.text) == ("w0", "stdout", "first")
    assert second == LogLine(second.time, "w1", "stderr", "ünïcode \x00")
    assert third.text == ""
    assert first.time <= second.time <= third.time
    assert texts(kept, OTHER) == ["elsewhere"]


def test_another_process_can_read_them(tmp_path: Path) -> None:
    RunLogs(tmp_path).append(ONE, "w0", "stdout", "text")
    assert texts(RunLogs(tmp_path)) == ["text"]


def test_a_run_that_printed_nothing_has_no_lines(tmp_path: Path) -> None:
    assert RunLogs(tmp_path / "nowhere").read(ONE) == []


def test_output_beyond_the_limit_is_cut_off_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MAX_NBYTES", 1000)
    kept = RunLogs(tmp_path)
    for _ in range(10):
        kept.extend(ONE, "w0", "stdout", ["x" * 20] * 5)
    kept.append(OTHER, "w0", "stdout", "still kept")
    found = texts(kept)
    assert found[-1] == "… the rest is not stored"
    assert 5 < len(found) < 25
    assert set(found[:-1]) == {"x" * 20}
    assert (tmp_path / "run-1.jsonl").stat().st_size < 1200
    assert texts(kept, OTHER) == ["still kept"]


def test_the_oldest_runs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MAX_RUNS", 3)
    kept = RunLogs(tmp_path)
    for number in range(5):
        run = RunId(f"run-{number}")
        kept.append(run, "w0", "stdout", "text")
        os.utime(tmp_path / f"{run}.jsonl", (number, number))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["run-2", "run-3", "run-4"]


def test_a_file_deleted_by_another_process_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The files are listed. 2. Another process deletes one. 3. Its age is read."""
    monkeypatch.setattr(logs, "_MAX_RUNS", 1)
    (tmp_path / "old.jsonl").symlink_to(tmp_path / "deleted")
    kept = RunLogs(tmp_path)
    kept.append(ONE, "w0", "stdout", "text")
    assert texts(kept) == ["text"]


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    kept = RunLogs(tmp_path)
    kept.append(ONE, "w0", "stdout", "whole")
    with (tmp_path / "run-1.jsonl").open("a") as file:
        file.write('[12.5, "w0", "std')
    assert texts(kept) == ["whole"]


def test_nothing_is_remembered_of_a_run_whose_lines_were_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that runs for months sees millions of runs."""
    monkeypatch.setattr(logs, "_MAX_RUNS", 2)
    monkeypatch.setattr(logs, "_MAX_NBYTES", 100)
    kept = RunLogs(tmp_path)
    kept.append(ONE, "w0", "stdout", "x" * 200)
    os.utime(tmp_path / f"{ONE}.jsonl", (1e9, 1e9))
    for run in ("run-3", "run-4"):
        kept.append(RunId(run), "w0", "stdout", "text")
    assert texts(kept) == []
    kept.append(ONE, "w0", "stdout", "again")
    assert texts(kept) == ["again"]
