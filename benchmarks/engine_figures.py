"""Name what `engines.py` measures on each engine, and what it is compared with."""

from dataclasses import dataclass

CALLS = 1000
"""How many calls a `map` makes."""
FUNCTION = "lithops"
"""The name of Lithops' emulated function."""


@dataclass(frozen=True, slots=True)
class FigureColumn:
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
    FigureColumn("cold", "first run, cold"),
    FigureColumn("task", "one task", factor=4),
    FigureColumn("tr1024", "`tr1024`"),
    FigureColumn("fan1000", "1,000 no-ops and a sink"),
    FigureColumn("map1000", "1,000 no-ops to the client"),
    FigureColumn("transfer", "64 MB to another worker"),
    FigureColumn("replaced", "killed worker replaced", most=3, warm_ups=0),
)

ENGINES = {
    "gateway": "gateway within the client",
    "two gateways": "two gateways, one machine",
    "process": "`process://`",
    "docker": "Docker",
    "podman": "Podman",
    "slurm": "Slurm",
    "http function": "HTTP function, Shoal's server",
    "functions-framework": "HTTP function, functions-framework",
    "lambda": "AWS Lambda, emulated",
    "ray": "Ray, two nodes",
}
"""The engines, and what the tables call them."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A backend of Lithops."""

    title: str
    engines: tuple[str, ...]
    """What it is compared with."""
    least: float | None = None
    """How many times as fast Shoal has to be."""
    repeats: int = 2


PEERS = {
    "localhost": Peer("localhost, a process for each call", ("gateway", "process"), 100, repeats=1),
    "localhost-v1": Peer("localhost, `version: 1`", ("gateway", "process")),
    "lambda": Peer("AWS Lambda, emulated", ("lambda",), 3),
}
"""The backends of Lithops."""
