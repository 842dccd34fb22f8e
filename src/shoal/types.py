"""Define the ids and small value types that every layer shares."""

from dataclasses import dataclass
from enum import StrEnum
from math import floor, inf
from typing import Literal, NewType

from shoal.errors import UsageError

TaskId = NewType("TaskId", str)
"""Unique within a workflow: the task's name and a number, `clean#3`."""

WorkerId = NewType("WorkerId", str)
"""Unique within a run."""

RunId = NewType("RunId", str)
"""Globally unique."""

MB_PER_CPU = 1769
"""The memory that comes with one vCPU, as on AWS Lambda."""

SHARED_NBYTES = 64 * 1024
"""Outputs of this size or more go through shared memory where there is any, not the store."""
MIN_MEMORY_MB = 64
"""The least memory of a worker."""
MEMORY_MB = 2048
"""A worker's memory, unless something else is asked for."""
HISTORY_RUNS = 100
"""How many runs of each workflow history keeps, unless something else is set."""


@dataclass(frozen=True, slots=True)
class Resources:
    """A worker's memory and CPUs; by default, CPUs are proportional to memory."""

    memory_mb: int
    cpus: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.memory_mb, int) or self.memory_mb < MIN_MEMORY_MB:
            raise UsageError(
                f"Resources(memory_mb={self.memory_mb!r}): memory_mb must be an integer of at "
                f"least {MIN_MEMORY_MB}."
            )
        cpus = self.cpus
        if cpus is not None and not (isinstance(cpus, int | float) and 0 < cpus < inf):
            raise UsageError(f"Resources(cpus={cpus!r}): cpus must be a number greater than 0.")

    def __str__(self) -> str:
        given = "" if self.cpus is None else f", {self.cpus:g} CPUs"
        return f"{self.memory_mb} MB{given}"

    @property
    def cpu_share(self) -> float:
        """The worker's CPUs: `cpus` if set, else proportional to its memory."""
        return self.memory_mb / MB_PER_CPU if self.cpus is None else self.cpus

    @property
    def slots(self) -> int:
        """How many tasks the worker runs concurrently."""
        return max(1, floor(self.cpu_share))


@dataclass(frozen=True, slots=True)
class Percentile:
    """A service level: the value that `p` percent of runs stay within (at least 1, below 100)."""

    p: float

    def __post_init__(self) -> None:
        number = isinstance(self.p, int | float) and not isinstance(self.p, bool)
        if not (number and 1 <= self.p < 100):
            meant = f"; did you mean {100 * self.p:g}?" if number and 0 < self.p < 1 else "."
            raise UsageError(
                f"Percentile({self.p!r}): p is a percentage, at least 1 and below 100{meant}"
            )

    def __str__(self) -> str:
        return f"{self.p:g} %"


SLA = Literal["median"] | Percentile
"""How conservative a prediction is."""


class LossReason(StrEnum):
    """Why a worker was lost; the values travel in messages."""

    OUT_OF_MEMORY = "out of memory"
    TIME_LIMIT = "time limit"
    """It ran for longer than the platform allows."""
    DIED = "died"
    """Its process ended: the exit code tells how."""
    ERROR = "error"
    """Shoal's own code failed in it, or it could not be started: `Loss.detail` tells why."""
    VANISHED = "vanished"
    """Its lease expired, again and again."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is known about a worker that was lost."""

    reason: LossReason
    running: tuple[int, ...] = ()
    """The numbers of the tasks that were running."""
    memory_mb: int = 0
    """The memory that the worker had."""
    epoch: int = 0
    """The start that was lost."""
    code: int | None = None
    """The exit code of its process, negative for a signal; None: the process did not end."""
    detail: str = ""
    """A traceback, or a sentence that explains the error."""
