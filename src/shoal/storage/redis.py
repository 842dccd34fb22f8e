"""`RedisStore`: the store on a Valkey or Redis server, its atomic operations as scripts there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.errors import RunOver, StoreInterrupted, StoreUnavailable
from shoal.storage import keys
from shoal.storage.base import (
    Claim,
    Completion,
    Entry,
    Leftovers,
    Letter,
    MarkRequest,
    Opening,
    Ready,
)
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.receivers import Receivers
from shoal.storage.resp import Arg, Connection
from shoal.storage.server import KEPT, Script, ServerClient, checked, lifetime, ready
from shoal.types import RunId, TaskId, WorkerId

_LARGE = 64 * 1024
"""Larger outputs are staged by a command of their own, because a script copies what it is given;
the script then renames them, and what it doesn't, for whatever reason, is deleted after it."""
_STAGED_SECONDS = 3600
_CLOSING_SECONDS = 1.0
"""For how long a run is tried to be closed while the server doesn't answer anyway."""

_GUARD = """
local ttl = redis.call('PTTL', KEYS[1])
local function over(epoch_of, epoch)
  if ttl == -2 then return 'the run' end
  if epoch_of ~= '' and redis.call('HGET', KEYS[1], 'epoch:' .. epoch_of) ~= epoch
      and redis.call('HGET', KEYS[1], 'twin:' .. epoch_of) ~= epoch then
    return 'this start of worker ' .. epoch_of
  end
end
local function append(mailbox, ...)
  redis.call('XADD', mailbox, '*', ...)
  redis.call('PEXPIRE', mailbox, ttl)
end
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function only(worker, epoch)
  if redis.call('HDEL', KEYS[1], 'twin:' .. worker) == 1 then
    redis.call('HSET', KEYS[1], 'epoch:' .. worker, epoch)
    return true
  end
end
local function lease(leases, worker)
  redis.call('HSET', leases, worker, now() + redis.call('HGET', KEYS[1], 'lease'))
end
local function claim(claims, leases, worker)
  lease(leases, worker)
  claims[#claims + 1] = worker
  claims[#claims + 1] = redis.call('HINCRBY', KEYS[1], 'epoch:' .. worker, 1)
  claims[#claims + 1] = redis.call('HGET', KEYS[1], 'kind:' .. worker)
      or redis.call('HGET', KEYS[1], 'kind')
end
"""

