-- Reads the samples of the latest runs of each shape of a workflow, the latest first.
--
-- KEYS: the workflow's `named`, `shapes` and `blocks`, as in history.lua.
-- ARGV: how many runs of each shape.
-- Returns the blocks.
local named, shapes, blocks = unpack(KEYS)
local most = tonumber(ARGV[1])

local found, counts = {}, {}
for _, run in ipairs(redis.call('ZREVRANGE', named, 0, -1)) do
  local shape = redis.call('HGET', shapes, run) or ''
  counts[shape] = (counts[shape] or 0) + 1
  if counts[shape] <= most then found[#found + 1] = redis.call('HGET', blocks, run) end
end
return found
