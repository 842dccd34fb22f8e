-- Renews the leases of workers that are alive, and claims the starts of those whose lease has expired.
-- A worker that was lost too often is given up, and the client gets a letter. A lease that the run
-- was opened with starts when the run is first supervised.
--
-- KEYS: state, leases, the client's mailbox.
-- ARGV: worker and epoch of each that is alive.
-- Returns the claims.
-- include run/guard.lua
local leases, client = KEYS[2], KEYS[3]

local reason = refusal()
if reason then return refuse(reason) end
for i = 1, #ARGV, 2 do
  local worker, epoch = ARGV[i], ARGV[i + 1]
  if redis.call('HGET', state, 'epoch:' .. worker) == epoch
      and redis.call('HEXISTS', leases, worker) == 1 then
    renew_lease(leases, worker)
  end
end
local claims, most = {}, tonumber(redis.call('HGET', state, 'restarts'))
local found = redis.call('HGETALL', leases)
for i = 1, #found, 2 do
  local worker, expiry = found[i], tonumber(found[i + 1])
  if worker ~= '' and expiry == 0 then
    begin_lease(leases, worker)
  elseif worker ~= '' and expiry < now() then
    if redis.call('HINCRBY', state, 'lost:' .. worker, 1) > most then
      redis.call('HDEL', leases, worker)
      append(client, 'kind', 'lost', 'name', worker, 1, '{"reason":"vanished","running":[]}')
    else
      claim(claims, leases, worker)
    end
  end
end
return claims
