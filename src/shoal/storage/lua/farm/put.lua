-- Puts a batch of tasks into the queue of the first stage, once.
--
-- KEYS: those of farm.lua, for all stages.
-- ARGV: after those of farm.lua the batch's number; then of each task its id, its priority at the
-- first stage, its input, and its priorities at the later stages.
-- Returns how many idle workers it has woken.
-- include farm/farm.lua
local number, later = ARGV[4], stages - 1
local FIRST_TASK, WIDTH = 5, 3 + later

local refused = refusal()
if refused then return refused end
if tonumber(redis.call('HGET', state, 'put') or 0) >= tonumber(number) then return {{}, 0} end
need_idle('0', (#ARGV - FIRST_TASK + 1) / WIDTH)
if undeclared[1] then return {undeclared} end
redis.call('HSET', state, 'put', number)
for i = FIRST_TASK, #ARGV, WIDTH do
  local task, priority, input = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  redis.call('HSET', tasks, task, input)
  redis.call('ZADD', queues['0'], priority, task)
  for stage = 1, later do
    write('HSET', laters[tostring(stage)], task, ARGV[i + 2 + stage])
  end
end
redis.call('PEXPIRE', tasks, ttl)
redis.call('PEXPIRE', queues['0'], ttl)
return {{}, wake('0')}
