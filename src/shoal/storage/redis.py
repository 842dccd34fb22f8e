"""`RedisStore`: the store on a Valkey or Redis server, its atomic operations as scripts there."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shoal.errors import RunOver, StoreRefused, StoreUnavailable
from shoal.storage import keys
from shoal.storage.base import Claim, Completion, Entry, Letter, Opening
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.resp import Address, Arg, Connection, parse_url
from shoal.types import RunId, WorkerId

_LARGE = 64 * 1024
"""Larger values are set by a command of their own, because a script copies what it is given."""

_GUARD = """
local function over(epoch_of, epoch)
  if redis.call('EXISTS', KEYS[1]) == 0 then return 'the run' end
  if epoch_of ~= '' and redis.call('HGET', KEYS[1], 'epoch:' .. epoch_of) ~= epoch then
    return 'this start of worker ' .. epoch_of
  end
end
local function append(mailbox, ttl, ...)
  redis.call('XADD', mailbox, '*', ...)
  redis.call('EXPIRE', mailbox, ttl)
end
"""

_COMPLETE = (
    _GUARD
    + """
-- KEYS: state, marks, outputs, progress, the client's mailbox; mailboxes begin as ARGV[1] says.
local prefix, worker, epoch, ttl, executed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local gone = over(worker, epoch)
if gone then
  if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('DEL', KEYS[3]) end
  return redis.error_reply('RUNOVER ' .. gone .. ' is over')
end
local at = 6
local function take()
  local value = ARGV[at]
  at = at + 1
  return value
end
local claims = {}
for _ = 1, tonumber(take()) do
  local name = take()
  redis.call('HSET', KEYS[3], name, take())
