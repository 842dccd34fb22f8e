-- Keeps a farm alive. Unlike other scripts it does so for all declared keys even if it answers with
-- undeclared ones: some are better than none.
--
-- KEYS: those of farm.lua, for all stages, then parts, then the mailboxes of all workers.
-- ARGV: after those of farm.lua the milliseconds for which to keep it.
-- Returns for each stage how many tasks wait and how many workers are busy; and all workers.
-- include farm/farm.lua
local milliseconds = ARGV[4]

local refused = refusal()
if refused then return refused end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, milliseconds) end
local busy, workers = {}, {}
for _, worker in ipairs(redis.call('HKEYS', leases)) do
  if worker ~= '' then
    local stage = stage_of(worker)
    workers[#workers + 1] = worker
    need(mailboxes .. worker)
    busy[stage] = (busy[stage] or 0) + redis.call('HEXISTS', held, worker)
  end
end
if undeclared[1] then return {undeclared} end
local counts = {}
for stage = 0, stages - 1 do
  counts[#counts + 1] = redis.call('ZCARD', queues[tostring(stage)])
  counts[#counts + 1] = busy[tostring(stage)] or 0
end
return {{}, counts, workers}
