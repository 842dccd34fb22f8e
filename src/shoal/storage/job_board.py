"""`JobBoard`: where the jobs of an engine find work, and tell what they are doing.

1. Starts of workers wait in a list for each size of worker. Any job of that size takes the next.
2. A job writes what it is doing every moment. A job that stays silent is lost, or frozen: its
   record no longer counts, and is removed some minutes later.
3. A start that is taken by a job which then dies is lost. Its worker's lease expires, as that of
   any lost worker does.
4. What tasks print is kept for a day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from shoal.clock import RealClock
from shoal.storage import keys
from shoal.storage.resp import Arg
from shoal.storage.server import ServerClient
from shoal.types import RunId

_KEPT_SECONDS = 24 * 3600
_MAX_LINES = 100_000
"""Lines of a run that are kept."""
_CANCELLED_SECONDS = 600.0
"""How long a cancelled run is remembered."""
SILENT_SECONDS = 10.0
"""Seconds of silence after which a job is lost, or frozen."""
_FORGOTTEN_SECONDS = 600.0
"""How long what a silent job was doing is remembered."""


class JobRecord(Struct, frozen=True, kw_only=True):
    """What a job is doing."""

    kind: str
    """The resources of its workers."""
    at: float
    """When it wrote this, by the server's clock."""
    run: str = ""
    """The run that it works for; empty if it is idle."""
    worker: str = ""
    epoch: int = 0
    running: tuple[int, ...] = ()
    """The numbers of the tasks that are running."""


msgspec.json.Decoder(JobRecord)  # built before there are threads, which would race


class JobRecords(NamedTuple):
    """What jobs wrote last, by name."""

    current: dict[str, JobRecord]
    """Of jobs that are up."""
    silent: dict[str, JobRecord]
    """Of jobs that have written nothing for a while."""


