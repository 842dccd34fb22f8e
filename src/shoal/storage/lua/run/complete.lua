-- Saves outputs, announces them, sets marks, delivers letters and claims starts: all that a worker
-- reports in one round trip.
--
-- KEYS: state, marks, outputs, progress, the client's mailbox, names of large outputs, leases, inputs
-- of flexible workers; then of each large output the staged key, then of each the final key; then
-- the mailbox of each owner.
-- ARGV: worker, epoch, how many tasks it has executed, a token that only a repetition shares, 1 if
-- the worker leaves unless it is given a task or refused a mark, 1 if this start has not entered
-- yet. Then lists, each after its length:
--   large outputs: name
--   small outputs: name, blob
--   owners: name
--   announcements: owner's number, task, payload
--   marks with an owner: task, owner's number, producer, payload, count, all `count` producers
--   marks without an owner: task, 0, producer's number, payload, count, then the numbers of outputs
--     that stay with the worker and are marked instead, after their count
--   letters to the client: kind, name, and the parts after their count
--   starts: worker, inputs
-- Returns {claims, owned, refused}.
--
-- The first write is a command that a full memory refuses: after any other write the server lets
-- all of a script's commands through.
-- include run/guard.lua
local marks, outputs, progress, client = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local large_names, leases, given = KEYS[6], KEYS[7], KEYS[8]
local FIRST_STAGED = 9
local worker, epoch, executed, token, finished, entering = unpack(ARGV, 1, 6)
local at = 7
local function take()
  local value = ARGV[at]
  at = at + 1
  return value
end
local large_count = tonumber(take())
local FIRST_LARGE, FIRST_MAILBOX = FIRST_STAGED + large_count, FIRST_STAGED + 2 * large_count

