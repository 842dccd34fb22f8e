"""Runs are filed, found, and make room for others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import ShoalError, UnknownRun
from shoal.execution.timeline import Span, encode_record
from shoal.metadata import history as module
from shoal.metadata.history import KEPT, History, RunRecord
from shoal.types import RunId, TaskId, WorkerId

w0, w1 = WorkerId("w0"), WorkerId("w1")
TASKS = [TaskId("clean#1"), TaskId("größe#1")]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path)
    yield history
    history.close()


def record(
    run: str, *, name: str = "flow", fingerprint: str = "f", started: float = 0
) -> RunRecord:
    return RunRecord(
        RunId(run), name, fingerprint, "SpreadPlanner", 2, 2, 1000.0 + started, 1.5, "done"
    )


def test_run_that_was_filed_is_found_as_it_was(history: History) -> None:
    filed = replace(record("1115-a"), outcome="task 'a' failed: ValueError: größe")
    history.file(filed, TASKS, [])
    assert history.find("1115-a") == filed
    assert history.runs() == [filed]


def test_latest_runs_come_first_and_no_more_than_asked_for(history: History) -> None:
    for number in (3, 1, 4, 0, 2):
        history.file(record(f"r{number}", started=number), TASKS, [])
    assert [found.run for found in history.runs()] == ["r4", "r3", "r2", "r1", "r0"]
    assert [found.run for found in history.runs(most=2)] == ["r4", "r3"]


def test_runs_of_one_name_can_be_asked_for(history: History) -> None:
    for number in range(6):
        name = f"flow {number % 2}"
        history.file(record(f"r{number}", name=name, started=number), TASKS, [])
    assert [found.run for found in history.runs(name="flow 1")] == ["r5", "r3", "r1"]
    assert history.runs(name="flow") == []


def test_empty_history_has_no_runs(history: History) -> None:
    assert history.runs() == []
    assert history.count("flow", "f") == 0


def test_runs_are_counted_by_name_and_fingerprint(history: History) -> None:
    for run, name, fingerprint in (
        ("1", "a", "f"),
        ("2", "a", "f"),
        ("3", "a", "g"),
        ("4", "b", "f"),
    ):
        history.file(record(run, name=name, fingerprint=fingerprint), TASKS, [])
    assert history.count("a", "f") == 2
    assert history.count("a", "g") == 1
    assert history.count("b", "f") == 1
    assert history.count("b", "g") == 0


def test_run_is_found_by_an_unambiguous_beginning(history: History) -> None:
    for run in ("1115-0930-aa", "1115-0931-bb", "1116-0930-cc"):
        history.file(record(run), TASKS, [])
    assert history.find("1116").run == "1116-0930-cc"
    assert history.find("1115-0931").run == "1115-0931-bb"
    assert history.find("1115-0930-aa").run == "1115-0930-aa"


@pytest.mark.parametrize("run", ["1115", "", "1117", "0930", "1115-0930-aa-more", "%", "1115_0930"])
def test_run_that_is_not_there_or_ambiguous_is_unknown(history: History, run: str) -> None:
    for filed in ("1115-0930-aa", "1115-0931-bb"):
        history.file(record(filed), TASKS, [])
    with pytest.raises(UnknownRun) as caught:
        history.find(run)
    assert caught.value.run == run


def test_run_whose_id_is_the_beginning_of_another_is_found(history: History) -> None:
    for filed in ("r10", "r1", "r11"):
        history.file(record(filed), TASKS, [])
    assert history.find("r1").run == "r1"


def test_timeline_is_as_the_workers_recorded_it(history: History) -> None:
    rows = {
        w0: [(0, -1, 1000.0, 1000.25, 0.0, 0), (3, 0, 1000.25, 1000.5, 0.125, 64)],
        w1: [(2, 0, 1000.5, 1000.625, 0.0, 64), (3, 1, 1000.625, 1001.5, 0.75, 8)],
    }
    filed = record("r1")
    history.file(filed, TASKS, [encode_record(worker, rows[worker]) for worker in (w1, w0)])
    timeline = history.timeline(filed)
    assert timeline.makespan == 1.5
    assert timeline.spans == (
        Span("cold start", w0, None, 0.0, 0.25),
        Span("execute", w0, TASKS[0], 0.25, 0.5, 0.125, 64),
        Span("fetch", w1, TASKS[0], 0.5, 0.625, 0.0, 64),
        Span("execute", w1, TASKS[1], 0.625, 1.5, 0.75, 8),
    )


def test_run_without_records_has_an_empty_timeline(history: History) -> None:
    history.file(record("r1"), TASKS, [])
    assert history.timeline(record("r1")).spans == ()


def test_timelines_of_runs_are_kept_apart(history: History) -> None:
    for number in range(3):
        row = (3, 0, 1000.0, 1000.0 + number, 0.0, 0)
        history.file(record(f"r{number}"), TASKS, [encode_record(w0, [row])])
    for number in range(3):
        (span,) = history.timeline(history.find(f"r{number}")).spans
        assert span.seconds == number


def test_run_that_is_filed_again_counts_once(history: History) -> None:
    rows = [encode_record(w0, [(3, 0, 1000.0, 1001.0, 0.0, 0)])]
    history.file(record("r1"), TASKS, rows)
    history.file(replace(record("r1"), outcome="cancelled"), TASKS, rows)
    assert [found.outcome for found in history.runs()] == ["cancelled"]
    assert len(history.timeline(record("r1")).spans) == 1


def test_oldest_runs_of_a_workflow_make_room_for_new_ones(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KEPT >= 50
    monkeypatch.setattr(module, "KEPT", 5)
    rows = [encode_record(w0, [(3, 0, 1000.0, 1001.0, 0.0, 0)])] * 2
    for number in range(12):
        history.file(record(f"a{number:02}", started=number), TASKS, rows)
        history.file(record(f"b{number:02}", fingerprint="g", started=number), TASKS, rows)
        history.file(record(f"c{number:02}", name="other", started=number), TASKS, rows)
    kept = {found.run for found in history.runs(most=1000)}
    assert kept == {f"{letter}{number:02}" for letter in "abc" for number in range(7, 12)}
    assert history.count("flow", "f") == 5
    with sqlite3.connect(tmp_path / "history.sqlite") as database:
        records = database.execute("SELECT run, COUNT(*) FROM records GROUP BY run").fetchall()
    database.close()
    assert dict(records) == dict.fromkeys(kept, 2)


def test_history_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    first = History(tmp_path / "new" / "folder")
    first.file(record("r1"), TASKS, [])
    first.close()
    second = History(tmp_path / "new" / "folder")
    assert second.runs() == [record("r1")]
    second.close()


def test_threads_may_file_at_once(tmp_path: Path) -> None:
    histories = [History(tmp_path), History(tmp_path)]
    together = threading.Barrier(8)
    errors: list[BaseException] = []

    def file(number: int) -> None:
        together.wait()
        try:
            for turn in range(10):
                filed = record(f"r{number}-{turn}", name=f"flow {number}", started=turn)
                histories[number % 2].file(filed, TASKS, [encode_record(w0, [])])
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            errors.append(error)

    threads = [threading.Thread(target=file, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(histories[0].runs(most=1000)) == 80
    for history in histories:
        history.close()


WRITER = """
import pathlib, sys
from shoal.metadata.history import History, RunRecord

folder, number = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
history = History(folder)
for turn in range(20):
    run = f"r{number}-{turn}"
    record = RunRecord(run, "flow", number, "planner", 1, 1, float(turn), 1.0, "done")
    history.file(record, ["a"], [b'{"worker": "w", "rows": 0, "order": "little"}\\n'])
history.close()
"""


@pytest.mark.real
def test_processes_may_open_and_file_at_once(tmp_path: Path) -> None:
    """Also the very first time, when each of them finds no file yet."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "new"), str(number)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    assert [writer.communicate()[1].decode() for writer in writers] == [""] * 4
    history = History(tmp_path / "new")
    assert len(history.runs(most=1000)) == 80
    history.close()


def test_folder_that_can_not_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ShoalError, match=r"can't be opened.*Set `folder`.*history=False") as caught:
        History(tmp_path / "file" / "history")
    assert str(tmp_path / "file" / "history") in str(caught.value)


def test_file_that_can_not_be_opened_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").mkdir()
    with pytest.raises(ShoalError, match=r"can't be opened.*Set `folder`"):
        History(tmp_path)


def test_file_that_is_no_database_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(ShoalError, match=r"not a database.*Set `folder`"):
        History(tmp_path)
