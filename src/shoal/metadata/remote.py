"""`RedisHistory`: history on a Valkey or Redis server, where all who use the server share it.

1. A run is one hash; sorted sets say which runs there are: all of them, those of a workflow, and
   those of a workflow that have a shape and resources in common. What a workflow goes by, its key,
   is called a name in them.
2. Whatever writes is one script: others see all of it or nothing.
3. Reading follows the sorted sets. No key is ever searched for.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, fields
from typing import Any

from shoal.errors import HistoryDamaged, UnknownRun
from shoal.metadata.history import KEPT, READ, BlockReader, FiledRun, RunRecord, checked
from shoal.metadata.samples import Samples
from shoal.storage import keys
from shoal.storage.codec import Buffer
from shoal.storage.resp import Arg
from shoal.storage.server import Script, ServerClient
from shoal.types import TaskId

_FORGET = """
-- KEYS: runs, ids, names, then what a script needs. ARGV[1] says how the keys of runs begin.
-- A server may have evicted any key; what the others say of its run is removed all the same.
local function recount(shapes, shape, shaped)
  local count = redis.call('ZCARD', shaped)
  if count > 0 then redis.call('ZADD', shapes, count, shape)
  else redis.call('ZREM', shapes, shape) end
end
local function forget(run)
  local key = ARGV[1] .. run
  local name, named, shapes, shape, shaped =
    unpack(redis.call('HMGET', key, 'name', 'named', 'shapes', 'shape', 'shaped'))
  redis.call('ZREM', KEYS[1], run)
  redis.call('ZREM', KEYS[2], run)
  if not name then return end
  redis.call('ZREM', named, run)
  redis.call('ZREM', shaped, run)
  recount(shapes, shape, shaped)
  local latest = redis.call('ZREVRANGE', named, 0, 0, 'WITHSCORES')
  if latest[1] then redis.call('ZADD', KEYS[3], latest[2], name)
  else redis.call('ZREM', KEYS[3], name) end
  redis.call('UNLINK', key)
end
"""

_FILE = (
    _FORGET
    + """
-- KEYS: after those, the runs of the name, its shapes, the runs of this shape.
-- ARGV: run, name, shape, start, how many are kept, how the keys of shapes begin, fields.
-- The first to write is a command that a full memory refuses: after any other all are let through.
local run, name, shape, started = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local kept, shaped = tonumber(ARGV[6]), ARGV[7]
local key = ARGV[1] .. run
redis.call('ZADD', KEYS[1], started, run)
forget(run)
redis.call('HSET', key, 'name', name, 'named', KEYS[4], 'shapes', KEYS[5], 'shape', shape,
           'shaped', KEYS[6])
