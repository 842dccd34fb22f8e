"""Where outputs find the engine that runs them, without importing it.

`shoal/__init__.py`, the top of the package, says how the engine is loaded. `Output.compute()`, near
its bottom, asks for it. So a worker, which runs no workflow, loads no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class OutputEngine(Protocol):
    """What runs outputs."""

    def compute(self, outputs: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        """Run the workflow of these outputs and return their values."""
        ...

    def submit(self, outputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Start the workflow of these outputs and return a handle."""
        ...

    def plan(self, outputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What running the workflow of these outputs is predicted to do."""
        ...


_engine: OutputEngine | None = None
_load: Callable[[], OutputEngine] | None = None


def load_engine_by(load: Callable[[], OutputEngine]) -> None:
    """Call `load` when an engine is first needed."""
    global _load
    _load = load


def use_engine(engine: OutputEngine) -> None:
    """Run outputs with `engine` from now on."""
    global _engine
    _engine = engine


def engine() -> OutputEngine:
    """The engine that runs outputs, loaded when it is first needed."""
    global _engine
    if _engine is None:
        assert _load is not None, "shoal/__init__.py says how the engine is loaded"
        _engine = _load()
    return _engine
