-- Begins a start of a worker. Only the first invocation of a start may enter.
--
-- KEYS: state, parts, leases, inputs of flexible workers, outputs, names of large outputs, marks, the
-- client's mailbox.
-- ARGV: worker, epoch, a token of this invocation, 1 if the worker wants its part.
-- Returns {part, what it had executed when it parked, inputs}; and, if the start before this one was
-- lost, also {saved outputs, marks in its name, outputs handed in, workers ever started}.
-- include run/guard.lua
local parts, leases, given, outputs = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local large_names, marks, client = KEYS[6], KEYS[7], KEYS[8]
local worker, epoch, token, wants_part = unpack(ARGV)

-- The common part is stored without a worker's name. With it, the first start needs no claim.
local common = redis.call('HGET', parts, '')
if common and ttl ~= -2 and epoch == '1' then
  redis.call('HSETNX', state, 'epoch:' .. worker, 1)
end
local reason = refusal(worker, epoch)
if reason then return refuse(reason) end
local entered = 'entered:' .. worker .. ':' .. epoch
if redis.call('HSETNX', state, entered, token) == 0
    and redis.call('HGET', state, entered) ~= token then
  return refuse('this start of worker ' .. worker .. ' is already running')
end
renew_lease(leases, worker)
local part = wants_part == '1' and (redis.call('HGET', parts, worker) or common)
local parked = redis.call('HGET', state, 'parked:' .. worker)
local inputs = redis.call('HGET', given, worker)
local before = tostring(tonumber(epoch) - 1)
if before == '0' or redis.call('HGET', state, 'parked at:' .. worker) == before then
  return {part, parked, inputs}
end

local saved = redis.call('HKEYS', outputs)
for _, name in ipairs(redis.call('SMEMBERS', large_names)) do saved[#saved + 1] = name end
local marked, handed_in, started = {}, {}, {}
local tail = '\n' .. worker
for _, name in ipairs(redis.call('HKEYS', marks)) do
  if string.sub(name, -#tail) == tail then
    marked[#marked + 1] = string.sub(name, 1, #name - #tail)
    marked[#marked + 1] = redis.call('HGET', marks, name)
  end
end
for _, letter in ipairs(redis.call('XRANGE', client, '-', '+')) do
  local fields = letter[2]
  if fields[2] == 'output' and fields[6] then handed_in[#handed_in + 1] = fields[4] end
end
for _, name in ipairs(redis.call('HKEYS', state)) do
  if string.sub(name, 1, 6) == 'epoch:' then started[#started + 1] = string.sub(name, 7) end
end
return {part, parked, inputs, saved, marked, handed_in, started}
