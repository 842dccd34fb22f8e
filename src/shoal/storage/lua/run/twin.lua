-- Claims one more start of a worker beside the one that runs.
--
-- KEYS: state, leases.
-- ARGV: worker.
-- Returns the claim; nothing if the worker is not running, or already has a twin.
-- include run/guard.lua
local leases = KEYS[2]
local worker = ARGV[1]

local reason = refusal()
if reason then return refuse(reason) end
local claims, epoch = {}, redis.call('HGET', state, 'epoch:' .. worker)
if redis.call('HEXISTS', leases, worker) == 0
    or redis.call('HSETNX', state, 'twin:' .. worker, epoch) == 0 then
  return claims
end
claim(claims, leases, worker)
return claims
