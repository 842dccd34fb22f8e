"""The store's atomic operations, as scripts that run on the server.

Each begins with a guard: what is said of a run that is over, or by a start of a worker that is, is
refused. Each may be repeated by who isn't sure that it was carried out, and answers the same.
"""

from __future__ import annotations

from shoal.storage.server import Script

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
-- each time that this isn't a repetition, ARGV[7] is 1 if the worker leaves, unless it is given a
-- task or refused a mark, and ARGV[8] is 1 if its start hasn't entered before.
-- A mark without an owner has the number of its producer instead of all producers' names, and how
-- many outputs that stay with the worker are to be marked instead, and their numbers.
-- The first to write is a command that a full memory refuses: after any other all are let through.
local mailboxes, larges, worker, epoch, executed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local token, finished, entering = ARGV[6], ARGV[7], ARGV[8]
local gone = over(worker, epoch)
local before = redis.call('HGET', KEYS[1], 'answer:' .. worker)
local repeated = before and string.sub(before, 1, #token) == token
local entered = 'entered:' .. worker .. ':' .. epoch
if entering == '1' and not (gone or repeated)
    and redis.call('HSETNX', KEYS[1], entered, token) == 0
    and redis.call('HGET', KEYS[1], entered) ~= token then
  gone = 'this repetition of a start of worker ' .. worker
end
if gone or repeated then
  for i = 9, #KEYS do redis.call('UNLINK', KEYS[i]) end
  if repeated then return cmsgpack.unpack(string.sub(before, #token + 1)) end
  return redis.error_reply('RUNOVER ' .. gone .. ' is over')
end
local at = 9
local function take()
  local value = ARGV[at]
  at = at + 1
  return value
end
local claims, owned, refused = {}, {}, {}
-- The mark of an output that stays with its worker is HELD; how many are is counted.
local HELD = 'held'
local function free(task, producer, payload, count, kept)
  local last, counted = task .. '\\n', task .. '\\n\\n'
  local function named(number) return task .. '\\n' .. number end
  local held = tonumber(redis.call('HGET', KEYS[2], counted) or 0)
  if #kept == 0 then
    local new = redis.call('HSETNX', KEYS[2], named(producer), payload) == 1
    if new and redis.call('HINCRBY', KEYS[2], task, 1) == count then
      redis.call('HSET', KEYS[2], last, producer)
    elseif held > 0 and redis.call('HGET', KEYS[2], named(producer)) == HELD then
      redis.call('HSET', KEYS[2], named(producer), payload)
      held = redis.call('HINCRBY', KEYS[2], counted, -1)
    end
    if redis.call('HGET', KEYS[2], last) ~= producer then return end
    for i = 1, held > 0 and count or 0 do
      if redis.call('HGET', KEYS[2], named(i)) == HELD then
        redis.call('HSET', KEYS[2], last, i)
        return
      end
    end
  else
    local fresh = {}
    for _, number in ipairs(kept) do
      if redis.call('HEXISTS', KEYS[2], named(number)) == 0 then fresh[#fresh + 1] = number end
    end
    local done = tonumber(redis.call('HGET', KEYS[2], task) or 0)
    if #fresh > 0 and done + #fresh == count then
      for _, number in ipairs(fresh) do redis.call('HSET', KEYS[2], named(number), HELD) end
      redis.call('HINCRBY', KEYS[2], task, #fresh)
      held = redis.call('HINCRBY', KEYS[2], counted, #fresh)
      redis.call('HSET', KEYS[2], last, producer)
    end
    local mine = false
    for _, number in ipairs(kept) do
      mine = mine or redis.call('HGET', KEYS[2], last) == number
      if redis.call('HGET', KEYS[2], named(number)) == HELD then held = held - 1 end
    end
    if not mine or held > 0 then
      refused[#refused + 1] = {task, producer}
      return
    end
  end
  local ready = {task}
  for i = 1, count do
    local found = redis.call('HGET', KEYS[2], named(i))
    ready[i + 1] = found == HELD and '' or found
  end
  owned[#owned + 1] = ready
end
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
  if owner == '' then
    local kept = {}
    for i = 1, tonumber(take()) do kept[i] = take() end
    free(task, producer, payload, count, kept)
  else
    local fields = {}
    for i = 1, count do fields[i] = task .. '\\n' .. take() end
    local new = redis.call('HSETNX', KEYS[2], task .. '\\n' .. producer, payload) == 1
    if new and redis.call('HINCRBY', KEYS[2], task, 1) == count then
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
local leaves = finished == '1' and #owned + #refused == 0
local letters = tonumber(take())
for n = 1, letters do
  local letter = {'kind', take(), 'name', take()}
  for i = 1, tonumber(take()) do
    letter[#letter + 1] = i
    letter[#letter + 1] = take()
  end
  if n < letters or finished == '0' or leaves then append(KEYS[5], unpack(letter)) end
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
if leaves then
  only(worker, epoch)
  redis.call('HDEL', KEYS[7], worker)
  redis.call('HSET', KEYS[1], 'done:' .. worker, 1)
else
  lease(KEYS[7], worker)
end
local answer = {claims, owned, refused}
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

_BEAT = (
    _GUARD
    + """
-- KEYS: state, leases. ARGV: worker, epoch, how many bytes have moved.
if ttl == -2 then return 0 end
redis.call('HINCRBY', KEYS[1], 'moved', ARGV[3])
if not over(ARGV[1], ARGV[2]) and redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  lease(KEYS[2], ARGV[1])
end
return 1
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
-- KEYS: state, leases. ARGV: how mailboxes begin. Who hasn't entered has nothing to save.
local gone = over('', '')
if gone then return redis.error_reply('RUNOVER ' .. gone .. ' is over') end
local begun = {}
for _, worker in ipairs(redis.call('HKEYS', KEYS[2])) do
  if worker ~= '' then
    append(ARGV[1] .. worker, 'kind', 'stop', 'name', worker)
    redis.call('HDEL', KEYS[2], worker)
    local epoch = redis.call('HGET', KEYS[1], 'epoch:' .. worker) or ''
    if redis.call('HEXISTS', KEYS[1], 'entered:' .. worker .. ':' .. epoch) == 1 then
      begun[#begun + 1] = worker
    end
  end
end
return begun
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
-- KEYS: names of large outputs, state, keys of pieces, then whatever else the run has. ARGV: how
-- large outputs and mailboxes begin, and after how many milliseconds everything is deleted; 0: now.
-- Who has ever been started may have a mailbox, also if no plan names it.
local function delete(key)
  if ARGV[3] == '0' then redis.call('UNLINK', key) else redis.call('PEXPIRE', key, ARGV[3]) end
end
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do delete(ARGV[1] .. name) end
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  local worker = string.match(name, '^epoch:(.*)$')
  if worker then delete(ARGV[2] .. worker) end
end
for _, key in ipairs(redis.call('SMEMBERS', KEYS[3])) do delete(key) end
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
    "beat": _BEAT,
    "restart": _RESTART,
    "twin": _TWIN,
    "stop": _STOP,
    "resume": _RESUME,
    "close": _CLOSE,
}
SCRIPTS = {name: Script(source) for name, source in _SOURCES.items()}
"""What the store runs on its server, by name."""
