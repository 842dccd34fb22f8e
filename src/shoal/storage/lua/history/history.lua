-- Shared by the scripts that change history.
--
-- KEYS: runs, a sorted set: all runs by when they started; ids, a sorted set: all runs by id; names, a
-- sorted set: the names of workflows by when the latest run of each started.
-- ARGV[1]: the prefix of the keys of runs.
-- A run is a hash. It names the keys of its workflow that it is listed in: `named`, a sorted set of
-- the workflow's runs by when they started; `shapes`, a hash with the shape of each of them; and
-- `blocks`, a hash with the samples of each of them.
-- A server may have evicted any key. What other keys say of that run is removed all the same.
-- include declared.lua
local runs, ids, names = KEYS[1], KEYS[2], KEYS[3]
local run_keys = ARGV[1]

-- Needs what `remove` needs. A run's own key has to be declared before the others are known.
local function need_to_remove(run)
  local key, before = run_keys .. run, #undeclared
  need(key)
  if #undeclared > before then return end
  for _, listing in ipairs(redis.call('HMGET', key, 'named', 'shapes', 'blocks')) do
    if listing then need(listing) end
  end
end

local function remove(run)
  local key = run_keys .. run
  local name, named, shapes, blocks =
    unpack(redis.call('HMGET', key, 'name', 'named', 'shapes', 'blocks'))
  redis.call('ZREM', runs, run)
  redis.call('ZREM', ids, run)
  if not name then return end
  redis.call('ZREM', named, run)
  redis.call('HDEL', shapes, run)
  redis.call('HDEL', blocks, run)
  local latest = redis.call('ZREVRANGE', named, 0, 0, 'WITHSCORES')
  if latest[1] then
    redis.call('ZADD', names, latest[2], name)
  else
    redis.call('ZREM', names, name)
  end
  redis.call('UNLINK', key)
end
