-- Deletes everything of a run, now or later. Every worker that was ever started may have a mailbox,
-- even if no plan names it.
--
-- KEYS: state, names of large outputs, keys of chunks, then all other keys of the run.
-- ARGV: the prefixes of large outputs and of mailboxes, after how many milliseconds; 0: now.
-- Returns 1, as declared.lua says.
-- include declared.lua
local state, large_names, chunks = KEYS[1], KEYS[2], KEYS[3]
local larges, mailboxes, milliseconds = unpack(ARGV)

for _, name in ipairs(redis.call('SMEMBERS', large_names)) do need(larges .. name) end
for _, name in ipairs(redis.call('HKEYS', state)) do
  local worker = string.match(name, '^epoch:(.*)$')
  if worker then need(mailboxes .. worker) end
end
for _, key in ipairs(redis.call('SMEMBERS', chunks)) do need(key) end
if undeclared[1] then return {undeclared} end
for _, key in ipairs(KEYS) do
  if milliseconds == '0' then
    redis.call('UNLINK', key)
  else
    redis.call('PEXPIRE', key, milliseconds)
  end
end
return {{}, 1}
