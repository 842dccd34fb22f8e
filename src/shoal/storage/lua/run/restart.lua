-- Claims the next start of a worker that has ended, unless the same cause has ended it too often.
--
-- KEYS: state, leases.
-- ARGV: worker, epoch, cause, its new resources or nothing.
-- Returns the claim, or nothing.
-- include run/guard.lua
local leases = KEYS[2]
local worker, epoch, cause, kind = unpack(ARGV)

local reason = refusal(worker, epoch)
if reason then return refuse(reason) end
local most = tonumber(redis.call('HGET', state, 'restarts'))
if redis.call('HINCRBY', state, 'lost:' .. cause, 1) > most then
  redis.call('HDEL', leases, worker)
  return {}
end
if kind ~= '' then redis.call('HSET', state, 'kind:' .. worker, kind) end
local claims = {}
claim(claims, leases, worker)
return claims
