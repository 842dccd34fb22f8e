"""History in a file: opened by several processes at once, and what may be wrong with the file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.metadata.history import FiledRun, RunRecord
from shoal.metadata.sqlite import SqliteHistory
from shoal.types import RunId

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


def test_nothing_is_left_in_the_file_of_runs_that_made_room(tmp_path: Path) -> None:
    with closing(SqliteHistory(tmp_path, kept=2)) as history:
        for number in range(5):
            run = RunId(f"r{number}")
            record = RunRecord(run, "flow", "f", "planner", 1, 1, float(number), 1.0, "done")
            history.file(FiledRun(record, [], [b"a", b"b"], b""))
    with closing(sqlite3.connect(tmp_path / "history-2.sqlite")) as database:
        records = database.execute("SELECT run, COUNT(*) FROM records GROUP BY run").fetchall()
        samples = database.execute("SELECT run FROM samples").fetchall()
    assert dict(records) == {"r3": 2, "r4": 2}
    assert {run for (run,) in samples} == {"r3", "r4"}


def test_no_more_workflows_are_left_in_the_file_than_there_are_runs_of(tmp_path: Path) -> None:
    with closing(SqliteHistory(tmp_path, kept=5)) as history:
        for number in range(20):
            run = RunId(f"r{number}")
            shape = f"f{number}" if number % 2 else "common"
            record = RunRecord(run, "flow", shape, "planner", 1, 1, float(number), 1.0, "done")
            history.file(FiledRun(record, [], [], b""))
            history.file(FiledRun(record, [], [], b""))
        left = {record.fingerprint for record in history.runs()}
    with closing(sqlite3.connect(tmp_path / "history-2.sqlite")) as database:
        rows = database.execute("SELECT fingerprint FROM workflows").fetchall()
    assert sorted(shape for (shape,) in rows) == sorted(left)
