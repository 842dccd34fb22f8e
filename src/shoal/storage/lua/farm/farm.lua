-- Shared by the scripts of a farm.
--
-- KEYS: state and leases, as those of a run, and
--   tasks, a hash: each task's input, or what the stage before made of it;
--   tries, a hash: how often each task has failed, or its worker has died, at this stage;
--   dead, a hash: why each task was given up; its input stays in `tasks`;
--   held, a hash: the tasks that each worker has taken, packed, each followed by its priority;
--   the client's mailbox;
-- then for each declared stage
--   queue, a sorted set: the tasks that wait for the stage, by priority, the lowest first;
--   idle, a set: the workers that wait for a task;
--   later, a hash: the priorities of tasks that have not reached the stage yet;
-- then what each script adds, then mailboxes of workers.
-- ARGV: the prefix of mailboxes, the first declared stage, how many are declared, then what each
-- script adds.
-- Each script answers as declared.lua says: the mailboxes of idle workers are known only here.
--
-- 1. A worker's name begins with its stage. Its epoch, lease and mailbox are those of a run's worker.
-- 2. A task waits, or one worker holds it, or it is done or dead. Only the worker that holds it can
--    settle it, so each task has one outcome, however often it was executed.
-- 3. A worker that finds no task is idle. A script that queues a task gives it to an
--    idle worker.
-- 4. A task that has been tried before is taken alone, so that it takes no others down with it.
-- include declared.lua
local state, leases, tasks, tries, dead, held, client = unpack(KEYS, 1, 7)
local mailboxes, first_stage, stages = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local queues, idles, laters, added = {}, {}, {}, 8
for stage = first_stage, first_stage + stages - 1 do
  local name = tostring(stage)
  queues[name], idles[name], laters[name] = KEYS[added], KEYS[added + 1], KEYS[added + 2]
  added = added + 3
end
local ttl = redis.call('PTTL', state)

-- Why to refuse a message, as an error; or nil.
local function refusal(worker, epoch)
  if ttl < 0 then return redis.error_reply('RUNOVER the farm has ended') end
  if worker and redis.call('HGET', state, 'epoch:' .. worker) ~= epoch then
    return redis.error_reply('RUNOVER this start of worker ' .. worker .. ' has been replaced')
  end
end

-- Writes to a key, which lives as long as the farm.
local function write(command, key, ...)
  local reply = redis.call(command, key, ...)
  redis.call('PEXPIRE', key, ttl)
  return reply
end

local function send(mailbox, ...)
  write('XADD', mailbox, '*', ...)
end

local function stage_of(worker)
  return string.match(worker, '^(.-):')
end

local function time()
  local now = redis.call('TIME')
  return now[1], now[2]
end

local function renew_lease(worker)
  local seconds, micro = time()
  local now = seconds * 1000 + math.floor(micro / 1000)
  redis.call('HSET', leases, worker, now + redis.call('HGET', state, 'lease'))
end

-- The tasks that a worker holds, each followed by its priority.
local function held_by(worker)
  local packed = redis.call('HGET', held, worker)
  return packed and cmsgpack.unpack(packed) or {}
end

local function hold(worker, batch)
  if batch[1] then
    write('HSET', held, worker, cmsgpack.pack(batch))
  else
    redis.call('HDEL', held, worker)
  end
end

