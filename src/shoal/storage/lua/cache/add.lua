-- Counts an entry that was just written, and removes the least recently used ones if the cache is full.
--
-- KEYS: those of cache.lua, the entry, then the entries to remove.
-- ARGV: the prefix of entries, the entry's name, the time, the most bytes to keep.
-- Returns 1, or 0 if the entry is not there; as declared.lua says.
--
-- The first write is a command that a full memory refuses: after any other write the server lets
-- all of a script's commands through.
-- include cache/cache.lua
-- include declared.lua
local entry = KEYS[4]
local entries, name, time, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local nbytes = redis.call('STRLEN', entry)
if nbytes == 0 then return {{}, 0} end
local growth = nbytes - (redis.call('HGET', sizes, name) or 0)
local excess = (redis.call('GET', total) or 0) + growth - most
local oldest, at = {}, 0
while excess > 0 do
  local found = redis.call('ZRANGE', used, at, at)[1]
  if not found then break end
  at = at + 1
  if found ~= name then
    oldest[#oldest + 1] = found
    need(entries .. found)
    excess = excess - (redis.call('HGET', sizes, found) or 0)
  end
end
if undeclared[1] then return {undeclared} end

redis.call('ZADD', used, time, name)
redis.call('HSET', sizes, name, nbytes)
redis.call('INCRBY', total, growth)
redis.call('PERSIST', entry)
for _, each in ipairs(oldest) do remove(each, entries .. each) end
-- An entry is never larger than the cache, so the count is wrong if it still exceeds the limit.
if excess > 0 then
  remove(name, entry)
  redis.call('UNLINK', sizes, total)
end
return {{}, 1}
