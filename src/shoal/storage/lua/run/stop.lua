-- Tells all running workers to leave, and ends their leases, so that none is started again.
--
-- KEYS: state, leases, then the mailboxes of the running workers.
-- ARGV: the prefix of mailboxes.
-- Returns, as declared.lua says, the workers that have entered: only they may have something to save.
-- include run/guard.lua
-- include declared.lua
local leases = KEYS[2]
local mailboxes = ARGV[1]

local reason = refusal()
if reason then return refuse(reason) end
local workers = {}
for _, worker in ipairs(redis.call('HKEYS', leases)) do
  if worker ~= '' then
    workers[#workers + 1] = worker
    need(mailboxes .. worker)
  end
end
if undeclared[1] then return {undeclared} end
local entered = {}
for _, worker in ipairs(workers) do
  append(mailboxes .. worker, 'kind', 'stop', 'name', worker)
  redis.call('HDEL', leases, worker)
  local epoch = redis.call('HGET', state, 'epoch:' .. worker) or ''
  if redis.call('HEXISTS', state, 'entered:' .. worker .. ':' .. epoch) == 1 then
    entered[#entered + 1] = worker
  end
end
return {{}, entered}
