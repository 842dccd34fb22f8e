"""`History`: the runs of the past and their timelines, in an SQLite file.

1. A run is filed once, when it has ended, well or not.
2. A timeline is kept as its workers recorded it, and decoded only when somebody looks.
3. The file is bounded: the oldest runs of a workflow make room for new ones.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ShoalError, UnknownRun
from shoal.execution.timeline import Timeline, decode_records
from shoal.types import RunId, TaskId

KEPT = 100
"""Runs that are kept of each workflow."""

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
    outcome TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_by_workflow ON runs (name, fingerprint, started);
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (started);
CREATE TABLE IF NOT EXISTS records (run TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS records_by_run ON records (run);
"""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run that has ended."""

    run: RunId
    name: str
    fingerprint: str
    planner: str
    tasks: int
    workers: int
    started: float
    makespan: float
    outcome: str
    """`done`, or what ended it in a line."""


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=10, check_same_thread=False)
    try:
        database.executescript(_SCHEMA)
    except BaseException:
        database.close()
        raise
    return database


class History:
    """The user's runs; safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.sqlite"
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._database = _opened(self._path)
        except (OSError, sqlite3.Error) as error:
            raise ShoalError(
                f"The history in {folder} can't be opened: {error}. Set `folder` to a folder that "
                "can be written to, or history=False."
            ) from error

    def file(self, record: RunRecord, tasks: Sequence[TaskId], records: Sequence[bytes]) -> None:
        """Keep a run."""
        with self._lock, self._database as database:
            known = database.execute(
                "SELECT 1 FROM workflows WHERE fingerprint = ?", (record.fingerprint,)
            ).fetchone()
            if known is None:
                names = zlib.compress(json.dumps(tasks).encode(), 1)
                database.execute(
                    "INSERT OR IGNORE INTO workflows VALUES (?, ?)", (record.fingerprint, names)
                )
            database.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (record.run, record.name, record.fingerprint, record.planner, record.tasks,
                 record.workers, record.started, record.makespan, record.outcome),
            )  # fmt: skip
            database.execute("DELETE FROM records WHERE run = ?", (record.run,))
            database.executemany(
                "INSERT INTO records VALUES (?, ?)",
                [(record.run, zlib.compress(data, 1)) for data in records],
            )
            self._forget_oldest(database, record)

    def _forget_oldest(self, database: sqlite3.Connection, record: RunRecord) -> None:
        old = database.execute(
            "SELECT run FROM runs WHERE name = ? AND fingerprint = ? "
            "ORDER BY started DESC LIMIT -1 OFFSET ?",
            (record.name, record.fingerprint, KEPT),
        ).fetchall()
        database.executemany("DELETE FROM runs WHERE run = ?", old)
        database.executemany("DELETE FROM records WHERE run = ?", old)

    def runs(self, *, name: str | None = None, most: int = 20) -> list[RunRecord]:
        """The latest runs first."""
        where, values = ("WHERE name = ? ", (name,)) if name else ("", ())
        with self._lock:
            rows = self._database.execute(
                f"SELECT * FROM runs {where}ORDER BY started DESC LIMIT ?", (*values, most)
            ).fetchall()
        return [RunRecord(*row) for row in rows]

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
                "SELECT * FROM runs WHERE substr(run, 1, ?) = ? ORDER BY length(run) LIMIT 2",
                (len(run), run),
            ).fetchall()
        if not rows or not run or (len(rows) > 1 and rows[0][0] != run):
            raise UnknownRun(run)
        return RunRecord(*rows[0])

    def timeline(self, record: RunRecord) -> Timeline:
        """What ran where and when."""
        with self._lock:
            names = self._database.execute(
                "SELECT tasks FROM workflows WHERE fingerprint = ?", (record.fingerprint,)
            ).fetchone()
            rows = self._database.execute(
                "SELECT data FROM records WHERE run = ?", (record.run,)
            ).fetchall()
        tasks = json.loads(zlib.decompress(names[0]))
        records = [zlib.decompress(row[0]) for row in rows]
        return decode_records(records, tasks, record.started, record.makespan)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()
