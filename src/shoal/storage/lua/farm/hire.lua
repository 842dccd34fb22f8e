-- Registers workers that are about to be started.
--
-- KEYS: those of farm.lua, for no stage.
-- ARGV: after those of farm.lua of each worker its name and its resources.
-- Returns 1.
-- include farm/farm.lua
local refused = refusal()
if refused then return refused end
for i = 4, #ARGV, 2 do
  local worker, kind = ARGV[i], ARGV[i + 1]
  if redis.call('HSETNX', state, 'epoch:' .. worker, 1) == 1 then
    redis.call('HSET', state, 'kind:' .. worker, kind)
    redis.call('HSET', leases, worker, 0)
  end
end
return {{}, 1}
