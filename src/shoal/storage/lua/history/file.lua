-- Adds a run to history, and removes runs of its workflow beyond a limit: each time the oldest of the
-- most common shape, so that rare shapes stay.
--
-- KEYS: those of history.lua, then the workflow's `named`, `shapes` and `blocks`, then the run; then
-- the runs to remove, and the keys that list them.
-- ARGV: the prefix of the keys of runs, run, name, shape, start, how many runs to keep, samples, then
-- fields of the run and their values.
-- Returns 1, as declared.lua says.
--
-- The first write is a command that a full memory refuses: after any other write the server lets
-- all of a script's commands through.
-- include history/history.lua
local named, shapes, blocks, key = unpack(KEYS, 4, 7)
local run, name, shape, started, limit, samples = unpack(ARGV, 2, 7)
local FIRST_FIELD = 8

-- Every run that the workflow will have, with its start and shape. A run without a start is one
-- whose listing was evicted: it is the first to go.
local function listed()
  local found = {[run] = {started = tonumber(started), shape = shape}}
  local starts, shape_of = redis.call('ZRANGE', named, 0, -1, 'WITHSCORES'), {}
  local flat = redis.call('HGETALL', shapes)
  for i = 1, #flat, 2 do shape_of[flat[i]] = flat[i + 1] end
  for i = 1, #starts, 2 do
    local each = starts[i]
    found[each] = found[each]
      or {started = tonumber(starts[i + 1]), shape = shape_of[each] or ''}
  end
  for each, of in pairs(shape_of) do
    found[each] = found[each] or {started = -math.huge, shape = of}
  end
  return found
end

local function oldest_of_the_most_common(found)
  local counts, most = {}, 0
  for _, each in pairs(found) do
    counts[each.shape] = (counts[each.shape] or 0) + 1
    most = math.max(most, counts[each.shape])
  end
  local oldest
  for id, each in pairs(found) do
    if counts[each.shape] == most
        and (not oldest or each.started < found[oldest].started
          or (each.started == found[oldest].started and id < oldest)) then
      oldest = id
    end
  end
  return oldest
end

local found, excess, surplus = listed(), -tonumber(limit), {}
for _ in pairs(found) do excess = excess + 1 end
for i = 1, excess do
  surplus[i] = oldest_of_the_most_common(found)
  found[surplus[i]] = nil
  need_to_remove(surplus[i])
end
need_to_remove(run)
if undeclared[1] then return {undeclared} end

redis.call('ZADD', runs, started, run)
remove(run)
redis.call('HSET', key, 'name', name, 'named', named, 'shapes', shapes, 'blocks', blocks)
for i = FIRST_FIELD, #ARGV, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', runs, started, run)
redis.call('ZADD', ids, 0, run)
redis.call('ZADD', named, started, run)
redis.call('HSET', shapes, run, shape)
redis.call('HSET', blocks, run, samples)
redis.call('ZADD', names, redis.call('ZREVRANGE', named, 0, 0, 'WITHSCORES')[2], name)
for _, each in ipairs(surplus) do
  remove(each)
  redis.call('ZREM', named, each)
  redis.call('HDEL', shapes, each)
  redis.call('HDEL', blocks, each)
end
return {{}, 1}
