-- Settles tasks that a worker holds, and has it take the next ones.
--
-- KEYS: those of farm.lua, for the worker's stage and the one after it, then the worker's mailbox.
-- ARGV: after those of farm.lua worker, epoch, id of the last letter that it has read, how many tasks
-- to take at most (0: it leaves; -1: it only settles some tasks); then of each task to settle its
-- id, its outcome, seconds, and its result or the cause of its failure. The outcome is `done`,
-- `back`, or what to report of a failure.
-- Returns {'tasks', task, input, ...}, {'idle'} or {'leave'}, and how many idle workers it has woken.
-- A worker that still holds tasks is given those again.
-- include farm/farm.lua
local worker, epoch, read, most = unpack(ARGV, 4, 7)
local FIRST_SETTLED = 8
local stage, mailbox = stage_of(worker), mailboxes .. worker

local refused = refusal(worker, epoch)
if refused then return refused end
local following = redis.call('HGET', state, 'next:' .. stage)
local done = 0
for i = FIRST_SETTLED, #ARGV, 4 do
  if ARGV[i + 1] == 'done' then done = done + 1 end
end
if following and done > 0 then need_idle(following, done) end
if most == '-1' then need_idle(stage, (#ARGV - FIRST_SETTLED + 1) / 4 - done) end
if undeclared[1] then return {undeclared} end

local batch, priorities = held_by(worker), {}
for i = 1, #batch, 2 do priorities[batch[i]] = batch[i + 1] end
local any_tried = redis.call('EXISTS', tries) == 1
local settled, woken = {}, 0
-- The first write deletes something: a full memory allows that, and all that follows it.
if batch[1] and ARGV[FIRST_SETTLED] then redis.call('HDEL', held, worker) end
for i = FIRST_SETTLED, #ARGV, 4 do
  local task, outcome, seconds, result = unpack(ARGV, i, i + 3)
  local priority = priorities[task]
  if priority then
    priorities[task] = nil
    if outcome == 'back' then
      write('ZADD', queues[stage], priority, task)
    elseif outcome ~= 'done' then
      fail(task, priority, stage, outcome, result)
    else
      if any_tried then redis.call('HDEL', tries, task) end
      settled[#settled + 1] = #settled + 1
      settled[#settled + 1] = task
      settled[#settled + 1] = #settled + 1
      settled[#settled + 1] = seconds
      if following then
        local later = laters[following]
        redis.call('HSET', tasks, task, result)
        write('ZADD', queues[following], redis.call('HGET', later, task), task)
        redis.call('HDEL', later, task)
      else
        redis.call('HDEL', tasks, task)
        settled[#settled + 1] = #settled + 1
        settled[#settled + 1] = result
      end
    end
  end
end
local left = {}
for i = 1, #batch, 2 do
  if priorities[batch[i]] then
    left[#left + 1] = batch[i]
    left[#left + 1] = batch[i + 1]
  end
end
if ARGV[FIRST_SETTLED] and left[1] then hold(worker, left) end
if settled[1] then
  send(client, 'kind', following and 'passed' or 'done', 'name', stage, unpack(settled))
  if following then woken = wake(following) end
end
if most == '-1' then
  return {{}, {'idle'}, woken + wake(stage)}
end

if read ~= '' then redis.call('XTRIM', mailbox, 'MINID', read) end
if left[1] then
  redis.call('XTRIM', mailbox, 'MAXLEN', 0)
  local again = {'tasks'}
  for i = 1, #left, 2 do
    again[#again + 1] = left[i]
    again[#again + 1] = redis.call('HGET', tasks, left[i])
  end
  return {{}, again, woken}
end
if redis.call('HEXISTS', state, 'leaving:' .. worker) == 1 or most == '0' then
  remove(worker)
  send(client, 'kind', 'left', 'name', worker)
  return {{}, {'leave'}, woken}
end
renew_lease(worker)
local taken = assign(worker, stage, tonumber(most))
if not taken[1] then
  write('SADD', idles[stage], worker)
  return {{}, {'idle'}, woken}
end
redis.call('SREM', idles[stage], worker)
return {{}, {'tasks', unpack(taken)}, woken}
