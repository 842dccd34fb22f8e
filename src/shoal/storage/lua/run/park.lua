-- Lets a worker leave, unless a letter has come that it has not read.
--
-- KEYS: state, the worker's mailbox, leases.
-- ARGV: worker, epoch, id of the last letter that it has read, what it has executed.
-- Returns 1 if it may leave, else 0.
-- include run/guard.lua
local mailbox, leases = KEYS[2], KEYS[3]
local worker, epoch, read, executed = unpack(ARGV)

local reason = refusal(worker, epoch)
if reason then return refuse(reason) end
local last = redis.call('XREVRANGE', mailbox, '+', '-', 'COUNT', 1)
if last[1] and last[1][1] ~= read then return 0 end
local twin = redis.call('HGET', state, 'twin:' .. worker)
if twin then
  end_twin(worker, epoch == twin and redis.call('HGET', state, 'epoch:' .. worker) or twin)
  return 1
end
redis.call('HDEL', state, 'claim:' .. worker)
redis.call('HSET', state, 'parked:' .. worker, executed, 'parked at:' .. worker, epoch)
redis.call('HDEL', leases, worker)
return 1
