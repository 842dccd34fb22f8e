-- Claims starts of all workers that were ever started, and deletes the letters that stopped them.
--
-- KEYS: state, leases, the client's mailbox, parts, then the mailboxes of these workers.
-- ARGV: the prefix of mailboxes, 1 if flexible workers that are done start again too.
-- Returns, as declared.lua says, claims and the id of the last letter to the client.
-- include run/guard.lua
-- include declared.lua
local leases, client, parts = KEYS[2], KEYS[3], KEYS[4]
local mailboxes, all = ARGV[1], ARGV[2]

local reason = refusal()
if reason then return refuse(reason) end
local flexible = redis.call('HEXISTS', parts, '') == 1 and all == '0'
local workers, losses = {}, {}
for _, name in ipairs(redis.call('HKEYS', state)) do
  local worker = string.match(name, '^epoch:(.*)$')
  if string.sub(name, 1, 5) == 'lost:' then
    losses[#losses + 1] = name
  elseif worker and not (flexible and redis.call('HEXISTS', state, 'done:' .. worker) == 1) then
    workers[#workers + 1] = worker
    need(mailboxes .. worker)
  end
end
if undeclared[1] then return {undeclared} end
for _, name in ipairs(losses) do redis.call('HDEL', state, name) end
local claims = {}
for _, worker in ipairs(workers) do
  redis.call('HSET', state, 'claim:' .. worker, 1)
  redis.call('HDEL', state, 'parked at:' .. worker)
  claim(claims, leases, worker)
  local mailbox = mailboxes .. worker
  for _, letter in ipairs(redis.call('XRANGE', mailbox, '-', '+')) do
    if letter[2][2] == 'stop' then redis.call('XDEL', mailbox, letter[1]) end
  end
end
local last = redis.call('XREVRANGE', client, '+', '-', 'COUNT', 1)
return {{}, claims, last[1] and last[1][1] or ''}