_COMPLETE = (
    _GUARD
    + """
-- KEYS: state, marks, outputs, progress, the client's mailbox, names of large outputs, leases, what
-- flexible workers are given, then the staged outputs.
-- ARGV[1] and ARGV[2] say how the keys of mailboxes and of large outputs begin; ARGV[6] is another
-- each time that this isn't a repetition, and ARGV[7] is 1 if the worker leaves.
-- A mark without an owner has the number of its producer instead of all producers' names.
-- The first to write is a command that a full memory refuses: after any other all are let through.
local mailboxes, larges, worker, epoch, executed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local token, finished = ARGV[6], ARGV[7]
local gone = over(worker, epoch)
local before = redis.call('HGET', KEYS[1], 'answer:' .. worker)
local repeated = before and string.sub(before, 1, #token) == token
if gone or repeated then
  for i = 9, #KEYS do redis.call('UNLINK', KEYS[i]) end
  if repeated then return cmsgpack.unpack(string.sub(before, #token + 1)) end
  return redis.error_reply('RUNOVER ' .. gone .. ' is over')
end
local at = 8
local function take()
  local value = ARGV[at]
  at = at + 1
  return value
end
local claims, owned = {}, {}
for i = 9, #KEYS do
  local name = take()
  redis.call('SADD', KEYS[6], name)
  redis.call('HDEL', KEYS[3], name)
  redis.call('RENAME', KEYS[i], larges .. name)
  redis.call('PEXPIRE', larges .. name, ttl)
end
for _ = 1, tonumber(take()) do
  local name = take()
  redis.call('HSET', KEYS[3], name, take())
end
redis.call('PEXPIRE', KEYS[3], ttl)
redis.call('PEXPIRE', KEYS[6], ttl)
for _ = 1, tonumber(take()) do
  local owner, task, payload = take(), take(), take()
  append(mailboxes .. owner, 'kind', 'saved', 'name', task, 1, payload)
end
for _ = 1, tonumber(take()) do
  local task, owner, producer, payload, count = take(), take(), take(), take(), tonumber(take())
  local fields = {}
  if owner ~= '' then
    for i = 1, count do fields[i] = task .. '\\n' .. take() end
  end
  local new = redis.call('HSETNX', KEYS[2], task .. '\\n' .. producer, payload) == 1
  local last = new and redis.call('HINCRBY', KEYS[2], task, 1) == count
  if owner == '' then
    if last then redis.call('HSET', KEYS[2], task .. '\\n', producer) end
    last = last or redis.call('HGET', KEYS[2], task .. '\\n') == producer
  end
  if last then
    if owner == '' then
      local ready = {task}
      for i = 1, count do ready[i + 1] = redis.call('HGET', KEYS[2], task .. '\\n' .. i) end
      owned[#owned + 1] = ready
    else
      local letter = {'kind', 'ready', 'name', task}
      for i, part in ipairs(redis.call('HMGET', KEYS[2], unpack(fields))) do
        letter[#letter + 1] = i
        letter[#letter + 1] = part
      end
      append(mailboxes .. owner, unpack(letter))
      if redis.call('HSETNX', KEYS[1], 'claim:' .. owner, 1) == 1 then
        claim(claims, KEYS[7], owner)
      end
    end
  end
end
redis.call('PEXPIRE', KEYS[2], ttl)
for _ = 1, tonumber(take()) do
  local letter = {'kind', take(), 'name', take()}
  for i = 1, tonumber(take()) do
    letter[#letter + 1] = i
    letter[#letter + 1] = take()
  end
  append(KEYS[5], unpack(letter))
end
for _ = 1, tonumber(take()) do
  local started, given = take(), take()
  if redis.call('HEXISTS', KEYS[1], 'epoch:' .. started) == 0 then
    redis.call('HSET', KEYS[8], started, given)
    redis.call('PEXPIRE', KEYS[8], ttl)
    claim(claims, KEYS[7], started)
  end
end
redis.call('HSET', KEYS[4], worker .. '\\n' .. epoch, executed)
redis.call('PEXPIRE', KEYS[4], ttl)
if finished == '1' then
  only(worker, epoch)
  redis.call('HDEL', KEYS[7], worker)
  redis.call('HSET', KEYS[1], 'done:' .. worker, 1)
else
  lease(KEYS[7], worker)
end
local answer = {claims, owned}
redis.call('HSET', KEYS[1], 'answer:' .. worker, token .. cmsgpack.pack(answer))
return answer
"""
)

_ENTER = (
    _GUARD
    + """
-- KEYS: state, parts, leases, given, outputs, names of large ones, marks, the client's mailbox.
-- ARGV: worker, epoch, who asks, 1 if it wants its part. The common part has no worker's name.
local common = redis.call('HGET', KEYS[2], '')
if common and ttl ~= -2 and ARGV[2] == '1' then
  redis.call('HSETNX', KEYS[1], 'epoch:' .. ARGV[1], 1)
end
local gone = over(ARGV[1], ARGV[2])
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
local entered = 'entered:' .. ARGV[1] .. ':' .. ARGV[2]
if redis.call('HSETNX', KEYS[1], entered, ARGV[3]) == 0
    and redis.call('HGET', KEYS[1], entered) ~= ARGV[3] then
  return redis.error_reply('RUNOVER this start of worker ' .. ARGV[1] .. ' is under way')
end
lease(KEYS[3], ARGV[1])
local part = ARGV[4] == '1' and (redis.call('HGET', KEYS[2], ARGV[1]) or common)
local parked = redis.call('HGET', KEYS[1], 'parked:' .. ARGV[1])
local given = redis.call('HGET', KEYS[4], ARGV[1])
local before = tostring(tonumber(ARGV[2]) - 1)
if before == '0' or redis.call('HGET', KEYS[1], 'parked at:' .. ARGV[1]) == before then
  return {part, parked, given}
end
local saved = redis.call('HKEYS', KEYS[5])
for _, name in ipairs(redis.call('SMEMBERS', KEYS[6])) do saved[#saved + 1] = name end
local marks, handed, started = {}, {}, {}
local tail = '\\n' .. ARGV[1]
for _, name in ipairs(redis.call('HKEYS', KEYS[7])) do
  if string.sub(name, -#tail) == tail then
    marks[#marks + 1] = string.sub(name, 1, #name - #tail)
    marks[#marks + 1] = redis.call('HGET', KEYS[7], name)
  end
end
for _, letter in ipairs(redis.call('XRANGE', KEYS[8], '-', '+')) do
  if letter[2][2] == 'output' and letter[2][6] then handed[#handed + 1] = letter[2][4] end
end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(name, 1, 6) == 'epoch:' then started[#started + 1] = string.sub(name, 7) end
end
return {part, parked, given, saved, marks, handed, started}
"""
)

