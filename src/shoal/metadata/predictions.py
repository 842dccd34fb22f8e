"""What a workflow's tasks, transfers and starts will cost, learnt from earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.execution.costs import Costs, Direction
from shoal.types import SLA, Resources, TaskId


@dataclass(frozen=True)
class DefaultCosts:
    """What is assumed as long as nothing is known; every service level is the same."""

    constants: Mapping[TaskId, Mapping[TaskId, int]] = field(default_factory=dict)
    latency: float = 0.0
    """Seconds added to each round trip."""
    basis: str = "no history"

    def launch(self) -> float:
        """Packing and sending the plan."""
        return 0.003 + self.latency

    def startup(self, resources: Resources, *, warm: bool) -> float:
        """A local sandbox's."""
        return (0.002 if warm else 0.03) + self.latency

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Half a gigabyte a second."""
        return 0.0005 + nbytes / 500e6 + self.latency

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """The same for all tasks."""
        return 0.1

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """A small one."""
        return 1024

    def coordination(self) -> float:
        """A local server's."""
        return 0.0005 + self.latency

    def at(self, sla: SLA) -> Costs:
        """These."""
        return self

    def sampled(self, seed: int) -> Costs:
        """These."""
        return self
