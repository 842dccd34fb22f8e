-- Removes runs from history.
--
-- KEYS: those of history.lua, the sorted set of the runs to remove, then these runs and the keys that
-- list them.
-- ARGV: the prefix of the keys of runs.
-- Returns how many runs there were, as declared.lua says.
-- include history/history.lua
local unwanted = KEYS[4]

local found = redis.call('ZRANGE', unwanted, 0, -1)
for _, run in ipairs(found) do need_to_remove(run) end
if undeclared[1] then return {undeclared} end
for _, run in ipairs(found) do remove(run) end
redis.call('UNLINK', unwanted)
return {{}, #found}