_POST = (
    "#!lua flags=allow-oom"  # who tells that the memory is full must get through
    + _GUARD
    + """
-- KEYS: state, the client's mailbox. ARGV: the letter's fields.
local gone = over('', '')
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
append(KEYS[2], unpack(ARGV))
return 1
"""
)

_PARK = (
    _GUARD
    + """
-- KEYS: state, mailbox, leases. ARGV: worker, epoch, the last id read, what is executed.
local gone = over(ARGV[1], ARGV[2])
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
if last[1] and last[1][1] ~= ARGV[3] then return 0 end
local twin = redis.call('HGET', KEYS[1], 'twin:' .. ARGV[1])
if twin then
  only(ARGV[1], ARGV[2] == twin and redis.call('HGET', KEYS[1], 'epoch:' .. ARGV[1]) or twin)
  return 1
end
redis.call('HDEL', KEYS[1], 'claim:' .. ARGV[1])
redis.call('HSET', KEYS[1], 'parked:' .. ARGV[1], ARGV[4], 'parked at:' .. ARGV[1], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[1])
return 1
"""
)

_HAND_OVER = (
    _GUARD
    + """
-- KEYS: state, leases. ARGV: worker, epoch, what is executed. Repeated, it answers the same.
local parked, at = 'parked:' .. ARGV[1], 'parked at:' .. ARGV[1]
local next = tostring(tonumber(ARGV[2]) + 1)
if redis.call('HGET', KEYS[1], at) == ARGV[2]
    and redis.call('HGET', KEYS[1], 'epoch:' .. ARGV[1]) == next then
  redis.call('HSET', KEYS[1], 'epoch:' .. ARGV[1], ARGV[2])
end
local gone = over(ARGV[1], ARGV[2])
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
redis.call('HSET', KEYS[1], parked, ARGV[3], at, ARGV[2])
local claims = {}
claim(claims, KEYS[2], ARGV[1])
return claims
"""
)

_TEND = (
    _GUARD
    + """
-- KEYS: state, leases, the client's mailbox. ARGV: workers and epochs that are alive.
-- A lease that the run was opened with begins when somebody first looks at it.
local gone = over('', '')
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], 'epoch:' .. ARGV[i]) == ARGV[i + 1]
      and redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then
    lease(KEYS[2], ARGV[i])
  end
end
local claims, most = {}, tonumber(redis.call('HGET', KEYS[1], 'restarts'))
local leases = redis.call('HGETALL', KEYS[2])
for i = 1, #leases, 2 do
  local worker, until_ = leases[i], tonumber(leases[i + 1])
  if worker ~= '' and until_ == 0 then
    lease(KEYS[2], worker)
  elseif worker ~= '' and until_ < now() then
    if redis.call('HINCRBY', KEYS[1], 'lost:' .. worker, 1) > most then
      redis.call('HDEL', KEYS[2], worker)
      append(KEYS[3], 'kind', 'lost', 'name', worker, 1, '{"reason":"vanished","running":[]}')
    else
      claim(claims, KEYS[2], worker)
    end
  end
end
return claims
"""
)

_RESTART = (
    _GUARD
    + """
-- KEYS: state, leases. ARGV: worker, epoch, cause, kind.
local gone = over(ARGV[1], ARGV[2])
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
local most = tonumber(redis.call('HGET', KEYS[1], 'restarts'))
if redis.call('HINCRBY', KEYS[1], 'lost:' .. ARGV[3], 1) > most then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return {}
end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'kind:' .. ARGV[1], ARGV[4]) end
local claims = {}
claim(claims, KEYS[2], ARGV[1])
return claims
"""
)

