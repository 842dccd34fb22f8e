"""Name what `engines.py` measures on each engine, and what it is compared with."""

from dataclasses import dataclass

CALLS = 1000
"""How many calls a `map` makes."""
FUNCTION = "lithops"
"""The name of Lithops' emulated function."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of the table."""

    name: str
    title: str
    factor: int = 1
    """How many runs there are for each repeat."""
    most: int = 100
    """The most runs."""
    warm_ups: int = 3
    """How many runs don't count: several processes may each have a first one."""


FIGURES = (
    Figure("cold", "first run, cold"),
    Figure("task", "one task", factor=4),
    Figure("tr1024", "`tr1024`"),
    Figure("fan1000", "1,000 no-ops and a sink"),
    Figure("map1000", "1,000 no-ops to the client"),
    Figure("transfer", "64 MB to another worker"),
    Figure("replaced", "killed worker replaced", most=3, warm_ups=0),
)

PEERS = {
    "localhost": ("gateway", "process"),
    "localhost-v1": ("gateway", "process"),
    "lambda": ("lambda",),
}
"""The backends of Lithops, and the engines with which each is compared."""
