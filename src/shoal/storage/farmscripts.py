"""A farm's atomic operations, as scripts that run on the server.

Behind the beginning that `keys.farm` gives:

- `queue:STAGE`, a sorted set: the tasks that wait for a stage, by their places in its order;
- `held:WORKER`, a sorted set: the tasks that a worker has taken, by the same places;
- `idle:STAGE`, a set: the workers that wait for a task;
- `tasks`, a hash: each task's input, or what the stage before made of it;
- `later:STAGE`, a hash: the places that tasks will have in the order of a later stage;
- `tries`, a hash: how often each task has failed, or its worker has died, at this stage;
- `dead`, a hash: why each task was given up; its input stays in `tasks`.

1. A worker's name begins with its stage. Its epoch, its lease and its mailbox are those of a run's.
2. A task is in one place: it waits, or somebody holds it, or it is done or dead. Only who holds it
   can settle it, so each has one outcome, however often it was worked on.
3. Each script may be repeated by who isn't sure that it was carried out.
4. Who takes tasks and finds none is idle; who puts a task into a queue gives it to an idle worker.
5. A task that has been tried before is taken alone, so that what kills its worker kills no others.
"""

from __future__ import annotations

from shoal.storage.server import Script

_FARM = """
-- KEYS: state, leases. ARGV: how the farm's keys and the mailboxes begin, then what each needs.
local farm, mailboxes = ARGV[1], ARGV[2]
local ttl = redis.call('PTTL', KEYS[1])
local function over(worker, epoch)
  if ttl < 0 then return redis.error_reply('RUNOVER the farm is over') end
  if worker and redis.call('HGET', KEYS[1], 'epoch:' .. worker) ~= epoch then
    return redis.error_reply('RUNOVER this start of worker ' .. worker .. ' is over')
  end
end
local function add(command, key, ...)
  local answer = redis.call(command, key, ...)
  redis.call('PEXPIRE', key, ttl)
  return answer
end
local function tell(whom, ...)
  add('XADD', mailboxes .. whom, '*', ...)
end
local function stage_of(worker)
  return string.match(worker, '^(.-):')
end
local function time()
  local now = redis.call('TIME')
  return now[1], now[2]
end
local function lease(worker)
  local seconds, micro = time()
  local now = seconds * 1000 + math.floor(micro / 1000)
  redis.call('HSET', KEYS[2], worker, now + redis.call('HGET', KEYS[1], 'lease'))
end
local function first(queue, stage, most)
  if redis.call('HEXISTS', KEYS[1], 'late last:' .. stage) == 1 then
    local now = string.format('%d.%06d', time())
    local found = redis.call('ZRANGEBYSCORE', queue, now, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    if found[1] then return found end
  end
  return redis.call('ZRANGE', queue, 0, most - 1, 'WITHSCORES')
end
local function take(worker, stage, most)
  local queue, tasks = farm .. 'queue:' .. stage, {}
  local found = first(queue, stage, most)
  if not found[1] then return tasks end
  local tried = redis.call('EXISTS', farm .. 'tries') == 1
  for i = 1, #found, 2 do
    local tries = tried and redis.call('HGET', farm .. 'tries', found[i])
    if tries and i > 1 then break end
    redis.call('ZREM', queue, found[i])
    redis.call('ZADD', farm .. 'held:' .. worker, found[i + 1], found[i])
    tasks[#tasks + 1] = found[i]
    tasks[#tasks + 1] = redis.call('HGET', farm .. 'tasks', found[i])
    if tries then break end
  end
  redis.call('PEXPIRE', farm .. 'held:' .. worker, ttl)
  return tasks
end
local function wake(stage)
  local idle, queue = farm .. 'idle:' .. stage, farm .. 'queue:' .. stage
  while redis.call('SCARD', idle) > 0 and redis.call('ZCARD', queue) > 0 do
    local worker = redis.call('SPOP', idle)
    local task = take(worker, stage, 1)
    tell(worker, 'kind', 'tasks', 'name', worker, 1, task[1], 2, task[2])
  end
end
local function lose(task, place, stage, facts, cause)
  local tries = add('HINCRBY', farm .. 'tries', task, 1)
  if tries < tonumber(redis.call('HGET', KEYS[1], 'tries')) then
    add('ZADD', farm .. 'queue:' .. stage, place, task)
    return
  end
  redis.call('HDEL', farm .. 'tries', task)
  add('HSET', farm .. 'dead', task, facts)
  tell('client', 'kind', 'failed', 'name', task, 1, facts, 2, cause)
end
local function give_back(worker, facts)
  local stage, held = stage_of(worker), farm .. 'held:' .. worker
  local tasks = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
  for i = 1, #tasks, 2 do lose(tasks[i], tasks[i + 1], stage, facts, '') end
  redis.call('UNLINK', held, mailboxes .. worker)
  redis.call('SREM', farm .. 'idle:' .. stage, worker)
  wake(stage)
end
local function forget(worker)
  local epoch = redis.call('HGET', KEYS[1], 'epoch:' .. worker) or ''
  redis.call('HDEL', KEYS[1], 'entered:' .. worker .. ':' .. epoch)
  redis.call('UNLINK', mailboxes .. worker, farm .. 'held:' .. worker)
  redis.call('SREM', farm .. 'idle:' .. stage_of(worker), worker)
  redis.call('HDEL', KEYS[2], worker)
  redis.call('HDEL', KEYS[1], 'epoch:' .. worker, 'leaving:' .. worker, 'kind:' .. worker)
end
"""