_TWIN = (
    _GUARD
    + """
-- KEYS: state, leases. ARGV: worker.
local gone = over('', '')
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
local claims, epoch = {}, redis.call('HGET', KEYS[1], 'epoch:' .. ARGV[1])
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0
    or redis.call('HSETNX', KEYS[1], 'twin:' .. ARGV[1], epoch) == 0 then
  return claims
end
claim(claims, KEYS[2], ARGV[1])
return claims
"""
)

_STOP = (
    _GUARD
    + """
-- KEYS: state, leases. ARGV: how mailboxes begin.
local gone = over('', '')
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
local told = 0
for _, worker in ipairs(redis.call('HKEYS', KEYS[2])) do
  if worker ~= '' then
    append(ARGV[1] .. worker, 'kind', 'stop', 'name', worker)
    redis.call('HDEL', KEYS[2], worker)
    told = told + 1
  end
end
return told
"""
)

_RESUME = (
    _GUARD
    + """
-- KEYS: state, leases, the client's mailbox, parts. ARGV: how mailboxes begin, and 1 if those that
-- are done begin again.
local gone = over('', '')
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
local claims, flexible = {}, redis.call('HEXISTS', KEYS[4], '') == 1 and ARGV[2] == '0'
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local worker = string.match(name, '^epoch:(.*)$')
  if string.sub(name, 1, 5) == 'lost:' then
    redis.call('HDEL', KEYS[1], name)
  elseif worker and not (flexible and redis.call('HEXISTS', KEYS[1], 'done:' .. worker) == 1) then
    redis.call('HSET', KEYS[1], 'claim:' .. worker, 1)
    redis.call('HDEL', KEYS[1], 'parked at:' .. worker)
    claim(claims, KEYS[2], worker)
    local mailbox = ARGV[1] .. worker
    for _, letter in ipairs(redis.call('XRANGE', mailbox, '-', '+')) do
      if letter[2][2] == 'stop' then redis.call('XDEL', mailbox, letter[1]) end
    end
  end
end
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
return {claims, last[1] and last[1][1] or ''}
"""
)

_CLOSE = """
-- KEYS: names of large outputs, state, then whatever else the run has. ARGV: how large outputs and
-- mailboxes begin, and after how many milliseconds everything is deleted; 0: now. Who has ever been
-- started may have a mailbox, also if no plan names it.
local function delete(key)
  if ARGV[3] == '0' then redis.call('UNLINK', key) else redis.call('PEXPIRE', key, ARGV[3]) end
end
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do delete(ARGV[1] .. name) end
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  local worker = string.match(name, '^epoch:(.*)$')
  if worker then delete(ARGV[2] .. worker) end
end
for _, key in ipairs(KEYS) do delete(key) end
return 1
"""


_SOURCES = {
    "complete": _COMPLETE,
    "enter": _ENTER,
    "post": _POST,
    "park": _PARK,
    "hand over": _HAND_OVER,
    "tend": _TEND,
    "restart": _RESTART,
    "twin": _TWIN,
    "stop": _STOP,
    "resume": _RESUME,
    "close": _CLOSE,
}
_SCRIPTS = {name: Script(source) for name, source in _SOURCES.items()}


