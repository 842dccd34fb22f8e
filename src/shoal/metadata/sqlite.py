"""Implement `SqliteHistory`, which stores history in an SQLite file in the data folder."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from shoal.errors import HistoryDamaged, HistoryError, HistoryLocked, UnknownRun
from shoal.metadata.history import READ, BlockReader, FiledRun, RunRecord, checked
from shoal.metadata.migrations import apply_migrations, migrate, refuse_newer
from shoal.metadata.samples import Samples
from shoal.private import private_file, private_folder
from shoal.types import HISTORY_RUNS

_PRAGMAS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
_COLUMNS = tuple(field.name for field in fields(RunRecord))
_FILE = "history-2.sqlite"
"""The file's name, whatever the version of its schema."""
_TABLES = ("runs", "records", "samples", "workflows")
_LOCK_SECONDS = 10.0
"""How many seconds to wait for another writer."""
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""The last one is reported for a file that lacks a table or a column."""


class SqliteHistory:
    """The user's runs; threads and processes may share it."""

    def __init__(self, folder: Path, kept: int = HISTORY_RUNS) -> None:
        self.where = str(folder)
        """The folder."""
        self._kept = kept
        self._lock = threading.Lock()
        self._folder = folder.absolute()
        self._file = folder / _FILE
        self._blocks = BlockReader(str(self._file))
        with _history_errors(self._file):
            private_folder(folder)
            self._database = _open(private_file(self._file))  # -wal and -shm get its mode

    def __reduce__(self) -> tuple[type[SqliteHistory], tuple[Path, int]]:
        """Pickle what it takes to open the same history."""
        return SqliteHistory, (self._folder, self._kept)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Use the database in one transaction, one thread at a time."""
        with self._lock, _history_errors(self._file), self._database as database:
            yield database

    def file(self, run: FiledRun) -> None:
        """Store a run."""
        record = run.record
        values = asdict(record) | {"quality": json.dumps(record.quality)}
        names = zlib.compress(json.dumps(run.tasks).encode(), 1)
        marks = ", ".join("?" * len(_COLUMNS))
        with self._transaction() as database:
            self._delete(database, [record.run])
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
                (record.key, record.started, record.run, record.shape, run.samples),
            )
            self._make_room(database, record.key)

    def _make_room(self, database: sqlite3.Connection, key: str) -> None:
        """Delete the oldest runs of the most common shape until few enough are left."""
        count = database.execute("SELECT COUNT(*) FROM samples WHERE name = ?", (key,))
        for _ in range(count.fetchone()[0] - self._kept):
            run = database.execute(
                "SELECT run FROM samples WHERE name = :key AND shape = (SELECT shape FROM samples "
                "WHERE name = :key GROUP BY shape ORDER BY COUNT(*) DESC, MIN(started) LIMIT 1) "
                "ORDER BY started LIMIT 1",
                {"key": key},
            ).fetchone()
            self._delete(database, [run[0]])

    def _delete(self, database: sqlite3.Connection, runs: list[str]) -> None:
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
        """Return the latest runs, latest first."""
        where, values = ("WHERE key = ? ", (key,)) if key else ("", ())
        with self._transaction() as database:
            rows = database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM runs {where}ORDER BY started DESC LIMIT ?",
                (*values, most),
            ).fetchall()
        return [self._record(row) for row in rows]

    def keys(self) -> list[str]:
        """Return the keys of all workflows that have runs, most recently run first."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT key FROM runs GROUP BY key ORDER BY MAX(started) DESC"
            ).fetchall()
        return [row[0] for row in rows]

    def count(self, key: str, fingerprint: str) -> int:
        """Return how many runs of a workflow are stored."""
        with self._transaction() as database:
            row = database.execute(
                "SELECT COUNT(*) FROM runs WHERE key = ? AND fingerprint = ?", (key, fingerprint)
            ).fetchone()
        return int(row[0])

    def find(self, run: str) -> RunRecord:
        """Find a run by its id or a unique prefix of it."""
        with self._transaction() as database:
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
        """Load a run with its timeline and samples."""
        with self._transaction() as database:
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
        """Return the samples of the latest runs of each `RunRecord.shape`, latest first."""
        return self.decoded(key, self.blocks(key))

    def decoded(self, key: str, blocks: Sequence[bytes]) -> list[Samples]:
        """Return encoded samples of a workflow, decoded; damaged ones are left out."""
        return self._blocks.read(key, blocks)

    def blocks(self, key: str) -> list[bytes]:
        """Return the same samples, encoded."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT data FROM (SELECT data, started, ROW_NUMBER() OVER "
                "(PARTITION BY shape ORDER BY started DESC) AS place FROM samples WHERE name = ?) "
                "WHERE place <= ? ORDER BY started DESC",
                (key, READ),
            ).fetchall()
        return [row[0] for row in rows]

    def clear(self, key: str | None = None) -> int:
        """Delete the runs of one workflow or all; return how many there were."""
        if not key:
            return self._clear_all()
        with self._transaction() as database:
            runs = database.execute("SELECT run FROM runs WHERE key = ?", (key,)).fetchall()
            self._delete(database, [row[0] for row in runs])
        return len(runs)

    def _clear_all(self) -> int:
        with self._transaction() as database:
            database.execute("BEGIN IMMEDIATE")
            count = database.execute("SELECT COUNT(*) FROM runs").fetchone()[0]
            for table in _TABLES:
                database.execute(f"DROP TABLE {table}")
            apply_migrations(database, 0)
            # Pages that no query read may be damaged too, and would break the next run.
            (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise HistoryDamaged(str(self._file), found)
        return int(count)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()


def set_aside(folder: Path) -> Path:
    """Rename a damaged history file, so that a new one can be created; return its new path."""
    file, number = folder / _FILE, 1
    while (aside := file.with_name(f"{_FILE}.damaged-{number}")).exists():
        number += 1
    with _history_errors(file):
        for suffix in ("-wal", "-shm", ""):
            part = file.with_name(f"{_FILE}{suffix}")
            if part.exists():
                part.rename(aside.with_name(f"{aside.name}{suffix}"))
    return aside


@contextmanager
def _history_errors(file: Path) -> Iterator[None]:
    """Turn errors of the file or the database into a `HistoryError` that says what to do."""
    try:
        yield
    except UnicodeDecodeError as error:  # in SQLite's message about a damaged schema
        raise HistoryDamaged(str(file), str(error)) from error
    except (OSError, sqlite3.Error) as error:
        raise _history_error(str(file), error) from error


def _history_error(file: str, error: OSError | sqlite3.Error) -> HistoryError:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _LOCKED:
        return HistoryLocked(file, str(error))
    # The error for text that is not UTF-8 has no code.
    if isinstance(error, sqlite3.OperationalError) and code is None:
        return HistoryDamaged(file, str(error))
    if code is not None and code & 0xFF in _DAMAGED:
        return HistoryDamaged(file, str(error))
    return HistoryError(file, str(error))


def _open(path: Path) -> sqlite3.Connection:
    """Open the database and migrate its schema."""
    database = sqlite3.connect(path, timeout=_LOCK_SECONDS, check_same_thread=False)
    with contextlib.ExitStack() as undo:
        undo.callback(database.close)
        refuse_newer(database, str(path))  # before anything is written
        database.executescript(_PRAGMAS)
        migrate(database)
        undo.pop_all()
    return database