for i = 8, #ARGV, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', KEYS[1], started, run)
redis.call('ZADD', KEYS[2], 0, run)
redis.call('ZADD', KEYS[4], started, run)
redis.call('ZADD', KEYS[6], started, run)
recount(KEYS[5], shape, KEYS[6])
redis.call('ZADD', KEYS[3], redis.call('ZREVRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2], name)
local function oldest_of_the_most_common()
  local most = redis.call('ZREVRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2]
  local found, since, of
  for _, common in ipairs(most and redis.call('ZRANGEBYSCORE', KEYS[5], most, most) or {}) do
    local first = redis.call('ZRANGE', shaped .. common, 0, 0, 'WITHSCORES')
    if not first[1] then redis.call('ZREM', KEYS[5], common)
    elseif not since or tonumber(first[2]) < since then
      found, since, of = first[1], tonumber(first[2]), common
    end
  end
  return found, of
end
while redis.call('ZCARD', KEYS[4]) > kept do
  local oldest, of = oldest_of_the_most_common()
  oldest = oldest or redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  forget(oldest)
  redis.call('ZREM', KEYS[4], oldest)
  if of then
    redis.call('ZREM', shaped .. of, oldest)
    recount(KEYS[5], of, shaped .. of)
  end
end
return 1
"""
)

_CLEAR = (
    _FORGET
    + """
-- KEYS: after those, the set of the runs to forget.
local runs = redis.call('ZRANGE', KEYS[4], 0, -1)
for _, run in ipairs(runs) do forget(run) end
redis.call('UNLINK', KEYS[4])
return #runs
"""
)

_SAMPLES = """
-- KEYS: the shapes of a name. ARGV: how the keys of shapes and of runs begin, how many of each.
local found = {}
for _, shape in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local runs = redis.call('ZREVRANGE', ARGV[1] .. shape, 0, ARGV[3] - 1, 'WITHSCORES')
  for i = 1, #runs, 2 do found[#found + 1] = {runs[i], tonumber(runs[i + 1])} end
end
table.sort(found, function(a, b) return a[2] > b[2] end)
local blocks = {}
for i, run in ipairs(found) do blocks[i] = redis.call('HGET', ARGV[2] .. run[1], 'samples') end
return blocks
"""

_SOURCES = {"file": _FILE, "clear": _CLEAR, "samples": _SAMPLES}
_SCRIPTS = {name: Script(source) for name, source in _SOURCES.items()}
_FIELDS = frozenset(field.name for field in fields(RunRecord))


class RedisHistory(ServerClient):
    """The runs of all who share a server."""

    scripts = _SCRIPTS

    def __init__(
        self, url: str, kept: int = KEPT, latency: float = 0.0, *, known: bool = False
    ) -> None:
        """Reach the server at a URL, and keep so many runs; the rest is as in `ServerClient`."""
        super().__init__(url, latency, known=known)
        self._kept = kept
        self._blocks = BlockReader(self.where)

    @property
    def where(self) -> str:
        """The server."""
        return f"the store at {self._address}"

    def file(self, run: FiledRun) -> None:
        """Keep a run."""
        record = run.record
        shape = f"{record.fingerprint} {record.configuration}"
        of_name = (
            keys.history_named(record.key),
            keys.history_shapes(record.key),
            keys.history_shape(record.key, shape),
        )
        kept: list[Arg] = ["record", json.dumps(asdict(record)), "samples", run.samples]
        kept += ["tasks", zlib.compress(json.dumps(list(run.tasks)).encode(), 1)]
        for number, data in enumerate(run.records):
            kept += [number, zlib.compress(data, 1)]
        about = (record.run, record.key, shape, record.started, self._kept)
        prefixes = keys.history_run(""), keys.history_shape(record.key, "")
        self._script("file", (*_everywhere(), *of_name), (prefixes[0], *about, prefixes[1], *kept))

    def runs(self, *, key: str | None = None, most: int = 20) -> list[RunRecord]:
        """The latest runs first."""
        if most < 1:
            return []
        where = keys.history_named(key) if key else keys.history_runs()
        found = self._call([["ZREVRANGE", where, 0, most - 1]])[0]
        wanted = [["HGET", keys.history_run(_text(run)), "record"] for run in found]
        return [self._record(record) for record in self._call(wanted) if record is not None]

    def keys(self) -> list[str]:
        """The keys of workflows that have runs, the latest run's first."""
        return [_text(key) for key in self._call([["ZREVRANGE", keys.history_names(), 0, -1]])[0]]

    def count(self, key: str, fingerprint: str) -> int:
        """How many runs of a workflow are known."""
        where = keys.history_shapes(key)
        flat = self._call([["ZRANGE", where, 0, -1, "WITHSCORES"]])[0]
        return sum(
            int(count)
            for shape, count in zip(flat[::2], flat[1::2], strict=True)
            if _text(shape).startswith(f"{fingerprint} ")
        )

    def find(self, run: str) -> RunRecord:
        """A run by its id, or by the beginning of it if that is unambiguous."""
        begin = run.encode(errors="surrogateescape")
        # No text has a byte 255, so this is behind all that begins like that.
        span = (b"[" + begin, b"(" + begin + b"\xff")
        found = self._call([["ZRANGEBYLEX", keys.history_ids(), *span, "LIMIT", 0, 2]])[0]
        if not found or not run or (len(found) > 1 and found[0] != begin):
            raise UnknownRun(run)
        record = self._call([["HGET", keys.history_run(_text(found[0])), "record"]])[0]
        if record is None:
            raise UnknownRun(run)
        return self._record(record)

    def _record(self, kept: Buffer) -> RunRecord:
        """A record; what a later version may have added to it is left out."""
        try:
            found: dict[str, Any] = json.loads(bytes(kept))
            wanted = {name: value for name, value in found.items() if name in _FIELDS}
            return checked(RunRecord(**wanted))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise HistoryDamaged(self.where, str(error)) from error

    def load(self, record: RunRecord) -> FiledRun:
        """All that is kept of a run."""
        flat = self._call([["HGETALL", keys.history_run(record.run)]])[0]
        kept = {_text(name): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        if "tasks" not in kept:
            raise UnknownRun(record.run)
        numbers = sorted(int(name) for name in kept if name.isdecimal())
        try:
            tasks: list[TaskId] = json.loads(zlib.decompress(kept["tasks"]))
            records = [zlib.decompress(kept[str(number)]) for number in numbers]
        except (zlib.error, ValueError) as error:
            raise HistoryDamaged(self.where, f"run {record.run}: {error}", record.key) from error
        return FiledRun(record, tasks, records, bytes(kept["samples"]))

    def samples(self, key: str) -> list[Samples]:
        """What the latest runs of each shape and resources have taught, the latest first."""
        prefixes = keys.history_shape(key, ""), keys.history_run("")
        blocks = self._script("samples", (keys.history_shapes(key),), (*prefixes, READ))
        return self._blocks.read(key, [bytes(block) for block in blocks if block is not None])

    def clear(self, key: str | None = None) -> int:
        """Forget the runs of a workflow, or all; how many there were."""
        where = keys.history_named(key) if key else keys.history_runs()
        return int(self._script("clear", (*_everywhere(), where), (keys.history_run(""),)))

    def close(self) -> None:
        """Give up the connection."""
        self.disconnect()


def _everywhere() -> tuple[str, str, str]:
    """The sets that tell of the runs of all names."""
    return keys.history_runs(), keys.history_ids(), keys.history_names()


def _text(data: Buffer) -> str:
    return str(data, "utf-8")