class RedisStore(ServerClient):
    """A store on a server.

    Commands share one connection; each mailbox that is waited on has one of its own.
    """

    scripts = _SCRIPTS

    def __init__(
        self,
        url: str,
        latency: float = 0.0,
        *,
        known: bool = False,
        revive: Callable[[], None] | None = None,
    ) -> None:
        """Reach the server at a URL; the arguments are those of `ServerClient`."""
        self._receivers = Receivers(self._connect)
        self._watchful = not known
        self._lifetime = ""
        """The server's, as of the latest connection."""
        self._opened: dict[RunId, str] = {}
        """The runs begun here, and the server's lifetime then."""
        self._executed: dict[RunId, int] = {}
        """How many of their tasks have been executed, as of the latest look."""
        super().__init__(url, latency, known=known, revive=revive)

    def _connect(self) -> Connection:
        connection = super()._connect()
        if self._watchful:
            try:
                self._lifetime = lifetime(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    @property
    def durable(self) -> bool:
        """Whether the server keeps what it is told when it is restarted."""
        return self._lifetime == KEPT

    def open(self, run: RunId, opening: Opening) -> None:
        """Begin a run."""
        checked(self._call([["MULTI"], *_opening_commands(run, opening), ["EXEC"]])[-1])
        self._opened[run] = self._lifetime

    def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
        """Begin a start of a worker."""
        touched = (
            keys.state(run),
            keys.parts(run),
            keys.leases(run),
            keys.given(run),
            keys.outputs(run),
            keys.large_outputs(run),
            keys.marks(run),
            keys.mailbox(run, keys.CLIENT),
        )
        args = (worker, epoch, secrets.token_hex(8), int(part))
        found, executed, given, *left = self._script("enter", touched, args)
        return Entry(found, executed, given, _leftovers(*left) if left else None)

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Claim | Ready]:
        """Save, mark, deliver."""
        staging: list[list[Arg]] = []
        staged: list[str] = []
        args: list[Arg] = [
            *(keys.mailbox(run, ""), keys.large_output(run, "")),
            *(worker, epoch, completion.executed),
            *(secrets.token_hex(8), int(completion.finished)),
        ]
        small: list[tuple[str, Blob]] = []
        for name, blob in completion.saves:
            if blob_nbytes(blob) > _LARGE:
                staged.append(keys.staged(run, secrets.token_hex(8)))
                staging.append(["SET", staged[-1], blob, "EX", _STAGED_SECONDS])
                args.append(name)
            else:
                small.append((name, blob))
        args.append(len(small))
        for name, blob in small:
            args += [name, blob]
        args.append(len(completion.announcements))
        for announcement in completion.announcements:
            args += [announcement.owner, announcement.task, announcement.payload]
        args.append(len(completion.marks))
        for mark in completion.marks:
            args += _mark_args(mark, worker)
        args.append(len(completion.letters))
        for letter in completion.letters:
            args += [letter.kind, letter.name, len(letter.parts), *letter.parts]
        args.append(len(completion.starts))
        for started, given in completion.starts:
            args += [started, given]
        touched = (
            keys.state(run),
            keys.marks(run),
            keys.outputs(run),
            keys.progress(run),
            keys.mailbox(run, keys.CLIENT),
            keys.large_outputs(run),
            keys.leases(run),
            keys.given(run),
            *staged,
        )
        dropped: list[list[Arg]] = [["UNLINK", *staged]] if staged else []
        claims, owned = self._script("complete", touched, args, staging, after=dropped)
        answers: list[Claim | Ready] = [*_claims(claims)]
        answers += [Ready(TaskId(str(task, "utf-8")), tuple(rest)) for task, *rest in owned]
        return answers

    def post(self, run: RunId, letter: Letter) -> None:
        """Put a message into the client's mailbox."""
        fields: list[Arg] = ["kind", letter.kind, "name", letter.name]
        for number, part in enumerate(letter.parts, 1):
            fields += [number, part]
        touched = (keys.state(run), keys.mailbox(run, keys.CLIENT))
        self._script("post", touched, fields)

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Letter]:
        """The messages behind `after`."""
        place = keys.mailbox(run, mailbox)
        try:
            return self._persist(
                lambda: self._receive(run, mailbox, after, timeout),
                wait=partial(self._receivers.ended_within, place),
            )
        except StoreInterrupted:
            if self._receivers.hung_up(place):
                return []
            raise

    def _receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> list[Letter]:
        connection = self._receivers.take(keys.mailbox(run, mailbox))
        if connection is None:
            return []
        try:
            self._check_kept(run)
            reply = _read_mail(connection, run, mailbox, after, timeout)
        except StoreUnavailable:
            if self._receivers.give_up(connection):
                return []
            raise
        except BaseException:
            self._receivers.give_up(connection)
            raise
        self._receivers.give_back(connection)
        return [_letter(str(id_, "utf-8"), fields) for id_, fields in reply[0][1]] if reply else []

    def _check_kept(self, run: RunId) -> None:
        """What a server has that was restarted from an old copy of its data isn't to be trusted."""
        if self._opened.get(run, self._lifetime) != self._lifetime:
            raise RunOver(f"Run {run} was begun before the store was restarted without its data.")

    def hang_up(self, run: RunId, mailbox: str) -> None:
        """End whoever waits for that mailbox, or is about to."""
        self._receivers.hang_up(keys.mailbox(run, mailbox))

    def park(self, run: RunId, worker: WorkerId, epoch: int, read: str, executed: bytes) -> bool:
        """Leave, unless a message came after `read`."""
        touched = (keys.state(run), keys.mailbox(run, worker), keys.leases(run))
        return bool(self._script("park", touched, (worker, epoch, read, executed)))

    def hand_over(self, run: RunId, worker: WorkerId, epoch: int, executed: bytes) -> Claim:
        """Leave, with the right to start the worker again."""
        touched = (keys.state(run), keys.leases(run))
        (claim,) = _claims(self._script("hand over", touched, (worker, epoch, executed)))
        return claim

    def tend(self, run: RunId, alive: Sequence[tuple[WorkerId, int]] = ()) -> list[Claim]:
        """Renew leases, and claim the starts of those whose lease is over."""
        touched = (keys.state(run), keys.leases(run), keys.mailbox(run, keys.CLIENT))
        workers = [item for pair in alive for item in pair]
        return _claims(self._script("tend", touched, workers, seconds=0.0))

    def restart(
        self, run: RunId, worker: WorkerId, epoch: int, cause: str, kind: str = ""
    ) -> Claim | None:
        """Claim the next start of a worker that was seen to end."""
        touched = (keys.state(run), keys.leases(run))
        claims = _claims(self._script("restart", touched, (worker, epoch, cause, kind)))
        return claims[0] if claims else None

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        """Saved outputs."""
        commands: list[list[Arg]] = [
            ["HMGET", keys.outputs(run), *names],
            ["MGET", *(keys.large_output(run, name) for name in names)],
            ["EXISTS", keys.state(run)],
        ]
        small, large, exists = self._call(commands)
        if not exists:
            raise RunOver(f"Run {run} is over.")
        return [
            here if here is not None else there for here, there in zip(small, large, strict=True)
        ]

    def twin(self, run: RunId, worker: WorkerId) -> Claim | None:
        """Claim one more start of a worker, beside the one at work."""
        claims = _claims(self._script("twin", (keys.state(run), keys.leases(run)), [worker]))
        return claims[0] if claims else None

    def stop(self, run: RunId) -> int:
        """Tell the workers that are at work to leave."""
        touched = (keys.state(run), keys.leases(run))
        return int(self._script("stop", touched, [keys.mailbox(run, "")], seconds=0.0))

    def resume(
        self, run: RunId, opening: Opening, *, forgotten: bool = False
    ) -> tuple[list[Claim], str]:
        """Claim starts of all workers that were ever started."""
        touched = (
            keys.state(run),
            keys.leases(run),
            keys.mailbox(run, keys.CLIENT),
            keys.parts(run),
        )
        if not self._call([["EXISTS", keys.state(run)]])[0]:
            raise RunOver(f"Run {run} is over.")
        checked(
            self._call(
                [["MULTI"], *_opening_commands(run, replace(opening, started=())), ["EXEC"]]
            )[-1]
        )
        self.expire(run, opening.ttl)
        claims, last = self._script("resume", touched, [keys.mailbox(run, ""), int(forgotten)])
        return _claims(claims), _text(last)

    def marked(self, run: RunId) -> frozenset[tuple[str, str]]:
        """The marks that are set."""
        names = map(_text, self._call([["HKEYS", keys.marks(run)]])[0])
        found = [name.partition("\n") for name in names]
        return frozenset((task, producer) for task, _, producer in found if producer)

    def progress(self, run: RunId) -> int:
        """How many tasks have been executed; what was known last while the server is away."""
        try:
            counts = self._call([["HVALS", keys.progress(run)]], seconds=0.0)[0]
        except StoreUnavailable:
            return self._executed.get(run, 0)
        executed = sum(int(count) for count in counts)
        if run in self._opened:
            self._executed[run] = executed
        return executed

    def close(self, run: RunId, workers: Sequence[WorkerId]) -> None:
        """End a run and delete everything of it."""
        self._opened.pop(run, None)
        self._executed.pop(run, None)
        mailboxes = [keys.mailbox(run, name) for name in (keys.CLIENT, *workers)]
        self._delete(run, mailboxes, 0)
        for mailbox in mailboxes:
            self._receivers.hang_up(mailbox, remember=False)

    def expire(self, run: RunId, seconds: float) -> None:
        """Have everything of a run deleted later."""
        self._delete(run, [keys.mailbox(run, keys.CLIENT)], max(1, round(seconds * 1000)))

    def _delete(self, run: RunId, mailboxes: Sequence[str], milliseconds: int) -> None:
        names = (
            keys.large_outputs,
            keys.state,
            keys.marks,
            keys.outputs,
            keys.parts,
            keys.progress,
            keys.given,
            keys.leases,
        )
        touched = [*(name(run) for name in names), *mailboxes]
        args = (keys.large_output(run, ""), keys.mailbox(run, ""), milliseconds)
        patience = _CLOSING_SECONDS if self._outage.lasts else None
        self._script("close", touched, args, seconds=patience)

    def disconnect(self) -> None:
        """Give up the connections."""
        self._receivers.close()
        super().disconnect()


