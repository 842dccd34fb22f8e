"""`RedisHistory`: history on a Valkey or Redis server, shared by all clients of the server.

1. A run is a hash. Sorted sets list all runs, and the runs of each workflow. Beside the latter, two
   hashes have the shape and the samples of each run. In these keys, a workflow's key is its name.
2. Each write is one script, so others see all of it or nothing.
3. Reads follow the sorted sets; no key is ever searched for.
4. If history has a server of its own, the server's faults are the history's: runs go on without it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

from shoal.errors import HistoryDamaged, HistoryUnavailable, StoreError, UnknownRun
from shoal.metadata.history import READ, BlockReader, FiledRun, RunRecord, checked
from shoal.metadata.samples import Samples
from shoal.storage import keys
from shoal.storage.codec import Buffer
from shoal.storage.resp import Arg
from shoal.storage.scripts import Script, load
from shoal.storage.server import ServerClient
from shoal.types import HISTORY_RUNS, TaskId

_FILE = load("history/file")
_CLEAR = load("history/clear")
_SAMPLES = load("history/samples")
_FIELDS = frozenset(field.name for field in fields(RunRecord))


class RedisHistory(ServerClient):
    """The runs of all clients of a server."""

    def __init__(
        self, url: str, kept: int = HISTORY_RUNS, latency: float = 0.0, *, known: bool = False
    ) -> None:
        """Connect to the server at a URL; keep so many runs of each workflow."""
        super().__init__(url, latency, known=known)
        self._kept = kept
        self._blocks = BlockReader(self.where)

    def __reduce__(self) -> tuple[Callable[..., RedisHistory], tuple[object, ...]]:
        """Pickle what it takes to open the same history."""
        return _opened_again, (type(self), self.url, self._kept, self._latency)

    @property
    def where(self) -> str:
        """The server, for messages."""
        return f"the store at {self._address}"

    def file(self, run: FiledRun) -> None:
        """File a run."""
        record = run.record
        fields: list[Arg] = ["record", json.dumps(asdict(record))]
        fields += ["tasks", zlib.compress(json.dumps(list(run.tasks)).encode(), 1)]
        for number, data in enumerate(run.records):
            fields += [number, zlib.compress(data, 1)]
        touched = (*_of_all(), *_of_workflow(record.key), keys.history_run(record.run))
        about = (record.run, record.key, record.shape, record.started, self._kept, run.samples)
        self._script_finding_keys(_FILE, touched, (keys.history_run(""), *about, *fields))

    def runs(self, *, key: str | None = None, most: int = 20) -> list[RunRecord]:
        """Return runs, the latest first."""
        if most < 1:
            return []
        where = keys.history_named(key) if key else keys.history_runs()
        found = self._call([["ZREVRANGE", where, 0, most - 1]])[0]
        wanted = [["HGET", keys.history_run(_text(run)), "record"] for run in found]
        return [self._record(record) for record in self._call(wanted) if record is not None]

    def keys(self) -> list[str]:
        """Return the keys of workflows that have runs, the latest first."""
        return [_text(key) for key in self._call([["ZREVRANGE", keys.history_names(), 0, -1]])[0]]

    def count(self, key: str, fingerprint: str) -> int:
        """Return how many runs of a workflow are filed."""
        shapes = self._call([["HVALS", keys.history_shapes(key)]])[0]
        return sum(_text(shape).startswith(f"{fingerprint} ") for shape in shapes)

    def find(self, run: str) -> RunRecord:
        """Return a run by its id, or by an unambiguous prefix of it."""
        prefix = run.encode(errors="surrogateescape")
        # UTF-8 has no byte 255, so this sorts after all ids with the prefix.
        span = (b"[" + prefix, b"(" + prefix + b"\xff")
        found = self._call([["ZRANGEBYLEX", keys.history_ids(), *span, "LIMIT", 0, 2]])[0]
        if not found or not run or (len(found) > 1 and found[0] != prefix):
            raise UnknownRun(run)
        record = self._call([["HGET", keys.history_run(_text(found[0])), "record"]])[0]
        if record is None:
            raise UnknownRun(run)
        return self._record(record)

    def _record(self, data: Buffer) -> RunRecord:
        """Parse a record; fields that a later version has added are ignored."""
        try:
            found: dict[str, Any] = json.loads(bytes(data))
            wanted = {name: value for name, value in found.items() if name in _FIELDS}
            return checked(RunRecord(**wanted))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise HistoryDamaged(self.where, str(error)) from error

    def load(self, record: RunRecord) -> FiledRun:
        """Return all data of a run."""
        flat, samples = self._call(
            [
                ["HGETALL", keys.history_run(record.run)],
                ["HGET", keys.history_samples(record.key), record.run],
            ]
        )
        fields = {_text(name): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        if "tasks" not in fields:
            raise UnknownRun(record.run)
        numbers = sorted(int(name) for name in fields if name.isdecimal())
        try:
            tasks: list[TaskId] = json.loads(zlib.decompress(fields["tasks"]))
            records = [zlib.decompress(fields[str(number)]) for number in numbers]
        except (zlib.error, ValueError) as error:
            raise HistoryDamaged(self.where, f"run {record.run}: {error}", record.key) from error
        return FiledRun(record, tasks, records, bytes(samples or b""))

    def samples(self, key: str) -> list[Samples]:
        """Return the samples of the latest runs of each `RunRecord.shape`, the latest first."""
        return self.decoded(key, self.blocks(key))

    def decoded(self, key: str, blocks: Sequence[bytes]) -> list[Samples]:
        """Return encoded samples of a workflow, decoded; damaged ones are left out."""
        return self._blocks.read(key, blocks)

    def blocks(self, key: str) -> list[bytes]:
        """Return the same samples, encoded."""
        blocks = self._script(_SAMPLES, _of_workflow(key), [READ])
        return [bytes(block) for block in blocks if block is not None]

    def clear(self, key: str | None = None) -> int:
        """Delete the runs of a workflow, or all; return how many there were."""
        where = keys.history_named(key) if key else keys.history_runs()
        touched, args = (*_of_all(), where), [keys.history_run("")]
        (count,), _ = self._script_finding_keys(_CLEAR, touched, args)
        return int(count)

    def close(self) -> None:
        """Close the connection."""
        self.disconnect()


class SeparateHistory(RedisHistory):
    """The same on a server of its own, which isn't the store's."""

    def __init__(
        self, url: str, kept: int = HISTORY_RUNS, latency: float = 0.0, *, known: bool = False
    ) -> None:
        """Connect to the server at a URL; keep so many runs of each workflow."""
        with self._as_history_errors():
            super().__init__(url, kept, latency, known=known)

    @property
    def where(self) -> str:
        """The server, for messages."""
        return f"the server at {self._address}"

    def _call(
        self, commands: Sequence[Sequence[Arg]], *, seconds: float | None = None
    ) -> list[Any]:
        with self._as_history_errors():
            return super()._call(commands, seconds=seconds)

    def _script(
        self,
        script: Script,
        script_keys: Sequence[Arg],
        args: Sequence[Arg],
        before: Sequence[Sequence[Arg]] = (),
        *,
        after: Sequence[Sequence[Arg]] = (),
        seconds: float | None = None,
    ) -> Any:
        with self._as_history_errors():
            return super()._script(script, script_keys, args, before, after=after, seconds=seconds)

    @contextmanager
    def _as_history_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise HistoryUnavailable(self.where, str(error)) from error


def _opened_again(kind: type[RedisHistory], url: str, kept: int, latency: float) -> RedisHistory:
    """Open a history on a server that has been reached before."""
    return kind(url, kept, latency, known=True)


def _of_all() -> tuple[str, str, str]:
    """The keys that list the runs of all workflows."""
    return keys.history_runs(), keys.history_ids(), keys.history_names()


def _of_workflow(key: str) -> tuple[str, str, str]:
    """The keys that list the runs of one workflow."""
    return keys.history_named(key), keys.history_shapes(key), keys.history_samples(key)


def _text(data: Buffer) -> str:
    return str(data, "utf-8")