_PUT = """
-- ARGV: the batch's number, how many later stages there are, then of each task its id, its place
-- in the first stage, its input, and its places in the later stages.
local refusal = over()
if refusal then return refusal end
if tonumber(redis.call('HGET', KEYS[1], 'put') or 0) >= tonumber(ARGV[3]) then return 1 end
redis.call('HSET', KEYS[1], 'put', ARGV[3])
local later = tonumber(ARGV[4])
for i = 5, #ARGV, 3 + later do
  redis.call('HSET', farm .. 'tasks', ARGV[i], ARGV[i + 2])
  redis.call('ZADD', farm .. 'queue:0', ARGV[i + 1], ARGV[i])
  for stage = 1, later do
    add('HSET', farm .. 'later:' .. stage, ARGV[i], ARGV[i + 2 + stage])
  end
end
redis.call('PEXPIRE', farm .. 'tasks', ttl)
redis.call('PEXPIRE', farm .. 'queue:0', ttl)
wake('0')
return 1
"""

_JOIN = """
-- KEYS: parts. ARGV: worker, epoch, a token, what to say of tasks that an earlier start held.
local worker, stage = ARGV[3], stage_of(ARGV[3])
local refusal = over(worker, ARGV[4])
if refusal then return refusal end
local entered = 'entered:' .. worker .. ':' .. ARGV[4]
if redis.call('HSETNX', KEYS[1], entered, ARGV[5]) == 0 then
  if redis.call('HGET', KEYS[1], entered) ~= ARGV[5] then
    return redis.error_reply('RUNOVER this start of worker ' .. worker .. ' is under way')
  end
else
  redis.call('HDEL', KEYS[1], 'entered:' .. worker .. ':' .. tonumber(ARGV[4]) - 1)
  give_back(worker, ARGV[6])
  tell('client', 'kind', 'entered', 'name', worker)
end
lease(worker)
return redis.call('HGET', KEYS[3], stage)
"""

_TAKE = """
-- ARGV: worker, epoch, the last id read of its mailbox, how many tasks to take at most (0: it
-- leaves; -1: it isn't done yet), then of each task that it held its id, `done`, `back` or what is
-- known of its failure, seconds, result or cause.
local worker, epoch, stage = ARGV[3], ARGV[4], stage_of(ARGV[3])
local refusal = over(worker, epoch)
if refusal then return refusal end
local held, following = farm .. 'held:' .. worker, redis.call('HGET', KEYS[1], 'next:' .. stage)
local tried = redis.call('EXISTS', farm .. 'tries') == 1
local told = {}
for i = 7, #ARGV, 4 do
  local task, outcome = ARGV[i], ARGV[i + 1]
  local place = redis.call('ZSCORE', held, task)
  if place then
    redis.call('ZREM', held, task)
    if outcome == 'back' then
      add('ZADD', farm .. 'queue:' .. stage, place, task)
    elseif outcome ~= 'done' then
      lose(task, place, stage, outcome, ARGV[i + 3])
    else
      if tried then redis.call('HDEL', farm .. 'tries', task) end
      told[#told + 1] = #told + 1
      told[#told + 1] = task
      told[#told + 1] = #told + 1
      told[#told + 1] = ARGV[i + 2]
      if following then
        redis.call('HSET', farm .. 'tasks', task, ARGV[i + 3])
        add('ZADD', farm .. 'queue:' .. following,
            redis.call('HGET', farm .. 'later:' .. following, task), task)
        redis.call('HDEL', farm .. 'later:' .. following, task)
      else
        redis.call('HDEL', farm .. 'tasks', task)
        told[#told + 1] = #told + 1
        told[#told + 1] = ARGV[i + 3]
      end
    end
  end
end
if told[1] then
  tell('client', 'kind', following and 'passed' or 'done', 'name', stage, unpack(told))
  if following then wake(following) end
end
if ARGV[6] == '-1' then
  wake(stage)
  return {'idle'}
end
if ARGV[5] ~= '' then redis.call('XTRIM', mailboxes .. worker, 'MINID', ARGV[5]) end
local left = redis.call('ZRANGE', held, 0, -1)
if left[1] then
  redis.call('XTRIM', mailboxes .. worker, 'MAXLEN', 0)
  local tasks = {'tasks'}
  for _, task in ipairs(left) do
    tasks[#tasks + 1] = task
    tasks[#tasks + 1] = redis.call('HGET', farm .. 'tasks', task)
  end
  return tasks
end
if redis.call('HEXISTS', KEYS[1], 'leaving:' .. worker) == 1 or ARGV[6] == '0' then
  forget(worker)
  tell('client', 'kind', 'left', 'name', worker)
  return {'leave'}
end
lease(worker)
local tasks = take(worker, stage, tonumber(ARGV[6]))
if not tasks[1] then
  add('SADD', farm .. 'idle:' .. stage, worker)
  return {'idle'}
end
redis.call('SREM', farm .. 'idle:' .. stage, worker)
return {'tasks', unpack(tasks)}
"""

