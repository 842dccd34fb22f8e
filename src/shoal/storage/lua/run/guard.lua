-- Shared by the scripts of a run. KEYS[1] is the run's state.
local state = KEYS[1]
local ttl = redis.call('PTTL', state)

-- Why to refuse a message, or nil. A worker's start is current while its epoch is the latest one, or
-- that of the twin beside it. Without a worker, only the run has to exist.
local function refusal(worker, epoch)
  if ttl == -2 then return 'the run has ended' end
  if worker and redis.call('HGET', state, 'epoch:' .. worker) ~= epoch
      and redis.call('HGET', state, 'twin:' .. worker) ~= epoch then
    return 'this start of worker ' .. worker .. ' has been replaced'
  end
end

local function refuse(reason)
  return redis.error_reply('RUNOVER ' .. reason)
end

local function append(mailbox, ...)
  redis.call('XADD', mailbox, '*', ...)
  redis.call('PEXPIRE', mailbox, ttl)
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Ends the twins of a worker: only the start with this epoch remains.
local function end_twin(worker, epoch)
  if redis.call('HDEL', state, 'twin:' .. worker) == 1 then
    redis.call('HSET', state, 'epoch:' .. worker, epoch)
  end
end

local function renew_lease(leases, worker)
  redis.call('HSET', leases, worker, now() + redis.call('HGET', state, 'lease'))
end

-- Begins the lease of a start, which may wait for its platform before it is heard from.
local function begin_lease(leases, worker)
  local lease, waiting = unpack(redis.call('HMGET', state, 'lease', 'waiting'))
  redis.call('HSET', leases, worker, now() + lease + waiting)
end

-- Appends a claim to start a worker: its name, its new epoch, its resources.
local function claim(claims, leases, worker)
  begin_lease(leases, worker)
  claims[#claims + 1] = worker
  claims[#claims + 1] = redis.call('HINCRBY', state, 'epoch:' .. worker, 1)
  claims[#claims + 1] = redis.call('HGET', state, 'kind:' .. worker)
      or redis.call('HGET', state, 'kind')
end
