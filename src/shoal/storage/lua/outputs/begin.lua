-- Has a run exist on a shard, or prolongs it.
--
-- KEYS: the set of the run's keys on the shard.
-- ARGV: seconds to live.
local listed = KEYS[1]
local seconds = ARGV[1]

redis.call('SADD', listed, '')
return redis.call('EXPIRE', listed, seconds)
