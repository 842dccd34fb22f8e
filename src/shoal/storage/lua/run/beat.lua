-- Renews the lease of a worker during a long transfer. Of a start that was replaced only the bytes
-- count.
--
-- KEYS: state, leases.
-- ARGV: worker, epoch, how many bytes have moved.
-- include run/guard.lua
local leases = KEYS[2]
local worker, epoch, nbytes = unpack(ARGV)

if ttl == -2 then return 0 end
redis.call('HINCRBY', state, 'moved', nbytes)
if not refusal(worker, epoch) and redis.call('HEXISTS', leases, worker) == 1 then
  renew_lease(leases, worker)
end
return 1
