"""Migrate the schema of a history file in numbered steps, keeping its data.

1. `PRAGMA user_version` is the number of the last migration applied to the file.
2. Pending migrations run in one transaction: all of them are applied, or none.
3. A released migration never changes. To change the schema, add a migration.
4. A file with a newer schema than this Shoal knows is refused and left unchanged.
"""

from __future__ import annotations

import sqlite3

from shoal.errors import HistoryTooNew

MIGRATIONS = {
    1: """
        CREATE TABLE workflows (fingerprint TEXT PRIMARY KEY, tasks BLOB NOT NULL);
        CREATE TABLE runs (
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
        CREATE INDEX runs_by_workflow ON runs (name, started);
        CREATE INDEX runs_by_time ON runs (started);
        CREATE TABLE records (run TEXT NOT NULL, data BLOB NOT NULL);
        CREATE INDEX records_by_run ON records (run);
        CREATE TABLE samples (
            name TEXT NOT NULL,
            started REAL NOT NULL,
            run TEXT NOT NULL,
            shape TEXT NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (name, started, run)
        ) WITHOUT ROWID
    """,
    # A file without a recorded version may have this index already.
    2: "CREATE INDEX IF NOT EXISTS runs_by_fingerprint ON runs (fingerprint)",
    # Workflows are identified by a key. Runs recorded under a bare name keep it as their key, and
    # in `samples` the column `name` holds the key.
    3: """
        ALTER TABLE runs ADD COLUMN key TEXT NOT NULL DEFAULT '';
        UPDATE runs SET key = name;
        CREATE INDEX runs_by_key ON runs (key, started)
    """,
    4: "DROP INDEX IF EXISTS runs_by_workflow",
    # Of earlier runs it isn't known; most ran on the embedded gateway, whose name is empty.
    5: "ALTER TABLE runs ADD COLUMN platform TEXT NOT NULL DEFAULT ''",
}
"""The SQL statements that bring a file from the previous version to each version."""
VERSION = max(MIGRATIONS)
"""The schema version that this Shoal reads and writes."""


def refuse_newer(database: sqlite3.Connection, file: str) -> None:
    """Raise an error if a newer Shoal has written the file."""
    version = schema_version(database)
    if version > VERSION:
        reason = f"a newer Shoal wrote it (schema {version}; this one supports up to {VERSION})"
        raise HistoryTooNew(file, reason)


def migrate(database: sqlite3.Connection) -> None:
    """Apply the pending migrations."""
    if _recorded_version(database) == VERSION:
        return
    with database:
        database.execute("BEGIN IMMEDIATE")
        # Read the version again: another process may have migrated the file in the meantime.
        apply_migrations(database, schema_version(database))


def apply_migrations(database: sqlite3.Connection, since: int) -> None:
    """Apply every migration after version `since`, inside the caller's transaction."""
    for number in range(since + 1, VERSION + 1):
        for statement in MIGRATIONS[number].split(";"):
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {VERSION}")


def schema_version(database: sqlite3.Connection) -> int:
    """Return the file's schema version; 0 means that it has no tables yet."""
    recorded = _recorded_version(database)
    if recorded:
        return recorded
    # The first three versions were not recorded in the file.
    columns = [row[1] for row in database.execute("PRAGMA table_info(runs)")]
    if not columns:
        return 0
    return 3 if "key" in columns else 1


def _recorded_version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)
