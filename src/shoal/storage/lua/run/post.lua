#!lua flags=allow-oom
-- Puts a letter into the client's mailbox, even if the memory is full: the letter may say so.
--
-- KEYS: state, the client's mailbox.
-- ARGV: the letter's fields.
-- include run/guard.lua
local client = KEYS[2]

local reason = refusal()
if reason then return refuse(reason) end
append(client, unpack(ARGV))
return 1
