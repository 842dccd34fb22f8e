-- Shared by the scripts of the cache.
--
-- KEYS: used, a sorted set: the entries by when they were last used; sizes, a hash: the size of each;
-- total: the sum of the sizes.
local used, sizes, total = KEYS[1], KEYS[2], KEYS[3]

local function remove(name, key)
  redis.call('UNLINK', key)
  redis.call('ZREM', used, name)
  redis.call('DECRBY', total, redis.call('HGET', sizes, name) or 0)
  redis.call('HDEL', sizes, name)
end
