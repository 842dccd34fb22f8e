"""History in a file: concurrent processes, and damaged files."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from shoal.errors import HistoryDamaged, HistoryLocked, ShoalError
from shoal.execution.timeline import Timeline
from shoal.metadata.history import FiledRun, RunRecord
from shoal.metadata.samples import encode_samples
from shoal.metadata.sqlite import SqliteHistory, set_aside
from shoal.types import RunId
from shoal.workflow import Workflow

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

NOTHING = encode_samples(Workflow({}, {}, ()), {}, Timeline((), 0.0), {})


@pytest.mark.real
def test_processes_can_open_and_record_concurrently(tmp_path: Path) -> None:
    """Even the first time, when each of them finds no file yet."""
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


def test_a_pickled_history_opens_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even in another working folder."""
    monkeypatch.chdir(tmp_path)
    with closing(SqliteHistory(Path("data"), kept=1)) as history:
        monkeypatch.chdir("/")
        with closing(pickle.loads(pickle.dumps(history))) as same:
            for name in ("r1", "r2"):
                record = RunRecord(RunId(name), "flow", "f", "planner", 1, 1, 0.0, 1.0, "done")
                same.file(FiledRun(record, [], [], NOTHING))
        assert [record.run for record in history.runs()] == ["r2"]
        assert history.blocks("flow") == [NOTHING]


def test_a_folder_that_cannot_be_created_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ShoalError, match=r"can't be used.*Set `folder`.*history=False") as caught:
        SqliteHistory(tmp_path / "file" / "history")
    assert str(tmp_path / "file" / "history") in str(caught.value)


def test_a_file_that_cannot_be_opened_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "history-2.sqlite").mkdir()
    with pytest.raises(ShoalError, match=r"can't be used.*Set `folder`"):
        SqliteHistory(tmp_path)


def test_a_file_that_is_no_database_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "history-2.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(HistoryDamaged, match=r"not a database.*`shoal history clear --all`"):
        SqliteHistory(tmp_path)
    aside = set_aside(tmp_path)
    assert aside.read_bytes().startswith(b"this is not a database")
    with closing(SqliteHistory(tmp_path)) as history:
        assert history.runs() == []


def filed(folder: Path, *, runs: int = 40) -> None:
    with closing(SqliteHistory(folder)) as history:
        for number in range(runs):
            run, shape = RunId(f"r{number}"), f"f{number % 3}"
            record = RunRecord(run, "flow", shape, "planner", 1, 1, float(number), 1.0, "done")
            history.file(FiledRun(record, [], [b"x" * 500], NOTHING))


def changed(folder: Path, statement: str) -> None:
    """Change the file directly."""
    with closing(sqlite3.connect(folder / "history-2.sqlite")) as database, database:
        assert database.execute(statement).rowcount == 1


USES: dict[str, Callable[[SqliteHistory], object]] = {
    "runs": lambda history: history.runs(),
    "names": lambda history: history.keys(),
    "count": lambda history: history.count("flow", "f"),
    "find": lambda history: history.find("r1"),
    "samples": lambda history: history.samples("flow"),
    "clear": lambda history: history.clear(),
    "clear a name": lambda history: history.clear("flow"),
}


@pytest.mark.parametrize("use", USES)
def test_a_damaged_file_is_an_error_and_stays_unchanged(tmp_path: Path, use: str) -> None:
    filed(tmp_path)
    path = tmp_path / "history-2.sqlite"
    damaged = path.read_bytes()[:4096] + Random(7).randbytes(path.stat().st_size - 4096)
    path.write_bytes(damaged)
    with (
        closing(SqliteHistory(tmp_path)) as history,
        pytest.raises(HistoryDamaged, match=r"malformed\..*`shoal history clear --all`") as caught,
    ):
        USES[use](history)
    assert str(path) in str(caught.value)
    assert path.read_bytes()[4096:] == damaged[4096:]


def test_damage_outside_the_runs_is_found_when_all_runs_are_deleted(tmp_path: Path) -> None:
    filed(tmp_path)
    path = tmp_path / "history-2.sqlite"
    with closing(sqlite3.connect(path)) as database:
        (page,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'samples'"
        ).fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(Random(7).randbytes(4096))
    with closing(SqliteHistory(tmp_path)) as history:
        assert len(history.runs(most=100)) == 40
        with pytest.raises(HistoryDamaged):
            history.clear()
        assert len(history.runs(most=100)) == 40