def _opening_commands(run: RunId, opening: Opening) -> list[list[Arg]]:
    lease = round(opening.lease * 1000)
    state: list[Arg] = ["run", run, "lease", lease, "restarts", opening.restarts]
    state += ["kind", opening.kind]
    for worker, kind in opening.kinds.items():
        state += [f"kind:{worker}", kind]
    for worker in opening.started:
        state += [f"claim:{worker}", 1, f"epoch:{worker}", 1]
    commands: list[list[Arg]] = [["HSET", keys.state(run), *state]]
    leases: list[Arg] = ["", 0]
    for worker in opening.started:
        leases += [worker, 0]
    commands.append(["HSET", keys.leases(run), *leases])
    parts: list[Arg] = [item for pair in opening.parts.items() for item in pair]
    if opening.common is not None:
        parts += ["", opening.common]
    small: list[Arg] = []
    large: list[Arg] = []
    for name, blob in opening.outputs.items():
        if blob_nbytes(blob) > _LARGE:
            commands.append(["SET", keys.large_output(run, name), blob, "EX", opening.ttl])
            large.append(name)
        else:
            small += [name, blob]
    commands += [
        [command, key, *items]
        for command, key, items in (
            ("HSET", keys.parts(run), parts),
            ("HSET", keys.outputs(run), small),
            ("SADD", keys.large_outputs(run), large),
        )
        if items
    ]
    named = (keys.state, keys.parts, keys.outputs, keys.large_outputs, keys.leases)
    commands += [["EXPIRE", key(run), opening.ttl] for key in named]
    return commands


