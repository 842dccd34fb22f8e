"""The names and small values that every layer shares; nothing else."""

from dataclasses import dataclass
from math import floor, inf
from typing import Literal, NewType

from shoal.errors import UsageError

TaskId = NewType("TaskId", str)
"""Unique within a workflow: the task's name and a number, `clean#3`."""

WorkerId = NewType("WorkerId", str)
"""Unique within a run."""

RunId = NewType("RunId", str)
"""Unique for ever."""

MB_PER_CPU = 1769
"""Memory that buys one vCPU, as on AWS Lambda."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a worker has: memory, and CPUs that follow memory unless given."""

    memory_mb: int
    cpus: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.memory_mb, int) or self.memory_mb < 64:
            raise UsageError(
                f"Resources(memory_mb={self.memory_mb!r}): memory_mb must be a whole number "
                "of at least 64."
            )
        cpus = self.cpus
        if cpus is not None and not (isinstance(cpus, int | float) and 0 < cpus < inf):
            raise UsageError(f"Resources(cpus={cpus!r}): cpus must be a number greater than 0.")

    def __str__(self) -> str:
        given = "" if self.cpus is None else f", {self.cpus:g} CPUs"
        return f"{self.memory_mb} MB{given}"

    @property
    def cpu_share(self) -> float:
        """The CPUs of the worker, given or following its memory."""
        return self.memory_mb / MB_PER_CPU if self.cpus is None else self.cpus

    @property
    def slots(self) -> int:
        """How many tasks the worker runs at a time."""
        return max(1, floor(self.cpu_share))


@dataclass(frozen=True, slots=True)
class Percentile:
    """A service level: the value that `p` per cent of runs stay within, from 1 to below 100."""

    p: float

    def __post_init__(self) -> None:
        number = isinstance(self.p, int | float) and not isinstance(self.p, bool)
        if not (number and 1 <= self.p < 100):
            meant = f"; did you mean {100 * self.p:g}?" if number and 0 < self.p < 1 else "."
            raise UsageError(
                f"Percentile({self.p!r}): p must be a number of per cent, from 1 to below 100"
                + meant
            )

    def __str__(self) -> str:
        return f"{self.p:g} %"


SLA = Literal["median"] | Percentile
"""How careful a prediction is to be."""
