-- Accepts keys that have been written: they live as long as the run, or are deleted if it has ended.
--
-- KEYS: as in expect.lua.
-- Returns 1, or nothing if the run has ended.
local run = KEYS[1]
local FIRST_WRITTEN = 3

local ttl = redis.call('PTTL', run)
for i = FIRST_WRITTEN, #KEYS do
  if ttl == -2 then
    redis.call('UNLINK', KEYS[i])
  else
    redis.call('PEXPIRE', KEYS[i], ttl)
  end
end
return ttl ~= -2
