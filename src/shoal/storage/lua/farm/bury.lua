-- Removes a worker that won't be restarted, and gives back what it held.
--
-- KEYS: those of farm.lua, for the worker's stage, then the worker's mailbox.
-- ARGV: after those of farm.lua worker, what to report of its tasks.
-- Returns 1.
-- include farm/farm.lua
local worker, facts = unpack(ARGV, 4)

local refused = refusal()
if refused then return refused end
need_to_give_back(worker)
if undeclared[1] then return {undeclared} end
give_back(worker, facts)
remove(worker)
return {{}, 1}
