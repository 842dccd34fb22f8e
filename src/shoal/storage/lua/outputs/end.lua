-- Deletes everything of a run on a shard, now or later, in one step: a writer is either in the set or
-- refused.
--
-- KEYS: the set of the run's keys on the shard, then these keys.
-- ARGV: after how many milliseconds; 0: now.
-- Returns 1, as declared.lua says.
-- include declared.lua
local listed = KEYS[1]
local milliseconds = ARGV[1]

for _, key in ipairs(redis.call('SMEMBERS', listed)) do
  if key ~= '' then need(key) end
end
if undeclared[1] then return {undeclared} end
for _, key in ipairs(KEYS) do
  if milliseconds == '0' then
    redis.call('UNLINK', key)
  else
    redis.call('PEXPIRE', key, milliseconds)
  end
end
return {{}, 1}
