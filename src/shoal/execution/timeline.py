"""`Timeline`: what ran where and when; simulated before a run, recorded after it.

A worker's record is a header line of JSON and one column of numbers per field. It is written once,
stored as it is, and decoded only when it is looked at.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shoal.errors import StoreError
from shoal.execution.formatting import printable
from shoal.types import TaskId, WorkerId

KINDS = ("cold start", "warm start", "fetch", "execute", "save", "load", "deliver", "leave",
         "hit", "miss")  # fmt: skip
"""What a worker spends time on; the rest of the time it waits. `load` is the import of a task's
module, `deliver` the way of a message to a running worker, and `leave` the end of a start. `hit`
replaces an execution whose output the cache had; `miss` is a failed look-up before an execution.
Outputs that travelled together are one transfer: the first has its time and bytes, the others have
none. Records contain the numbers of kinds, so a new kind goes to the end."""

STARTS = ("cold start", "warm start")
RUNS = ("execute", "hit")
"""After one of these the output of a task exists."""

_DAMAGES = (ValueError, LookupError, TypeError, OverflowError, RecursionError, AttributeError)
_FIELDS = ("kind", "number", "start", "end", "cpu", "nbytes")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a worker was busy with."""

    kind: str
    """One of `KINDS`."""
    worker: WorkerId
    task: TaskId | None
    """None for starts."""
    start: float
    end: float
    cpu: float = 0.0
    """CPU seconds used, for executions."""
    nbytes: int = 0
    """The size of what was fetched, saved or returned."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start

    @property
    def came_along(self) -> bool:
        """Whether it travelled with another output, which has the transfer's time and bytes."""
        return self.kind in ("fetch", "save") and not self.nbytes


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of outputs."""

    saved: int = 0
    fetched: int = 0

    def and_then(self, other: Moved) -> Moved:
        """The sum of both."""
        return Moved(self.saved + other.saved, self.fetched + other.fetched)


@dataclass(frozen=True)
class Timeline:
    """A run's spans, in the order of their starts; seconds count from the run's start."""

    spans: tuple[Span, ...]
    makespan: float
    """Seconds from the start of the run until the output of its last sink was available."""
    shards: Mapping[str, Moved] = field(default_factory=dict)
    """The bytes saved to and fetched from each server of the store, if it has several."""

    def of_kind(self, *kinds: str) -> tuple[Span, ...]:
        """The spans of these kinds."""
        return tuple(span for span in self.spans if span.kind in kinds)

    @cached_property
    def workers(self) -> tuple[WorkerId, ...]:
        """All workers of the run, in the order of their starts."""
        return tuple(dict.fromkeys(span.worker for span in self.spans))

    @cached_property
    def lives(self) -> dict[WorkerId, list[tuple[float, float]]]:
        """When each worker was up, from each invocation until it left: what a platform bills."""
        lives: dict[WorkerId, list[tuple[float, float]]] = {}
        for span in self.spans:
            if span.kind in STARTS:
                lives.setdefault(span.worker, []).append((span.start, span.end))
            elif span.worker in lives and span.kind != "deliver":
                begin, end = lives[span.worker][-1]
                lives[span.worker][-1] = (begin, max(end, span.end))
        return lives

    @cached_property
    def placements(self) -> dict[TaskId, WorkerId]:
        """The worker that ran each task; for a copied task, the one that began last."""
        return {s.task: s.worker for s in self.spans if s.kind in RUNS and s.task}

    @cached_property
    def cache_use(self) -> str:
        """How often the cache had an output, as text; empty if nothing was looked up."""
        hits, misses = (len(self.of_kind(kind)) for kind in ("hit", "miss"))
        if not hits and not misses:
            return ""
        return f"{hits:,} hit{'s' * (hits != 1)}, {misses:,} miss{'es' * (misses != 1)}"

    @property
    def shard_use(self) -> list[str]:
        """What was saved to and fetched from each server, as text; none if there is only one."""
        shards = {printable(server): moved for server, moved in self.shards.items()}
        width = max(map(len, shards), default=0)
        return [
            f"shard {server:<{width}}  {moved.saved:>15,} bytes saved  {moved.fetched:>15,} fetched"
            for server, moved in sorted(shards.items())
        ]


SpanRow = tuple[int, int, float, float, float, int]
"""A span as it is recorded: kind, task number (-1: none), start, end, CPU seconds, bytes."""


def encode_record(
    worker: WorkerId, rows: Sequence[SpanRow], shards: Mapping[str, Moved] | None = None
) -> bytes:
    """A worker's spans, and the bytes that it has moved, as a record; times are absolute."""
    columns = zip(*rows, strict=True)
    packed = b"".join(array("d", column).tobytes() for column in columns)
    header = {"worker": worker, "rows": len(rows), "order": sys.byteorder}
    if shards:
        header["shards"] = {name: (moved.saved, moved.fetched) for name, moved in shards.items()}
    return json.dumps(header).encode() + b"\n" + packed


def decode_records(
    records: Iterable[bytes], tasks: Sequence[TaskId], started: float, makespan: float
) -> Timeline:
    """The timeline of a run from its workers' records."""
    spans: list[Span] = []
    shards: dict[str, Moved] = {}
    for record in records:
        try:
            head, _, packed = record.partition(b"\n")
            header = json.loads(head)
            spans += _spans(header, packed, tasks, started)
            for name, (saved, fetched) in header.get("shards", {}).items():
                moved = Moved(int(saved), int(fetched))
                shards[name] = shards.get(name, Moved()).and_then(moved)
        except _DAMAGES as error:
            raise StoreError(f"A worker's record of its time is damaged: {error}.") from error
    spans.sort(key=lambda span: span.start)
    return Timeline(tuple(spans), makespan, shards)


def _spans(header: Any, packed: bytes, tasks: Sequence[TaskId], started: float) -> Iterator[Span]:
    columns = array("d")
    columns.frombytes(packed)
    if header["order"] != sys.byteorder:
        columns.byteswap()
    count = header["rows"]
    if not isinstance(count, int) or len(columns) != count * len(_FIELDS):
        raise ValueError(f"it has {len(columns)} numbers for {count!r} rows")
    rows = zip(*(columns[i * count : (i + 1) * count] for i in range(len(_FIELDS))), strict=True)
    for kind, number, start, end, cpu, nbytes in rows:
        yield Span(
            KINDS[int(kind)],
            WorkerId(header["worker"]),
            tasks[int(number)] if number >= 0 else None,
            start - started,
            end - started,
            cpu,
            int(nbytes),
        )