class JobBoard(ServerClient):
    """The board of one deployment; a thread that waits on it needs a board of its own."""

    def __init__(self, url: str, deployment: str, *, known: bool = False) -> None:
        """Connect to the server at a URL."""
        super().__init__(url, known=known)
        self._deployment = deployment
        self._jobs = keys.jobs(deployment)
        self._wanted = keys.wanted_jobs(deployment)
        self._kinds = keys.waiting_kinds(deployment)
        self._cancelled = keys.cancelled_runs(deployment)

    def _waiting(self, kind: str) -> str:
        return keys.waiting_starts(self._deployment, kind)

    def push(self, events: Mapping[str, Sequence[bytes]]) -> None:
        """Add starts for jobs of each kind, and wake the processes that start jobs."""
        commands: list[list[Arg]] = [
            ["RPUSH", self._waiting(kind), *each] for kind, each in events.items()
        ]
        commands += [["SADD", self._kinds, *events], ["RPUSH", self._wanted, "1"]]
        self._call([*commands, ["EXPIRE", self._wanted, 60]])

    def take(self, kind: str, seconds: float) -> bytes | None:
        """Take the next start for a job of a kind; wait up to so many seconds for one."""
        (found,) = self._call([["BLPOP", self._waiting(kind), seconds]])
        return None if found is None else bytes(found[1])

    def await_push(self, seconds: float) -> bool:
        """Wait until starts are pushed, or so many seconds; return whether they were."""
        found, _ = self._call([["BLPOP", self._wanted, seconds], ["DEL", self._wanted]])
        return found is not None

    def waiting(self) -> dict[str, list[bytes]]:
        """The starts that wait, by kind."""
        (kinds,) = self._call([["SMEMBERS", self._kinds]])
        names = [str(kind, "utf-8") for kind in kinds]
        if not names:
            return {}
        found = self._call([["LRANGE", self._waiting(kind), 0, -1] for kind in names])
        return {
            kind: [bytes(event) for event in events]
            for kind, events in zip(names, found, strict=True)
            if events
        }

    def withdraw(self, kind: str, events: Sequence[bytes]) -> list[bytes]:
        """Remove starts that still wait; return those that did."""
        if not events:
            return []
        removed = self._call([["LREM", self._waiting(kind), 1, event] for event in events])
        return [event for event, count in zip(events, removed, strict=True) if count]

    def now(self) -> float:
        """The server's time."""
        (shown,) = self._call([["TIME"]])
        return _seconds(shown)

    def report(self, job: str, *records: JobRecord, before: int = 0) -> frozenset[str]:
        """Write what a job is doing; return the runs that were cancelled lately.

        Args:
            job: Its name.
            *records: One for each of its workers; if it has none, at most one.
            before: How many records it has written before: those that are too many are removed.
        """
        commands: list[list[Arg]] = [["ZRANGE", self._cancelled, 0, -1]]
        names = _names(job, max(len(records), before))
        if records:
            written: list[Arg] = []
            for name, record in zip(names, records, strict=False):
                written += [name, json.dumps(msgspec.to_builtins(record)).encode()]
            commands += [["HSET", self._jobs, *written], ["EXPIRE", self._jobs, _KEPT_SECONDS]]
        if len(names) > len(records):
            commands.append(["HDEL", self._jobs, *names[len(records) :]])
        cancelled = self._call(commands)[0]
        return frozenset(str(run, "utf-8") for run in cancelled)

    def remove(self, job: str, count: int = 1) -> None:
        """Remove a job that has ended, which has written so many records."""
        self._call([["HDEL", self._jobs, *_names(job, count)]])

    def jobs(self) -> dict[str, JobRecord]:
        """What each job that is up is doing."""
        return self.records().current

    def records(self) -> JobRecords:
        """What each job wrote last; what has been silent for long is removed."""
        found, shown = self._call([["HGETALL", self._jobs], ["TIME"]])
        now, records = _seconds(shown), JobRecords({}, {})
        for job, data in zip(found[::2], found[1::2], strict=True):
            record = msgspec.convert(json.loads(bytes(data)), JobRecord)
            current = record.at > now - SILENT_SECONDS
            (records.current if current else records.silent)[str(job, "utf-8")] = record
        old = [job for job, each in records.silent.items() if each.at < now - _FORGOTTEN_SECONDS]
        if old:
            self._call([["HDEL", self._jobs, *old]])
        return records

    def record(self, job: str) -> JobRecord | None:
        """What a job wrote last, however long ago; None: nothing, or it has ended idle."""
        (found,) = self._call([["HGET", self._jobs, job]])
        return None if found is None else msgspec.convert(json.loads(bytes(found)), JobRecord)

    def cancel(self, run: RunId) -> None:
        """Have jobs end the workers of a run."""
        now = self.now()
        self._call(
            [
                ["ZADD", self._cancelled, now, run],
                ["ZREMRANGEBYSCORE", self._cancelled, "-inf", now - _CANCELLED_SECONDS],
                ["EXPIRE", self._cancelled, int(_CANCELLED_SECONDS)],
            ]
        )

    def cancelled(self) -> frozenset[str]:
        """The runs that were cancelled lately."""
        (found,) = self._call([["ZRANGE", self._cancelled, 0, -1]])
        return frozenset(str(run, "utf-8") for run in found)

    def revive(self, run: RunId) -> None:
        """Have jobs work for a run again that may have been cancelled."""
        self._call([["ZREM", self._cancelled, run]])

    def clock(self, run: RunId) -> RealClock:
        """The clock of the server that keeps what a run prints."""
        return self.clock_of(keys.logs(run))

    def print(self, run: RunId, lines: Sequence[bytes]) -> None:
        """Keep what a run's tasks printed."""
        key = keys.logs(run)
        self._call(
            [
                ["RPUSH", key, *lines],
                ["LTRIM", key, 0, _MAX_LINES - 1],
                ["EXPIRE", key, _KEPT_SECONDS],
            ]
        )

    def printed(self, run: RunId) -> list[bytes]:
        """What a run's tasks printed."""
        (found,) = self._call([["LRANGE", keys.logs(run), 0, -1]])
        return [bytes(line) for line in found]


def _seconds(shown: Sequence[bytes]) -> float:
    """The server's answer to `TIME`."""
    seconds, micros = shown
    return int(seconds) + int(micros) / 1e6


def _names(job: str, count: int) -> list[str]:
    """The names of a job's records."""
    return [f"{job}.{number}" if number else job for number in range(count)]
