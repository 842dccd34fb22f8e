"""`SqliteHistory`: history in a file of the user's."""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from shoal.errors import HistoryDamaged, HistoryError, HistoryLocked, UnknownRun
from shoal.metadata.history import KEPT, READ, BlockReader, FiledRun, RunRecord, checked
from shoal.metadata.samples import Samples
from shoal.private import private_file, private_folder

_PRAGMAS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
_SCHEMA = """
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
    quality TEXT NOT NULL,
    key TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS runs_by_key ON runs (key, started);
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
_KEYED = "ALTER TABLE runs ADD COLUMN key TEXT NOT NULL DEFAULT ''"
_BY_NAME = "UPDATE runs SET key = name WHERE key = ''"
"""Makes a file of the time when workflows went by their names one in which they go by keys; in
`samples` a key is called a name still."""
_COLUMNS = tuple(field.name for field in fields(RunRecord))
_FILE = "history-2.sqlite"
"""The number is that of the schema."""
_TABLES = ("runs", "records", "samples", "workflows")
_PATIENCE = 10.0
"""Seconds that others may take to write."""
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""The last is of a file that lacks a table or a column."""


class SqliteHistory:
    """The user's runs; safe to use from several threads and processes."""

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.where = str(folder)
        """The folder."""
        self._kept = kept
        self._lock = threading.Lock()
        self._file = folder / _FILE
        self._blocks = BlockReader(str(self._file))
        with _telling(self._file):
            private_folder(folder)
            self._database = _opened(private_file(self._file))  # -wal and -shm get its mode

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The database, for one thread at a time; what is written is written as a whole."""
        with self._lock, _telling(self._file), self._database as database:
            yield database

    def file(self, run: FiledRun) -> None:
        """Keep a run."""
        record = run.record
        values = asdict(record) | {"quality": json.dumps(record.quality)}
        names = zlib.compress(json.dumps(run.tasks).encode(), 1)
        shape = f"{record.fingerprint} {record.configuration}"
        marks = ", ".join("?" * len(_COLUMNS))
        with self._using() as database:
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
                (record.key, record.started, record.run, shape, run.samples),
            )
            self._make_room(database, record.key)

    def _make_room(self, database: sqlite3.Connection, key: str) -> None:
        """Forget the oldest runs of the most common shape until few enough are left."""
        count = database.execute("SELECT COUNT(*) FROM samples WHERE name = ?", (key,))
        for _ in range(count.fetchone()[0] - self._kept):
            run = database.execute(
                "SELECT run FROM samples WHERE name = ?1 AND shape = (SELECT shape FROM samples "
                "WHERE name = ?1 GROUP BY shape ORDER BY COUNT(*) DESC, MIN(started) LIMIT 1) "
                "ORDER BY started LIMIT 1",
                (key,),
            ).fetchone()
            self._forget(database, [run[0]])

    def _forget(self, database: sqlite3.Connection, runs: list[str]) -> None:
        for run in runs:
            database.execute("DELETE FROM records WHERE run = ?", (run,))
            found = database.execute(
                "SELECT key, started, fingerprint FROM runs WHERE run = ?", (run,)
            ).fetchall()
            database.execute("DELETE FROM runs WHERE run = ?", (run,))
            for key, started, fingerprint in found:
                database.execute(
                    "DELETE FROM samples WHERE name = ? AND started = ? AND run = ?",
                    (key, started, run),
                )
                database.execute(
                    "DELETE FROM workflows WHERE fingerprint = ? "
                    "AND fingerprint NOT IN (SELECT fingerprint FROM runs)",
                    (fingerprint,),
                )

    def runs(self, *, key: str | None = None, most: int = 20) -> list[RunRecord]:
        """The latest runs first."""
        where, values = ("WHERE key = ? ", (key,)) if key else ("", ())
        with self._using() as database:
            rows = database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM runs {where}ORDER BY started DESC LIMIT ?",
                (*values, most),
            ).fetchall()
        return [self._record(row) for row in rows]

    def keys(self) -> list[str]:
        """The keys of workflows that have runs, the latest run's first."""
        with self._using() as database:
            rows = database.execute(
                "SELECT key FROM runs GROUP BY key ORDER BY MAX(started) DESC"
            ).fetchall()
        return [row[0] for row in rows]

    def count(self, key: str, fingerprint: str) -> int:
        """How many runs of a workflow are known."""
        with self._using() as database:
            row = database.execute(
                "SELECT COUNT(*) FROM runs WHERE key = ? AND fingerprint = ?", (key, fingerprint)
            ).fetchone()
        return int(row[0])

    def find(self, run: str) -> RunRecord:
        """A run by its id, or by the beginning of it if that is unambiguous."""
        with self._using() as database:
            rows = database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM runs WHERE substr(run, 1, ?) = ? "
                "ORDER BY length(run) LIMIT 2",
                (len(run), run),
            ).fetchall()
        if not rows or not run or (len(rows) > 1 and rows[0][0] != run):
            raise UnknownRun(run)
        return self._record(rows[0])

    def _record(self, row: tuple[object, ...]) -> RunRecord:
        values: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
        try:
            values["quality"] = json.loads(values["quality"])
            return checked(RunRecord(**values))
        except (ValueError, TypeError, RecursionError) as error:
            reason = f"run {values['run']}: {error}"
            raise HistoryDamaged(str(self._file), reason, str(values["key"])) from error

    def load(self, record: RunRecord) -> FiledRun:
        """All that is kept of a run."""
        with self._using() as database:
            names = database.execute(
                "SELECT tasks FROM workflows WHERE fingerprint = ?", (record.fingerprint,)
            ).fetchone()
            rows = database.execute(
                "SELECT data FROM records WHERE run = ?", (record.run,)
            ).fetchall()
            samples = database.execute(
                "SELECT data FROM samples WHERE name = ? AND started = ? AND run = ?",
                (record.key, record.started, record.run),
            ).fetchone()
        if names is None or samples is None:
            raise UnknownRun(record.run)
        try:
            tasks = json.loads(zlib.decompress(names[0]))
            return FiledRun(record, tasks, [zlib.decompress(row[0]) for row in rows], samples[0])
        except (zlib.error, ValueError, TypeError) as error:
            reason = f"run {record.run}: {error}"
            raise HistoryDamaged(str(self._file), reason, record.key) from error

    def samples(self, key: str) -> list[Samples]:
        """What the latest runs of each shape and resources have taught, the latest first."""
        with self._using() as database:
            rows = database.execute(
                "SELECT data FROM (SELECT data, started, ROW_NUMBER() OVER "
                "(PARTITION BY shape ORDER BY started DESC) AS place FROM samples WHERE name = ?) "
                "WHERE place <= ? ORDER BY started DESC",
                (key, READ),
            ).fetchall()
        return self._blocks.read(key, [row[0] for row in rows])

    def clear(self, key: str | None = None) -> int:
        """Forget the runs of a workflow, or all; how many there were."""
        if not key:
            return self._clear_all()
        with self._using() as database:
            runs = database.execute("SELECT run FROM runs WHERE key = ?", (key,)).fetchall()
            self._forget(database, [row[0] for row in runs])
        return len(runs)

    def _clear_all(self) -> int:
        with self._using() as database:
            database.execute("BEGIN IMMEDIATE")
            count = database.execute("SELECT COUNT(*) FROM runs").fetchone()[0]
            for table in _TABLES:
                database.execute(f"DROP TABLE {table}")
            for statement in _SCHEMA.split(";"):
                database.execute(statement)
            # What nobody reads may be damaged too, and would be in the way of the next run.
            (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise HistoryDamaged(str(self._file), found)
        return int(count)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()


def set_aside(folder: Path) -> Path:
    """Rename the file of a history that is damaged, so that a new one can begin; where it is."""
    file, number = folder / _FILE, 1
    while (aside := file.with_name(f"{_FILE}.damaged-{number}")).exists():
        number += 1
    with _telling(file):
        for suffix in ("-wal", "-shm", ""):
            part = file.with_name(f"{_FILE}{suffix}")
            if part.exists():
                part.rename(aside.with_name(f"{aside.name}{suffix}"))
    return aside


@contextmanager
def _telling(file: Path) -> Iterator[None]:
    """Make errors of the file, or of the database in it, such that say what to do."""
    try:
        yield
    except UnicodeDecodeError as error:  # in what SQLite says of a schema
        raise HistoryDamaged(str(file), str(error)) from error
    except (OSError, sqlite3.Error) as error:
        raise _trouble(str(file), error) from error


def _trouble(file: str, error: OSError | sqlite3.Error) -> HistoryError:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _LOCKED:
        return HistoryLocked(file, str(error))
    # Text that is none has no code.
    if isinstance(error, sqlite3.OperationalError) and code is None:
        return HistoryDamaged(file, str(error))
    if code is not None and code & 0xFF in _DAMAGED:
        return HistoryDamaged(file, str(error))
    return HistoryError(file, str(error))


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_PATIENCE, check_same_thread=False)
    try:
        _give_keys(database)
        database.executescript(_PRAGMAS + _SCHEMA)
    except BaseException:
        database.close()
        raise
    return database


def _give_keys(database: sqlite3.Connection) -> None:
    """Add the keys of workflows to a file that has none."""
    if _keyed(database):
        return
    with database:
        database.execute("BEGIN IMMEDIATE")
        if not _keyed(database):  # another process may have done it meanwhile
            database.execute(_KEYED)
            database.execute(_BY_NAME)


def _keyed(database: sqlite3.Connection) -> bool:
    """Whether the runs in a file have keys, or will have: a new file has no runs yet."""
    columns = [row[1] for row in database.execute("PRAGMA table_info(runs)")]
    return not columns or "key" in columns
