-- Lets a worker leave, whatever waits for it, and claims its next start. A repetition gets the same
-- claim.
--
-- KEYS: state, leases.
-- ARGV: worker, epoch, what it has executed.
-- Returns the claim.
-- include run/guard.lua
local leases = KEYS[2]
local worker, epoch, executed = unpack(ARGV)

local parked, parked_at = 'parked:' .. worker, 'parked at:' .. worker
local following = tostring(tonumber(epoch) + 1)
if redis.call('HGET', state, parked_at) == epoch
    and redis.call('HGET', state, 'epoch:' .. worker) == following then
  redis.call('HSET', state, 'epoch:' .. worker, epoch)
end
local reason = refusal(worker, epoch)
if reason then return refuse(reason) end
redis.call('HSET', state, parked, executed, parked_at, epoch)
local claims = {}
claim(claims, leases, worker)
return claims
