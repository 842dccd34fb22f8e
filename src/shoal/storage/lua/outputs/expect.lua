-- Registers keys that are about to be written: they are deleted with the run even if the writer dies.
--
-- KEYS: a key that exists as long as the run, the set of the run's keys, then the keys.
-- Returns 1, or 0 if the run has ended.
local run, listed = KEYS[1], KEYS[2]
local FIRST_WRITTEN = 3

local ttl = redis.call('PTTL', run)
if ttl == -2 then return 0 end
for i = FIRST_WRITTEN, #KEYS do redis.call('SADD', listed, KEYS[i]) end
return redis.call('PEXPIRE', listed, ttl)
