"""`TableCosts`: predictions from a table, for tests of planners."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.execution.costs import Costs, Direction
from shoal.types import SLA, Resources, TaskId


class TableCosts(Costs):
    """Costs from a table, and predictions that every run confirms: all levels have these costs."""

    def __init__(
        self,
        seconds: Mapping[str, float] | float = 1.0,
        sizes: Mapping[str, int] | int = 100,
        *,
        bandwidth: float = 1e8,
        start: float = 0.0,
        coordination: float = 0.0,
        basis: str = "5 runs",
    ) -> None:
        """Create the predictions.

        Args:
            seconds: How long tasks run; one that isn't in the table runs for 1 s.
            sizes: The bytes of tasks' outputs; one that isn't in the table has 100.
            bandwidth: Bytes per second of a transfer.
            start: Seconds of a cold start; a warm one takes no time.
            coordination: Seconds of a message between workers.
            basis: What the predictions claim to be based on; `no history` for none.
        """
        self._seconds = seconds
        self._sizes = sizes
        self._bandwidth = bandwidth
        self._start = start
        self._coordination = coordination
        self.basis = basis

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return the seconds of a start."""
        return 0.0 if warm else self._start

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Return the seconds of a transfer."""
        return nbytes / self._bandwidth

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return the seconds of a task."""
        seconds = self._seconds
        return seconds if isinstance(seconds, int | float) else seconds.get(task, 1.0)

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """Return the size of a task's output."""
        return self._sizes if isinstance(self._sizes, int) else self._sizes.get(task, 100)

    def coordination(self) -> float:
        """Return the seconds of a message."""
        return self._coordination

    def at(self, sla: SLA) -> Costs:
        """Return the same costs for every service level."""
        return self

    def sampled(self, seed: int) -> Costs:
        """Return the same costs for every run."""
        return self
