-- Begins a start of a worker. What an earlier start of it held is given back.
--
-- KEYS: those of farm.lua, for the worker's stage, then parts and the worker's mailbox.
-- ARGV: after those of farm.lua worker, epoch, a token of this invocation, what to report of tasks
-- that an earlier start held.
-- Returns the function of the worker's stage.
-- include farm/farm.lua
local parts = KEYS[added]
local worker, epoch, token, facts = unpack(ARGV, 4)

local refused = refusal(worker, epoch)
if refused then return refused end
local entered = 'entered:' .. worker .. ':' .. epoch
local before = redis.call('HGET', state, entered)
if before and before ~= token then
  return redis.error_reply('RUNOVER this start of worker ' .. worker .. ' is already running')
end
if not before then
  need_to_give_back(worker)
  if undeclared[1] then return {undeclared} end
  redis.call('HSET', state, entered, token)
  redis.call('HDEL', state, 'entered:' .. worker .. ':' .. tonumber(epoch) - 1)
  give_back(worker, facts)
  send(client, 'kind', 'entered', 'name', worker)
end
renew_lease(worker)
return {{}, redis.call('HGET', parts, stage_of(worker))}
