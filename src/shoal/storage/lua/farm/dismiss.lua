-- Tells workers of a stage to leave, idle ones first. A busy worker leaves when it has finished what
-- it holds.
--
-- KEYS: those of farm.lua, for the stage, then mailboxes of idle workers.
-- ARGV: after those of farm.lua a token that only a repetition shares, how many workers.
-- Returns 1.
-- include farm/farm.lua
local token, count = ARGV[4], tonumber(ARGV[5])
local stage = tostring(first_stage)

local refused = refusal()
if refused then return refused end
if redis.call('HGET', state, 'dismissal') == token then return {{}, 1} end
local idle, busy = {}, {}
for _, worker in ipairs(redis.call('HKEYS', leases)) do
  if worker ~= '' and stage_of(worker) == stage
      and redis.call('HEXISTS', state, 'leaving:' .. worker) == 0 then
    if redis.call('SISMEMBER', idles[stage], worker) == 1 then
      idle[#idle + 1] = worker
    else
      busy[#busy + 1] = worker
    end
  end
end
for i = 1, math.min(count, #idle) do need(mailboxes .. idle[i]) end
if undeclared[1] then return {undeclared} end
redis.call('HSET', state, 'dismissal', token)
for i = 1, math.min(count, #idle + #busy) do
  local worker = idle[i] or busy[i - #idle]
  redis.call('HSET', state, 'leaving:' .. worker, 1)
  if idle[i] then
    redis.call('SREM', idles[stage], worker)
    send(mailboxes .. worker, 'kind', 'leave', 'name', worker)
  end
end
return {{}, 1}