end
redis.call('EXPIRE', KEYS[3], ttl)
for _ = 1, tonumber(take()) do
  local task, owner, payload, count = take(), take(), take(), tonumber(take())
  local fields = {}
  for i = 1, count do fields[i] = task .. '\\n' .. take() end
  if redis.call('HSETNX', KEYS[2], task .. '\\n' .. worker, payload) == 1
      and redis.call('HINCRBY', KEYS[2], task, 1) == count then
    local letter = {'kind', 'ready', 'name', task}
    for i, part in ipairs(redis.call('HMGET', KEYS[2], unpack(fields))) do
      letter[#letter + 1] = i
      letter[#letter + 1] = part
    end
    append(prefix .. owner, ttl, unpack(letter))
    if redis.call('HSETNX', KEYS[1], 'claim:' .. owner, 1) == 1 then
      claims[#claims + 1] = owner
      claims[#claims + 1] = redis.call('HINCRBY', KEYS[1], 'epoch:' .. owner, 1)
    end
  end
end
redis.call('EXPIRE', KEYS[2], ttl)
for _ = 1, tonumber(take()) do
  local letter = {'kind', take(), 'name', take()}
  for i = 1, tonumber(take()) do
    letter[#letter + 1] = i
    letter[#letter + 1] = take()
  end
  append(KEYS[5], ttl, unpack(letter))
end
redis.call('HSET', KEYS[4], worker .. '\\n' .. epoch, executed)
redis.call('EXPIRE', KEYS[4], ttl)
return claims
"""
)

_ENTER = (
    _GUARD
    + """
-- KEYS: state, parts. ARGV: worker, epoch.
local gone = over(ARGV[1], ARGV[2])
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
if redis.call('HSETNX', KEYS[1], 'entered:' .. ARGV[1] .. ':' .. ARGV[2], 1) == 0 then
  return redis.error_reply('RUNOVER this start of worker ' .. ARGV[1] .. ' is under way')
end
return {redis.call('HGET', KEYS[2], ARGV[1]), redis.call('HGET', KEYS[1], 'parked:' .. ARGV[1])}
"""
)

_POST = (
    _GUARD
    + """
-- KEYS: state, the client's mailbox. ARGV: time to live, then the letter's fields.
local gone = over('', '')
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
append(KEYS[2], ARGV[1], unpack(ARGV, 2))
return 1
"""
)

_PARK = (
    _GUARD
    + """
-- KEYS: state, mailbox. ARGV: worker, epoch, the last id read, what is executed.
local gone = over(ARGV[1], ARGV[2])
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
if last[1] and last[1][1] ~= ARGV[3] then return 0 end
redis.call('HDEL', KEYS[1], 'claim:' .. ARGV[1])
redis.call('HSET', KEYS[1], 'parked:' .. ARGV[1], ARGV[4])
return 1
"""
)


class _Script:
    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


_SOURCES = {"complete": _COMPLETE, "enter": _ENTER, "post": _POST, "park": _PARK}
_SCRIPTS = {name: _Script(source) for name, source in _SOURCES.items()}


class RedisStore:
    """A store on a server.

    Commands share one connection; each mailbox that is waited on has one of its own.
    """

    def __init__(self, url: str, latency: float = 0.0) -> None:
        """Reach the server at a URL; `latency` seconds are added to each round trip."""
        self.url = url
        self._address: Address = parse_url(url)
        self._latency = latency
        self._lock = threading.Lock()
        self._connection: Connection | None = Connection(self._address, latency)
        self._receivers: dict[str, Connection] = {}
        self._ttl: dict[RunId, int] = {}

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._lock:
            if self._connection is None:
                self._connection = Connection(self._address, self._latency)
            try:
                yield self._connection
            except StoreUnavailable:
                self._connection = None
                raise

    def _call(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        with self._connected() as connection:
            replies = connection.pipeline(commands)
        for reply in replies:
            if isinstance(reply, StoreRefused):
                raise _explained(reply)
        return replies

    def _script(
        self,
        name: str,
        script_keys: Sequence[str],
        args: Sequence[Arg],
        before: Sequence[Sequence[Arg]] = (),
    ) -> Any:
        """Run a script, after other commands, in one round trip."""
        script = _SCRIPTS[name]
        tail = (len(script_keys), *script_keys, *args)
        with self._connected() as connection:
            replies = connection.pipeline([*before, ("EVALSHA", script.sha, *tail)])
            if isinstance(replies[-1], StoreRefused) and "NOSCRIPT" in str(replies[-1]):
                replies[-1:] = connection.pipeline([("EVAL", script.source, *tail)])
        for reply in replies:
            if isinstance(reply, StoreRefused):
                raise _explained(reply)
        return replies[-1]

    def open(self, run: RunId, opening: Opening) -> None:
        """Begin a run."""
        state: list[Arg] = ["run", run]
        for worker in opening.started:
            state += [f"claim:{worker}", 1, f"epoch:{worker}", 1]
        commands: list[list[Arg]] = [["HSET", keys.state(run), *state]]
        touched = [keys.state(run)]
        for key, items in ((keys.parts(run), opening.parts), (keys.outputs(run), opening.outputs)):
            if items:
                fields: list[Arg] = []
                for name, blob in items.items():
                    fields += [name, blob]
                commands.append(["HSET", key, *fields])
                touched.append(key)
        commands += [["EXPIRE", key, opening.ttl] for key in touched]
        self._call(commands)

    def enter(self, run: RunId, worker: WorkerId, epoch: int) -> Entry:
        """Begin a start of a worker."""
        part, executed = self._script("enter", (keys.state(run), keys.parts(run)), (worker, epoch))
        return Entry(part, executed)

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Claim]:
        """Save, mark, deliver."""
        large: list[list[Arg]] = []
        args: list[Arg] = [keys.mailbox(run, ""), worker, epoch, 86400, completion.executed]
        small: list[tuple[str, Blob]] = []
        for name, blob in completion.saves:
            if blob_nbytes(blob) > _LARGE:
                large.append(["HSET", keys.outputs(run), name, blob])
            else:
                small.append((name, blob))
        args.append(len(small))
        for name, blob in small:
            args += [name, blob]
        args.append(len(completion.marks))
        for mark in completion.marks:
            args += [mark.task, mark.owner, mark.payload, len(mark.producers), *mark.producers]
        args.append(len(completion.letters))
        for letter in completion.letters:
            args += [letter.kind, letter.name, len(letter.parts), *letter.parts]
        touched = (
            keys.state(run),
            keys.marks(run),
            keys.outputs(run),
            keys.progress(run),
            keys.mailbox(run, keys.CLIENT),
        )
        flat = self._script("complete", touched, args, large)
        return [
            Claim(WorkerId(str(owner, "utf-8")), int(start))
            for owner, start in zip(flat[::2], flat[1::2], strict=True)
        ]

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        fields: list[Arg] = ["kind", letter.kind, "name", letter.name]
        for number, part in enumerate(letter.parts, 1):
            fields += [number, part]
        touched = (keys.state(run), keys.mailbox(run, keys.CLIENT))
        self._script("post", touched, [86400, *fields])

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Letter]:
        """The messages behind `after`."""
        key = keys.mailbox(run, mailbox)
        with self._lock:
            connection = self._receivers.get(key)
        if connection is None:
            connection = Connection(self._address, self._latency)
            with self._lock:
                self._receivers[key] = connection
        block = ("BLOCK", max(1, round(timeout * 1000))) if timeout > 0 else ()
        try:
            reply = connection.call("XREAD", *block, "STREAMS", key, after or "0")
        except StoreUnavailable:
            if self._receivers.get(key) is not connection:
                return []
            del self._receivers[key]
            raise
        if not reply:
            return []
        return [_letter(str(id_, "utf-8"), fields) for id_, fields in reply[0][1]]

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """End whoever waits for that mailbox."""
        with self._lock:
            connection = self._receivers.pop(keys.mailbox(run, mailbox), None)
        if connection is not None:
            connection.hang_up()

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        touched = (keys.state(run), keys.mailbox(run, worker))
        return bool(self._script("park", touched, (worker, epoch, read, executed)))

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Saved outputs."""
        found: list[Buffer | None] = self._call([["HMGET", keys.outputs(run), *names]])[0]
        return found

    def progress(self, run: RunId) -> int:
        """How many tasks have been executed."""
        return sum(int(count) for count in self._call([["HVALS", keys.progress(run)]])[0])

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete everything of it."""
        names = (keys.state, keys.marks, keys.outputs, keys.parts, keys.progress)
        mailboxes = [keys.mailbox(run, name) for name in (keys.CLIENT, *workers)]
        self._call([["UNLINK", *(name(run) for name in names), *mailboxes]])
        for mailbox in (keys.CLIENT, *workers):
            self.hang_up(run, mailbox)

    def disconnect(self) -> None:
        """Give up the connections."""
        with self._lock:
            connections = [*self._receivers.values()]
            self._receivers.clear()
            if self._connection is not None:
                connections.append(self._connection)
                self._connection = None
            for connection in connections:
                connection.close()


def _letter(id_: str, fields: list[Buffer]) -> Letter:
    kind, name = str(fields[1], "utf-8"), str(fields[3], "utf-8")
    return Letter(kind, name, tuple(fields[5::2]), id_)


def _explained(error: StoreRefused) -> Exception:
    text = str(error)
    if "RUNOVER" in text:
        return RunOver(text[text.index("RUNOVER") + 8 :].partition(" script:")[0] + ".")
    if text.startswith("OOM"):
        return StoreRefused(
            f"The store's memory is full ({text}). Give the server more (maxmemory), or produce "
            "smaller outputs."
        )
    return error
