"""The history's schema: files of earlier versions are migrated with their data.

`history_1.sql` to `history_4.sql` are dumps of files that four earlier versions of Shoal wrote:
before the index of fingerprints, before the keys of workflows, before versions were recorded, and
before platforms were.
Each contains two runs of a workflow of three tasks.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import HistoryDamaged, HistoryTooNew
from shoal.metadata.history import FiledRun, RunRecord
from shoal.metadata.migrations import MIGRATIONS, VERSION, apply_migrations, schema_version
from shoal.metadata.sqlite import SqliteHistory
from shoal.types import RunId

DUMPS = {1: "history_1.sql", 2: "history_2.sql", 3: "history_3.sql", 4: "history_4.sql"}
Schema = dict[str, list[tuple[object, ...]]]


def restore(dump: str, folder: Path) -> Path:
    path = folder / "history-2.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((Path(__file__).parent / dump).read_text())
    return path


def schema(path: Path) -> Schema:
    """Return every table's columns, and every index's table and columns."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT type, name, tbl_name FROM sqlite_master").fetchall()
        return {
            f"{kind} {name} of {table}": database.execute(f"PRAGMA {kind}_info({name})").fetchall()
            for kind, name, table in rows
        }


@pytest.mark.parametrize("dump", DUMPS.values())
def test_file_of_an_earlier_version_keeps_its_runs_timelines_and_samples(
    tmp_path: Path, dump: str
) -> None:
    restore(dump, tmp_path)
    for _ in range(2):
        with closing(SqliteHistory(tmp_path)) as history:
            runs = history.runs()
            assert [(run.name, run.key, run.tasks, run.outcome) for run in runs] == [
                ("flow", "flow", 3, "done")
            ] * 2
            assert history.keys() == ["flow"]
            assert history.runs(key="flow") == runs
            assert history.count("flow", runs[0].fingerprint) == 2
            for run in runs:
                tasks = {span.task for span in history.load(run).timeline.spans}
                assert {"square#0", "square#1", "total#0"} <= tasks
            assert len(history.samples("flow")) == 2
            assert [run.platform for run in runs] == ["", ""]
            assert [block.platform for block in history.samples("flow")] == ["", ""]
            assert history.samples("/script.py:flow") == []


@pytest.mark.parametrize("dump", DUMPS.values())
def test_migrated_file_has_the_schema_of_a_new_one(tmp_path: Path, dump: str) -> None:
    (tmp_path / "new").mkdir()
    SqliteHistory(tmp_path / "new").close()
    migrated = restore(dump, tmp_path)
    SqliteHistory(tmp_path).close()
    assert schema(migrated) == schema(tmp_path / "new" / "history-2.sqlite")
    with closing(sqlite3.connect(migrated)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)


@pytest.mark.parametrize("dump", DUMPS.values())
def test_runs_are_recorded_in_and_deleted_from_a_migrated_file(tmp_path: Path, dump: str) -> None:
    restore(dump, tmp_path)
    with closing(SqliteHistory(tmp_path)) as history:
        record = RunRecord(RunId("new"), "flow", "f", "p", 1, 1, 2e9, 1.0, "done", key="/a.py:flow")
        history.file(FiledRun(record, [], [], b""))
        assert history.keys() == ["/a.py:flow", "flow"]
        assert history.clear("flow") == 2
        assert [run.run for run in history.runs()] == ["new"]
        assert history.clear() == 1


@pytest.mark.parametrize("since", range(1, VERSION + 1))
def test_each_migration_continues_from_the_version_before(tmp_path: Path, since: int) -> None:
    (tmp_path / "new").mkdir()
    SqliteHistory(tmp_path / "new").close()
    path = tmp_path / "history-2.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        for number in range(1, since + 1):
            database.executescript(MIGRATIONS[number])
        database.execute(f"PRAGMA user_version = {since}")
        apply_migrations(database, since)
    assert schema(path) == schema(tmp_path / "new" / "history-2.sqlite")


def test_file_without_tables_has_version_0() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        assert schema_version(database) == 0
        apply_migrations(database, 0)
        assert schema_version(database) == VERSION


def test_migration_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = restore(DUMPS[1], tmp_path)
    before = schema(path)
    monkeypatch.setitem(MIGRATIONS, VERSION, "DROP TABLE samples; SELECT no_such_column FROM runs")
    with pytest.raises(HistoryDamaged, match="no_such_column"):
        SqliteHistory(tmp_path)
    assert schema(path) == before
    monkeypatch.undo()
    with closing(SqliteHistory(tmp_path)) as history:
        assert len(history.runs()) == 2


def test_a_file_of_a_newer_version_is_rejected_and_left_alone(tmp_path: Path) -> None:
    path = restore(DUMPS[3], tmp_path)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(
        HistoryTooNew, match=r"newer Shoal wrote it.* Upgrade Shoal, or set"
    ) as caught:
        SqliteHistory(tmp_path)
    assert str(path) in str(caught.value)
    assert f"schema {VERSION + 1}; this one supports up to {VERSION}" in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
