"""Runs are filed, found, and make room for others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import ShoalError, UnknownRun
from shoal.execution.timeline import Span, Timeline, encode_record
from shoal.metadata.history import KEPT, FiledRun, RunRecord
from shoal.metadata.samples import distilled
from shoal.metadata.sqlite import SqliteHistory
from shoal.types import RunId, TaskId, WorkerId
from shoal.workflow import Workflow

w0, w1 = WorkerId("w0"), WorkerId("w1")
TASKS = [TaskId("clean#1"), TaskId("größe#1")]
NOTHING = distilled(Workflow({}, {}, ()), {}, Timeline((), 0.0), {})


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SqliteHistory]:
    history = SqliteHistory(tmp_path)
    yield history
    history.close()


def record(
    run: str, *, name: str = "flow", fingerprint: str = "f", started: float = 0
) -> RunRecord:
    return RunRecord(
        RunId(run), name, fingerprint, "SpreadPlanner", 2, 2, 1000.0 + started, 1.5, "done"
    )


def file(history: SqliteHistory, filed: RunRecord, records: Sequence[bytes]) -> None:
    """File a run that taught nothing."""
    history.file(FiledRun(filed, TASKS, records, NOTHING))


def test_run_that_was_filed_is_found_as_it_was(history: SqliteHistory) -> None:
    filed = replace(record("1115-a"), outcome="task 'a' failed: ValueError: größe")
    file(history, filed, [])
    assert history.find("1115-a") == filed
    assert history.runs() == [filed]


def test_latest_runs_come_first_and_no_more_than_asked_for(history: SqliteHistory) -> None:
    for number in (3, 1, 4, 0, 2):
        file(history, record(f"r{number}", started=number), [])
    assert [found.run for found in history.runs()] == ["r4", "r3", "r2", "r1", "r0"]
    assert [found.run for found in history.runs(most=2)] == ["r4", "r3"]


def test_runs_of_one_name_can_be_asked_for(history: SqliteHistory) -> None:
    for number in range(6):
        name = f"flow {number % 2}"
        file(history, record(f"r{number}", name=name, started=number), [])
    assert [found.run for found in history.runs(name="flow 1")] == ["r5", "r3", "r1"]
    assert history.runs(name="flow") == []


def test_empty_history_has_no_runs(history: SqliteHistory) -> None:
    assert history.runs() == []
    assert history.count("flow", "f") == 0


def test_runs_are_counted_by_name_and_fingerprint(history: SqliteHistory) -> None:
    for run, name, fingerprint in (
        ("1", "a", "f"),
        ("2", "a", "f"),
        ("3", "a", "g"),
        ("4", "b", "f"),
    ):
        file(history, record(run, name=name, fingerprint=fingerprint), [])
    assert history.count("a", "f") == 2
    assert history.count("a", "g") == 1
    assert history.count("b", "f") == 1
    assert history.count("b", "g") == 0


def test_run_is_found_by_an_unambiguous_beginning(history: SqliteHistory) -> None:
    for run in ("1115-0930-aa", "1115-0931-bb", "1116-0930-cc"):
        file(history, record(run), [])
    assert history.find("1116").run == "1116-0930-cc"
    assert history.find("1115-0931").run == "1115-0931-bb"
    assert history.find("1115-0930-aa").run == "1115-0930-aa"


@pytest.mark.parametrize("run", ["1115", "", "1117", "0930", "1115-0930-aa-more", "%", "1115_0930"])
def test_run_that_is_not_there_or_ambiguous_is_unknown(history: SqliteHistory, run: str) -> None:
    for filed in ("1115-0930-aa", "1115-0931-bb"):
        file(history, record(filed), [])
    with pytest.raises(UnknownRun) as caught:
        history.find(run)
    assert caught.value.run == run


def test_run_whose_id_is_the_beginning_of_another_is_found(history: SqliteHistory) -> None:
    for filed in ("r10", "r1", "r11"):
        file(history, record(filed), [])
    assert history.find("r1").run == "r1"


def test_timeline_is_as_the_workers_recorded_it(history: SqliteHistory) -> None:
    rows = {
        w0: [(0, -1, 1000.0, 1000.25, 0.0, 0), (3, 0, 1000.25, 1000.5, 0.125, 64)],
        w1: [(2, 0, 1000.5, 1000.625, 0.0, 64), (3, 1, 1000.625, 1001.5, 0.75, 8)],
    }
    filed = record("r1")
    file(history, filed, [encode_record(worker, rows[worker]) for worker in (w1, w0)])
    timeline = history.load(filed).timeline
    assert timeline.makespan == 1.5
    assert timeline.spans == (
        Span("cold start", w0, None, 0.0, 0.25),
        Span("execute", w0, TASKS[0], 0.25, 0.5, 0.125, 64),
        Span("fetch", w1, TASKS[0], 0.5, 0.625, 0.0, 64),
        Span("execute", w1, TASKS[1], 0.625, 1.5, 0.75, 8),
    )


def test_run_without_records_has_an_empty_timeline(history: SqliteHistory) -> None:
    file(history, record("r1"), [])
    assert history.load(record("r1")).timeline.spans == ()


def test_timelines_of_runs_are_kept_apart(history: SqliteHistory) -> None:
    for number in range(3):
        row = (3, 0, 1000.0, 1000.0 + number, 0.0, 0)
        file(history, record(f"r{number}"), [encode_record(w0, [row])])
    for number in range(3):
        (span,) = history.load(history.find(f"r{number}")).timeline.spans
        assert span.seconds == number


def test_run_that_is_filed_again_counts_once(history: SqliteHistory) -> None:
    rows = [encode_record(w0, [(3, 0, 1000.0, 1001.0, 0.0, 0)])]
    file(history, record("r1"), rows)
    file(history, replace(record("r1"), outcome="cancelled"), rows)
    assert [found.outcome for found in history.runs()] == ["cancelled"]
    assert len(history.load(record("r1")).timeline.spans) == 1


def test_oldest_runs_of_a_workflow_make_room_for_new_ones(tmp_path: Path) -> None:
    assert KEPT >= 50
    history = SqliteHistory(tmp_path, kept=5)
    rows = [encode_record(w0, [(3, 0, 1000.0, 1001.0, 0.0, 0)])] * 2
    for number in range(12):
        file(history, record(f"a{number:02}", started=number), rows)
        file(history, record(f"b{number:02}", name="other", started=number), rows)
    kept = {found.run for found in history.runs(most=1000)}
    assert kept == {f"{letter}{number:02}" for letter in "ab" for number in range(7, 12)}
    assert history.count("flow", "f") == 5
    with sqlite3.connect(tmp_path / "history-2.sqlite") as database:
        records = database.execute("SELECT run, COUNT(*) FROM records GROUP BY run").fetchall()
    database.close()
    history.close()
    assert dict(records) == dict.fromkeys(kept, 2)


def test_runs_of_a_rare_shape_or_configuration_are_kept_longer(tmp_path: Path) -> None:
    history = SqliteHistory(tmp_path, kept=5)
    file(history, record("rare", fingerprint="g"), [])
    file(history, replace(record("large", started=1), configuration="8192 MB"), [])
    for number in range(9):
        file(history, record(f"r{number}", started=number + 2), [])
    assert [found.run for found in history.runs()] == ["r8", "r7", "r6", "large", "rare"]
    history.close()


def test_history_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    first = SqliteHistory(tmp_path / "new" / "folder")
    file(first, record("r1"), [])
    first.close()
    second = SqliteHistory(tmp_path / "new" / "folder")
    assert second.runs() == [record("r1")]
    second.close()


def test_threads_may_file_at_once(tmp_path: Path) -> None:
    histories = [SqliteHistory(tmp_path), SqliteHistory(tmp_path)]
    together = threading.Barrier(8)
    errors: list[BaseException] = []

    def write(number: int) -> None:
        together.wait()
        try:
            for turn in range(10):
                filed = record(f"r{number}-{turn}", name=f"flow {number}", started=turn)
                file(histories[number % 2], filed, [encode_record(w0, [])])
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
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
from shoal.metadata.history import FiledRun, RunRecord
from shoal.metadata.sqlite import SqliteHistory

folder, number = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
history = SqliteHistory(folder)
for turn in range(20):
    run = f"r{number}-{turn}"
    record = RunRecord(run, "flow", number, "planner", 1, 1, float(turn), 1.0, "done")
    empty = b'{"worker": "w", "rows": 0, "order": "little"}\\n'
    history.file(FiledRun(record, ["a"], [empty], b""))
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
    history = SqliteHistory(tmp_path / "new")
    assert len(history.runs(most=1000)) == 80
    history.close()


def test_folder_that_can_not_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ShoalError, match=r"can't be opened.*Set `folder`.*history=False") as caught:
        SqliteHistory(tmp_path / "file" / "history")
    assert str(tmp_path / "file" / "history") in str(caught.value)


def test_file_that_can_not_be_opened_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "history-2.sqlite").mkdir()
    with pytest.raises(ShoalError, match=r"can't be opened.*Set `folder`"):
        SqliteHistory(tmp_path)


def test_file_that_is_no_database_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "history-2.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(ShoalError, match=r"not a database.*Set `folder`"):
        SqliteHistory(tmp_path)
