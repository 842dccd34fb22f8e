-- Checks computed keys against KEYS, for a script that learns only while it runs which keys it needs.
-- Such a script calls `need` for each of them before it writes anything. If one is not declared, the
-- script changes nothing and answers {undeclared}; the caller then runs it again with these keys at
-- the end of KEYS. Otherwise it answers {{}, result, ...}.
local declared, undeclared = nil, {}
local function need(key)
  if not declared then
    declared = {}
    for _, each in ipairs(KEYS) do declared[each] = true end
  end
  if not declared[key] then
    declared[key] = true
    undeclared[#undeclared + 1] = key
  end
end
