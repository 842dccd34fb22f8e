"""`SqliteHistory`: history in a file of the user's."""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from dataclasses import asdict, fields
from pathlib import Path

from shoal.errors import ShoalError, UnknownRun
from shoal.metadata.history import KEPT, READ, FiledRun, RunRecord
from shoal.metadata.samples import Samples, undistilled

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS workflows (fingerprint TEXT PRIMARY KEY, tasks BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    planner TEXT NOT NULL,
    tasks INTEGER NOT NULL,
    workers INTEGER NOT NULL,
    started REAL NOT NULL,
    makespan REAL NOT NULL,
    outcome TEXT NOT NULL,
    configuration TEXT NOT NULL,
    planning REAL NOT NULL,
    sla TEXT NOT NULL,
    predicted REAL,
    quality TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_by_workflow ON runs (name, started);
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (started);
CREATE INDEX IF NOT EXISTS runs_by_fingerprint ON runs (fingerprint);
CREATE TABLE IF NOT EXISTS records (run TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS records_by_run ON records (run);
CREATE TABLE IF NOT EXISTS samples (
    name TEXT NOT NULL,
    started REAL NOT NULL,
    run TEXT NOT NULL,
    shape TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (name, started, run)
) WITHOUT ROWID;
"""
_COLUMNS = tuple(field.name for field in fields(RunRecord))
_FILE = "history-2.sqlite"
"""The number is that of the schema."""


class SqliteHistory:
    """The user's runs; safe to use from several threads and processes."""

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.where = str(folder)
        """The folder."""
        self._kept = kept
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._database = _opened(folder / _FILE)
        except (OSError, sqlite3.Error) as error:
            raise ShoalError(
                f"The history in {folder} can't be opened: {error}. Set `folder` to a folder that "
                "can be written to, or history=False."
            ) from error

    def file(self, run: FiledRun) -> None:
        """Keep a run."""
        record = run.record
        values = asdict(record) | {"quality": json.dumps(record.quality)}
        names = zlib.compress(json.dumps(run.tasks).encode(), 1)
        shape = f"{record.fingerprint} {record.configuration}"
        marks = ", ".join("?" * len(_COLUMNS))
        with self._lock, self._database as database:
            self._forget(database, [record.run])
            database.execute(
                "INSERT OR IGNORE INTO workflows VALUES (?, ?)", (record.fingerprint, names)
            )
            database.execute(
                f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({marks})",
                [values[column] for column in _COLUMNS],
            )
            database.executemany(
                "INSERT INTO records VALUES (?, ?)",
                [(record.run, zlib.compress(data, 1)) for data in run.records],
            )
            database.execute(
                "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
                (record.name, record.started, record.run, shape, run.samples),
            )
            self._make_room(database, record.name)

    def _make_room(self, database: sqlite3.Connection, name: str) -> None:
        """Forget the oldest runs of the most common shape until few enough are left."""
        count = database.execute("SELECT COUNT(*) FROM samples WHERE name = ?", (name,))
        for _ in range(count.fetchone()[0] - self._kept):
            run = database.execute(
                "SELECT run FROM samples WHERE name = ?1 AND shape = (SELECT shape FROM samples "
                "WHERE name = ?1 GROUP BY shape ORDER BY COUNT(*) DESC, MIN(started) LIMIT 1) "
                "ORDER BY started LIMIT 1",
                (name,),
            ).fetchone()
            self._forget(database, [run[0]])

    def _forget(self, database: sqlite3.Connection, runs: list[str]) -> None:
        for run in runs:
            found = database.execute(
                "SELECT name, started, fingerprint FROM runs WHERE run = ?", (run,)
            ).fetchall()
            database.execute("DELETE FROM runs WHERE run = ?", (run,))
            database.execute("DELETE FROM records WHERE run = ?", (run,))
            for name, started, fingerprint in found:
                database.execute(
                    "DELETE FROM samples WHERE name = ? AND started = ? AND run = ?",
                    (name, started, run),
                )
                database.execute(
                    "DELETE FROM workflows WHERE fingerprint = ? "
                    "AND fingerprint NOT IN (SELECT fingerprint FROM runs)",
                    (fingerprint,),
                )

    def runs(self, *, name: str | None = None, most: int = 20) -> list[RunRecord]:
        """The latest runs first."""
        where, values = ("WHERE name = ? ", (name,)) if name else ("", ())
        with self._lock:
            rows = self._database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM runs {where}ORDER BY started DESC LIMIT ?",
                (*values, most),
            ).fetchall()
        return [_record(row) for row in rows]

    def names(self) -> list[str]:
        """The names of workflows that have runs, the latest run's first."""
        with self._lock:
            rows = self._database.execute(
                "SELECT name FROM runs GROUP BY name ORDER BY MAX(started) DESC"
            ).fetchall()
        return [row[0] for row in rows]

    def count(self, name: str, fingerprint: str) -> int:
        """How many runs of a workflow are known."""
        with self._lock:
            row = self._database.execute(
                "SELECT COUNT(*) FROM runs WHERE name = ? AND fingerprint = ?", (name, fingerprint)
            ).fetchone()
        return int(row[0])

    def find(self, run: str) -> RunRecord:
        """A run by its id, or by the beginning of it if that is unambiguous."""
        with self._lock:
            rows = self._database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM runs WHERE substr(run, 1, ?) = ? "
                "ORDER BY length(run) LIMIT 2",
                (len(run), run),
            ).fetchall()
        if not rows or not run or (len(rows) > 1 and rows[0][0] != run):
            raise UnknownRun(run)
        return _record(rows[0])

    def load(self, record: RunRecord) -> FiledRun:
        """All that is kept of a run."""
        with self._lock:
            names = self._database.execute(
                "SELECT tasks FROM workflows WHERE fingerprint = ?", (record.fingerprint,)
            ).fetchone()
            rows = self._database.execute(
                "SELECT data FROM records WHERE run = ?", (record.run,)
            ).fetchall()
            samples = self._database.execute(
                "SELECT data FROM samples WHERE name = ? AND started = ? AND run = ?",
                (record.name, record.started, record.run),
            ).fetchone()
        if names is None or samples is None:
            raise UnknownRun(record.run)
        tasks = json.loads(zlib.decompress(names[0]))
        return FiledRun(record, tasks, [zlib.decompress(row[0]) for row in rows], samples[0])

    def samples(self, name: str) -> list[Samples]:
        """What the latest runs of each shape and resources have taught, the latest first."""
        with self._lock:
            rows = self._database.execute(
                "SELECT data FROM (SELECT data, started, ROW_NUMBER() OVER "
                "(PARTITION BY shape ORDER BY started DESC) AS place FROM samples WHERE name = ?) "
                "WHERE place <= ? ORDER BY started DESC",
                (name, READ),
            ).fetchall()
        return [undistilled(row[0]) for row in rows]

    def clear(self, name: str | None = None) -> int:
        """Forget the runs of a workflow, or all; how many there were."""
        where, values = ("WHERE name = ?", (name,)) if name else ("", ())
        with self._lock, self._database as database:
            runs = database.execute(f"SELECT run FROM runs {where}", values).fetchall()
            self._forget(database, [row[0] for row in runs])
            database.execute(
                "DELETE FROM workflows WHERE fingerprint NOT IN (SELECT fingerprint FROM runs)"
            )
        return len(runs)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=10, check_same_thread=False)
    try:
        database.executescript(_SCHEMA)
    except BaseException:
        database.close()
        raise
    return database


def _record(row: tuple[object, ...]) -> RunRecord:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["quality"] = json.loads(str(values["quality"]))
    return RunRecord(**values)  # type: ignore[arg-type]
