"""Load the Lua scripts that run on the server, one from each file in `lua/`.

1. The head of a file says what the script does, and names its KEYS and ARGV.
2. A line `-- include FILE` stands for the text of that file, whose path is relative to `lua/`. A
   file's own includes are resolved too. Scripts are composed in no other way.
3. A script touches only keys in KEYS, since clusters and managed servers refuse all others. One
   that learns only while it runs which keys it needs includes `declared.lua`, and
   `ServerClient._script_finding_keys` runs it.
4. A client that doesn't know whether a script was carried out may run it again, and gets the same
   answer. A script refuses messages of a run that has ended, and those of a worker's start that was
   replaced.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from shoal.storage.resp import Arg

_FOLDER = Path(__file__).with_name("lua")
_INCLUDE = re.compile(r"^-- include (\S+)$", re.MULTILINE)

loaded: dict[str, Script] = {}
"""Every script that has been loaded, by name."""


class Script:
    """A script, and the digest by which a server that has seen it knows it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    def evaluate(self, script_keys: Sequence[Arg], *args: Arg) -> list[Arg]:
        """Return the command that runs the script on a server that may not have seen it."""
        return ["EVAL", self.source, len(script_keys), *script_keys, *args]


def load(name: str) -> Script:
    """Load the script in `lua/NAME.lua`."""
    if name not in loaded:
        loaded[name] = Script(source_of(f"{name}.lua"))
    return loaded[name]


def source_of(file: str) -> str:
    """Return the text of a file in `lua/`, with the files that it includes."""
    text = (_FOLDER / file).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: source_of(found[1]), text)