@pytest.mark.parametrize("instead", [b"qualitx", b"qualit\xff", b"qual(ty", b"qual\xff'y"])
def test_damaged_tables_are_errors_or_recreated(tmp_path: Path, instead: bytes) -> None:
    filed(tmp_path)
    path = tmp_path / "history-2.sqlite"
    path.write_bytes(path.read_bytes().replace(b"quality", instead))
    with pytest.raises(HistoryDamaged), closing(SqliteHistory(tmp_path)) as history:
        history.runs()
    try:
        with closing(SqliteHistory(tmp_path)) as history:
            history.clear()
    except HistoryDamaged:
        set_aside(tmp_path)
    filed(tmp_path, runs=1)


def test_several_damaged_files_can_be_set_aside(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "history-2.sqlite").write_text(f"damaged {number}")
        (tmp_path / "history-2.sqlite-wal").write_text(f"more of {number}")
        aside = set_aside(tmp_path)
        assert aside.name == f"history-2.sqlite.damaged-{number}"
        assert aside.read_text() == f"damaged {number}"
        assert aside.with_name(f"{aside.name}-wal").read_text() == f"more of {number}"
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    "change",
    [
        "quality = '{'",
        "quality = '[]'",
        "makespan = 'long'",
        "started = 9e999",
        "started = -1e20",
        "tasks = -1",
    ],
)
def test_a_damaged_record_is_an_error_with_advice(tmp_path: Path, change: str) -> None:
    filed(tmp_path, runs=3)
    changed(tmp_path, f"UPDATE runs SET {change} WHERE run = 'r1'")
    with closing(SqliteHistory(tmp_path)) as history:
        for use in (history.runs, lambda: history.find("r1")):
            with pytest.raises(HistoryDamaged, match=r"run r1: .*`shoal history clear flow`"):
                use()
        assert history.find("r2").run == "r2"
        assert history.clear("flow") == 3
        assert history.runs() == []


def test_a_damaged_timeline_is_an_error_with_advice(tmp_path: Path) -> None:
    filed(tmp_path, runs=3)
    changed(tmp_path, "UPDATE records SET data = x'00' WHERE run = 'r1'")
    with closing(SqliteHistory(tmp_path)) as history:
        assert history.load(history.find("r0")).records == [b"x" * 500]
        with pytest.raises(HistoryDamaged, match=r"run r1: .*`shoal history clear flow`"):
            history.load(history.find("r1"))


def test_invalid_text_is_an_error_with_advice(tmp_path: Path) -> None:
    filed(tmp_path, runs=3)
    changed(tmp_path, "UPDATE runs SET outcome = CAST(x'fffe' AS TEXT) WHERE run = 'r1'")
    with closing(SqliteHistory(tmp_path)) as history, pytest.raises(HistoryDamaged, match="UTF-8"):
        history.runs()


def test_damaged_samples_are_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filed(tmp_path, runs=3)
    changed(tmp_path, "UPDATE samples SET data = x'00' WHERE run = 'r1'")
    with closing(SqliteHistory(tmp_path)) as history:
        for _ in range(2):
            assert len(history.samples("flow")) == 2
    (said,) = caplog.messages
    assert said.startswith("ignoring 1 of 3 runs of 'flow'")
    assert str(tmp_path / "history-2.sqlite") in said
    assert "`shoal history clear flow`" in said


def test_a_locked_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filed(tmp_path, runs=1)
    monkeypatch.setattr("shoal.metadata.sqlite._LOCK_SECONDS", 0.01)
    with (
        closing(SqliteHistory(tmp_path)) as history,
        closing(sqlite3.connect(tmp_path / "history-2.sqlite")) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryLocked, match=r"history-2\.sqlite .*locked\. .*try again"):
            history.clear("flow")
        assert len(history.runs()) == 1
        other.rollback()
        assert history.clear("flow") == 1


def test_runs_that_made_room_leave_nothing_in_the_file(tmp_path: Path) -> None:
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


def test_the_file_holds_only_workflows_that_have_runs(tmp_path: Path) -> None:
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