def _read_mail(
    connection: Connection, run: RunId, mailbox: str, after: str, timeout: float
) -> list[Any] | None:
    """Look whether the run exists and wait for mail, in one round trip."""
    block = ("BLOCK", max(1, round(timeout * 1000))) if timeout > 0 else ()
    read = ("XREAD", *block, "STREAMS", keys.mailbox(run, mailbox), after or "0")
    connection.send([("EXISTS", keys.state(run)), read])
    if not checked(ready(connection, [connection.reply()]))[0]:
        raise RunOver(f"Run {run} is over.")
    mail: list[Any] | None = checked([connection.reply(patience=timeout)])[0]
    return mail


def _mark_args(mark: MarkRequest, worker: WorkerId) -> list[Arg]:
    producer, count = mark.producer or worker, len(mark.producers)
    if mark.owner is None:
        return [mark.task, "", mark.producers.index(producer) + 1, mark.payload, count]
    return [mark.task, mark.owner, producer, mark.payload, count, *mark.producers]


def _claims(flat: Sequence[Any]) -> list[Claim]:
    found = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return [Claim(WorkerId(_text(w)), int(epoch), _text(kind or b"")) for w, epoch, kind in found]


def _leftovers(
    saved: Sequence[Buffer],
    marks: Sequence[Buffer],
    handed_in: Sequence[Buffer],
    started: Sequence[Buffer],
) -> Leftovers:
    payloads = dict(zip(map(_text, marks[::2]), marks[1::2], strict=True))
    return Leftovers(_texts(saved), payloads, _texts(handed_in), _texts(started))


def _text(buffer: Buffer) -> str:
    return str(buffer, "utf-8")


def _texts(buffers: Sequence[Buffer]) -> frozenset[str]:
    return frozenset(map(_text, buffers))


def _letter(id_: str, fields: list[Buffer]) -> Letter:
    kind, name = str(fields[1], "utf-8"), str(fields[3], "utf-8")
    return Letter(kind, name, tuple(fields[5::2]), id_)