_HIRE = """
-- ARGV: workers, and what each is to have.
local refusal = over()
if refusal then return refusal end
for i = 3, #ARGV, 2 do
  if redis.call('HSETNX', KEYS[1], 'epoch:' .. ARGV[i], 1) == 1 then
    redis.call('HSET', KEYS[1], 'kind:' .. ARGV[i], ARGV[i + 1])
    redis.call('HSET', KEYS[2], ARGV[i], 0)
  end
end
return 1
"""

_DISMISS = """
-- ARGV: a token that is another each time that this isn't a repetition, stage, how many workers.
-- Idle ones leave first. Who is busy leaves when it has finished what it holds.
local refusal = over()
if refusal then return refusal end
if redis.call('HGET', KEYS[1], 'dismissal') == ARGV[3] then return 1 end
redis.call('HSET', KEYS[1], 'dismissal', ARGV[3])
local idle, busy = {}, {}
for _, worker in ipairs(redis.call('HKEYS', KEYS[2])) do
  if worker ~= '' and stage_of(worker) == ARGV[4]
      and redis.call('HEXISTS', KEYS[1], 'leaving:' .. worker) == 0 then
    if redis.call('SISMEMBER', farm .. 'idle:' .. ARGV[4], worker) == 1 then
      idle[#idle + 1] = worker
    else
      busy[#busy + 1] = worker
    end
  end
end
for i = 1, tonumber(ARGV[5]) do
  local worker = idle[i] or busy[i - #idle]
  if worker then
    redis.call('HSET', KEYS[1], 'leaving:' .. worker, 1)
    if idle[i] then
      redis.call('SREM', farm .. 'idle:' .. ARGV[4], worker)
      tell(worker, 'kind', 'leave', 'name', worker)
    end
  end
end
return 1
"""

_BURY = """
-- ARGV: worker, what to say of its tasks. Nobody starts it again.
local refusal = over()
if refusal then return refusal end
give_back(ARGV[3], ARGV[4])
forget(ARGV[3])
return 1
"""

_RENEW = """
-- KEYS: parts. ARGV: milliseconds, how many stages there are. What waits for each stage, and how
-- many of its workers are busy.
local refusal = over()
if refusal then return refusal end
local function keep(key) redis.call('PEXPIRE', key, ARGV[3]) end
for _, key in ipairs(KEYS) do keep(key) end
keep(mailboxes .. 'client')
for _, name in ipairs({'tasks', 'tries', 'dead'}) do keep(farm .. name) end
local found, busy = {}, {}
for _, worker in ipairs(redis.call('HKEYS', KEYS[2])) do
  if worker ~= '' then
    local stage = stage_of(worker)
    keep(mailboxes .. worker)
    keep(farm .. 'held:' .. worker)
    busy[stage] = (busy[stage] or 0) + redis.call('EXISTS', farm .. 'held:' .. worker)
  end
end
for stage = 0, tonumber(ARGV[4]) - 1 do
  for _, name in ipairs({'queue:', 'idle:', 'later:'}) do keep(farm .. name .. stage) end
  found[#found + 1] = redis.call('ZCARD', farm .. 'queue:' .. stage)
  found[#found + 1] = busy[tostring(stage)] or 0
end
return found
"""

_END = """
-- ARGV: how many stages there are.
for _, name in ipairs({'tasks', 'tries', 'dead'}) do redis.call('UNLINK', farm .. name) end
for stage = 0, tonumber(ARGV[3]) - 1 do
  for _, name in ipairs({'queue:', 'idle:', 'later:'}) do
    redis.call('UNLINK', farm .. name .. stage)
  end
end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local worker = string.match(name, '^epoch:(.*)$')
  if worker then redis.call('UNLINK', farm .. 'held:' .. worker) end
end
return 1
"""

_SOURCES = {
    "put": _PUT,
    "join": _JOIN,
    "take": _TAKE,
    "hire": _HIRE,
    "dismiss": _DISMISS,
    "bury": _BURY,
    "renew": _RENEW,
    "end farm": _END,
}
FARM_SCRIPTS = {name: Script(_FARM + source) for name, source in _SOURCES.items()}
"""What a farm runs on its server, by name."""