-- The tasks that are next in a queue, each followed by its priority. If the stage takes late tasks
-- last, priorities are deadlines, and those in the future go first.
local function next_in(stage, most)
  local queue = queues[stage]
  if redis.call('HEXISTS', state, 'late last:' .. stage) == 1 then
    local now = string.format('%d.%06d', time())
    local found = redis.call('ZRANGEBYSCORE', queue, now, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    if found[1] then return found end
  end
  return redis.call('ZRANGE', queue, 0, most - 1, 'WITHSCORES')
end

-- Has a worker that holds nothing take tasks. Returns each task followed by its input.
local function assign(worker, stage, most)
  local taken, batch = {}, {}
  local found = next_in(stage, most)
  if not found[1] then return taken end
  local any_tried = redis.call('EXISTS', tries) == 1
  for i = 1, #found, 2 do
    local task = found[i]
    local tried = any_tried and redis.call('HGET', tries, task)
    if tried and i > 1 then break end
    redis.call('ZREM', queues[stage], task)
    batch[#batch + 1] = task
    batch[#batch + 1] = found[i + 1]
    taken[#taken + 1] = task
    taken[#taken + 1] = redis.call('HGET', tasks, task)
    if tried then break end
  end
  hold(worker, batch)
  return taken
end

-- Needs mailboxes of as many idle workers as `coming` more tasks of a stage may wake. `leaving` names
-- a worker that is not to be woken.
local function need_idle(stage, coming, leaving)
  local idle = idles[stage]
  local wanted = redis.call('SCARD', idle)
  if wanted == 0 then return end
  if leaving then wanted = wanted - redis.call('SISMEMBER', idle, leaving) end
  wanted = math.min(wanted, redis.call('ZCARD', queues[stage]) + coming)
  for i = added, #KEYS do
    if wanted <= 0 then return end
    local worker = string.sub(KEYS[i], #mailboxes + 1)
    if worker ~= leaving then wanted = wanted - redis.call('SISMEMBER', idle, worker) end
  end
  if wanted <= 0 then return end
  wanted = wanted + #undeclared
  for _, worker in ipairs(redis.call('SMEMBERS', idle)) do
    if worker ~= leaving and #undeclared < wanted then need(mailboxes .. worker) end
  end
end

-- Gives waiting tasks to idle workers whose mailboxes are declared. Returns how many it has woken.
local function wake(stage)
  local idle, woken = idles[stage], 0
  if redis.call('SCARD', idle) == 0 then return woken end
  for i = added, #KEYS do
    if redis.call('ZCARD', queues[stage]) == 0 then return woken end
    local worker = string.sub(KEYS[i], #mailboxes + 1)
    if redis.call('SREM', idle, worker) == 1 then
      local task = assign(worker, stage, 1)
      send(KEYS[i], 'kind', 'tasks', 'name', worker, 1, task[1], 2, task[2])
      woken = woken + 1
    end
  end
  return woken
end

-- Counts a failed try of a task. The task waits again, or is dead after its last try.
local function fail(task, priority, stage, facts, cause)
  local count = write('HINCRBY', tries, task, 1)
  if count < tonumber(redis.call('HGET', state, 'tries')) then
    write('ZADD', queues[stage], priority, task)
    return
  end
  redis.call('HDEL', tries, task)
  write('HSET', dead, task, facts)
  send(client, 'kind', 'failed', 'name', task, 1, facts, 2, cause)
end

-- Needs what `give_back` needs.
local function need_to_give_back(worker)
  need(mailboxes .. worker)
  need_idle(stage_of(worker), #held_by(worker) / 2, worker)
end

-- Gives back all tasks of a worker that has died: a failed try for each.
local function give_back(worker, facts)
  local stage, batch = stage_of(worker), held_by(worker)
  for i = 1, #batch, 2 do fail(batch[i], batch[i + 1], stage, facts, '') end
  redis.call('HDEL', held, worker)
  redis.call('UNLINK', mailboxes .. worker)
  redis.call('SREM', idles[stage], worker)
  wake(stage)
end

-- Deletes everything of a worker.
local function remove(worker)
  local epoch = redis.call('HGET', state, 'epoch:' .. worker) or ''
  redis.call('HDEL', state, 'entered:' .. worker .. ':' .. epoch)
  redis.call('UNLINK', mailboxes .. worker)
  redis.call('HDEL', held, worker)
  redis.call('SREM', idles[stage_of(worker)], worker)
  redis.call('HDEL', leases, worker)
  redis.call('HDEL', state, 'epoch:' .. worker, 'leaving:' .. worker, 'kind:' .. worker)
end