local reason = refusal(worker, epoch)
local before = redis.call('HGET', state, 'answer:' .. worker)
local repeated = before and string.sub(before, 1, #token) == token
local entered = 'entered:' .. worker .. ':' .. epoch
if entering == '1' and not (reason or repeated)
    and redis.call('HSETNX', state, entered, token) == 0
    and redis.call('HGET', state, entered) ~= token then
  reason = 'another invocation of this start of worker ' .. worker .. ' came first'
end
if reason or repeated then
  for i = FIRST_STAGED, FIRST_LARGE - 1 do redis.call('UNLINK', KEYS[i]) end
  if repeated then return cmsgpack.unpack(string.sub(before, #token + 1)) end
  return refuse(reason)
end

local claims, owned, refused = {}, {}, {}
-- The mark of an output that stays with its worker has the payload HELD. How many of a task's marks
-- do is counted in a field of its own.
local HELD = 'held'

-- Sets a mark of a task without an owner, or those of outputs that stay with the worker. The sender
-- of the last one owns the task.
local function mark_unowned(task, producer, payload, count, staying)
  local last, counted = task .. '\n', task .. '\n\n'
  local function named(number) return task .. '\n' .. number end
  local held = tonumber(redis.call('HGET', marks, counted) or 0)
  if #staying == 0 then
    local new = redis.call('HSETNX', marks, named(producer), payload) == 1
    if new and redis.call('HINCRBY', marks, task, 1) == count then
      redis.call('HSET', marks, last, producer)
    elseif held > 0 and redis.call('HGET', marks, named(producer)) == HELD then
      redis.call('HSET', marks, named(producer), payload)
      held = redis.call('HINCRBY', marks, counted, -1)
    end
    if redis.call('HGET', marks, last) ~= producer then return end
    for i = 1, held > 0 and count or 0 do
      if redis.call('HGET', marks, named(i)) == HELD then
        redis.call('HSET', marks, last, i)
        return
      end
    end
  else
    local fresh = {}
    for _, number in ipairs(staying) do
      if redis.call('HEXISTS', marks, named(number)) == 0 then fresh[#fresh + 1] = number end
    end
    local done = tonumber(redis.call('HGET', marks, task) or 0)
    if #fresh > 0 and done + #fresh == count then
      for _, number in ipairs(fresh) do redis.call('HSET', marks, named(number), HELD) end
      redis.call('HINCRBY', marks, task, #fresh)
      held = redis.call('HINCRBY', marks, counted, #fresh)
      redis.call('HSET', marks, last, producer)
    end
    local mine = false
    for _, number in ipairs(staying) do
      mine = mine or redis.call('HGET', marks, last) == number
      if redis.call('HGET', marks, named(number)) == HELD then held = held - 1 end
    end
    if not mine or held > 0 then
      refused[#refused + 1] = {task, producer}
      return
    end
  end
  local ready = {task}
  for i = 1, count do
    local found = redis.call('HGET', marks, named(i))
    ready[i + 1] = found == HELD and '' or found
  end
  owned[#owned + 1] = ready
end

-- Sets a mark of a task with an owner. The last mark sends the task to the owner, and claims the
-- owner's start if none has it.
local function mark_owned(task, owner, mailbox, producer, payload, fields)
  local new = redis.call('HSETNX', marks, task .. '\n' .. producer, payload) == 1
  if not new or redis.call('HINCRBY', marks, task, 1) ~= #fields then return end
  local letter = {'kind', 'ready', 'name', task}
  for i, part in ipairs(redis.call('HMGET', marks, unpack(fields))) do
    letter[#letter + 1] = i
    letter[#letter + 1] = part
  end
  append(mailbox, unpack(letter))
  if redis.call('HSETNX', state, 'claim:' .. owner, 1) == 1 then claim(claims, leases, owner) end
end

for i = 0, large_count - 1 do
  local name, key = take(), KEYS[FIRST_LARGE + i]
  redis.call('SADD', large_names, name)
  redis.call('HDEL', outputs, name)
  redis.call('RENAME', KEYS[FIRST_STAGED + i], key)
  redis.call('PEXPIRE', key, ttl)
end
for _ = 1, tonumber(take()) do
  local name = take()
  redis.call('HSET', outputs, name, take())
end
redis.call('PEXPIRE', outputs, ttl)
redis.call('PEXPIRE', large_names, ttl)

local owners = {}
for i = 1, tonumber(take()) do owners[i] = take() end
local function mailbox_of(number) return KEYS[FIRST_MAILBOX + number - 1] end

for _ = 1, tonumber(take()) do
  local number, task, payload = tonumber(take()), take(), take()
  append(mailbox_of(number), 'kind', 'saved', 'name', task, 1, payload)
end
for _ = 1, tonumber(take()) do
  local task, number, producer, payload = take(), tonumber(take()), take(), take()
  local count, listed = tonumber(take()), {}
  if number == 0 then
    for i = 1, tonumber(take()) do listed[i] = take() end
    mark_unowned(task, producer, payload, count, listed)
  else
    for i = 1, count do listed[i] = task .. '\n' .. take() end
    mark_owned(task, owners[number], mailbox_of(number), producer, payload, listed)
  end
end
redis.call('PEXPIRE', marks, ttl)

local leaves = finished == '1' and #owned + #refused == 0
local letters = tonumber(take())
for n = 1, letters do
  local letter = {'kind', take(), 'name', take()}
  for i = 1, tonumber(take()) do
    letter[#letter + 1] = i
    letter[#letter + 1] = take()
  end
  if n < letters or finished == '0' or leaves then append(client, unpack(letter)) end
end
for _ = 1, tonumber(take()) do
  local started, inputs = take(), take()
  if redis.call('HEXISTS', state, 'epoch:' .. started) == 0 then
    redis.call('HSET', given, started, inputs)
    redis.call('PEXPIRE', given, ttl)
    claim(claims, leases, started)
  end
end
redis.call('HSET', progress, worker .. '\n' .. epoch, executed)
redis.call('PEXPIRE', progress, ttl)
if leaves then
  end_twin(worker, epoch)
  redis.call('HDEL', leases, worker)
  redis.call('HSET', state, 'done:' .. worker, 1)
else
  renew_lease(leases, worker)
end
local answer = {claims, owned, refused}
redis.call('HSET', state, 'answer:' .. worker, token .. cmsgpack.pack(answer))
return answer
