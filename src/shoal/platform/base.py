"""`Platform`: what every platform does; one contract suite tests all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.execution.pool import WarmPool
from shoal.platform.invocation import RunContext, Start
from shoal.types import Resources, RunId


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that user code printed."""

    time: float
    worker: str
    stream: str
    """`stdout` or `stderr`."""
    text: str


class Platform(Protocol):
    """Starts workers; safe to use from several threads.

    What it doesn't know it answers with None, and nothing ends because of that.
    """

    @property
    def memory_mb(self) -> int | None:
        """The most memory that a worker can have; None: unknown."""
        ...

    @property
    def cpus(self) -> float | None:
        """The CPUs of its machine, the most that a worker can use; None: unknown."""
        ...

    @property
    def memory_steps(self) -> Sequence[int]:
        """The sizes of memory that it offers, smallest first; empty: any size.

        A worker gets the next size up.
        """
        ...

    @property
    def prices(self) -> str | None:
        """The name of its price list, `none` if it charges nothing; None: unknown."""
        ...

    @property
    def default_workers(self) -> int | None:
        """How many workers of a run may work at once unless it is set; None: unknown."""
        ...

    @property
    def capacity(self) -> int | None:
        """How many workers can run at once; None: unknown."""
        ...

    @property
    def idle_seconds(self) -> float | None:
        """How long an idle sandbox stays warm; None: unknown."""
        ...

    @property
    def inline_nbytes(self) -> int | None:
        """The most bytes that a start's part and inputs may have together; None: no limit.

        In JSON, as base64, they take a third more.
        """
        ...

    def probed(self, nonce: str) -> str | None:
        """Where all workers see the probe in a client's shared memory; None: they share none."""
        ...

    def sees_folders(self, nonce: str) -> bool:
        """Whether all workers see the folders that a client's probe names."""
        ...

    @property
    def queue_seconds(self) -> float:
        """How long a start may wait unseen; 0: the platform knows what waits, and tells the store.

        The first lease of a worker is so much longer.
        """
        ...

    @property
    def function_seconds(self) -> float | None:
        """How long it lets a worker run; None: no limit, or unknown."""
        ...

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers of a run, at once or when there is room."""
        ...

    def supervise(self, context: RunContext) -> None:
        """Look after a run's workers as if they had been started here: a client attaches to it."""
        ...

    def fan_out(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start many workers of a run in the background; returns at once."""
        ...

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        """Prepare sandboxes for workers of a run's session; returns how many there is room for."""
        ...

    def cancel(self, run: RunId) -> None:
        """Stop the run's workers, and drop those that wait; none is left afterwards."""
        ...

    def running(self, run: RunId) -> Sequence[int] | None:
        """The numbers of the tasks that the run's workers are executing; None: unknown.

        A worker that waits for a sandbox counts as -1.
        """
        ...

    def active(self, run: RunId) -> bool | None:
        """Whether a worker of the run is running or waits for a sandbox; None: unknown."""
        ...

    def pool(self, session: str) -> WarmPool[Resources] | None:
        """The sandboxes that a session's workers would find now; None: unknown."""
        ...

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """What the run's user code has printed, as far as it is stored."""
        ...

    def close(self) -> None:
        """End all that this process started."""
        ...
