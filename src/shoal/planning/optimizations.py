"""What a task can be asked to be optimised with; planners read it off `forced_optimizations`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreLoadOptimization:
    """Fetch a task's inputs as soon as they are there, while its worker is still busy."""


@dataclass(frozen=True, slots=True)
class PreWarmOptimization:
    """Have a sandbox ready before the worker of a task is started."""


@dataclass(frozen=True, slots=True)
class TaskDupOptimization:
    """Let a worker repeat a short task of another one rather than wait for its output."""
