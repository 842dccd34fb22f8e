"""Make every script of the store fail if it touches a key that isn't in KEYS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.storage import scripts

_CHECK = """
local redis = setmetatable({}, {__index = redis})
do
  local call = getmetatable(redis).__index.call
  local keyless, all_keys = {TIME = true}, {UNLINK = true, RENAME = true, EXISTS = true}
  local declared = {}
  for _, key in ipairs(KEYS) do declared[key] = true end
  redis.call = function(command, ...)
    local args = {...}
    for i = 1, keyless[command] and 0 or all_keys[command] and #args or 1 do
      if not declared[args[i]] then
        error('undeclared key: ' .. command .. ' ' .. tostring(args[i]))
      end
    end
    return call(command, ...)
  end
end
"""


def checking(source: str) -> str:
    """Return the script with a check of each key it uses; a first line `#!lua` stays."""
    head, newline, rest = source.partition("\n")
    return f"{head}{newline}{_CHECK}{rest}" if head.startswith("#!") else _CHECK + source


@contextmanager
def keys_checked() -> Iterator[None]:
    """Make all scripts that this process runs check their keys."""
    before = dict(scripts.loaded)
    changed = {name: scripts.Script(checking(script.source)) for name, script in before.items()}
    sources = {name: (script.source, script.sha) for name, script in before.items()}
    for name, script in before.items():
        script.source, script.sha = changed[name].source, changed[name].sha
    yield
    for name, script in before.items():
        script.source, script.sha = sources[name]
