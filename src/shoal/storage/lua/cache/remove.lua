-- Removes entries.
--
-- KEYS: those of cache.lua, then the entries.
-- ARGV: the entries' names.
-- include cache/cache.lua
local FIRST_ENTRY = 4

for i, name in ipairs(ARGV) do remove(name, KEYS[FIRST_ENTRY + i - 1]) end
return 1
