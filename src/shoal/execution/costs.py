"""`Costs`: what things are predicted to cost; `Predictions`: costs at a service level.

Seconds and bytes. The simulator asks for a cost whenever a worker would spend time; where the
figures come from is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from shoal.types import SLA, Resources, TaskId

FAR = 0.005
"""Seconds: if a round trip to the store takes longer, no slot waits for one, and outputs travel
with the messages about them. Else outputs are there, mostly in shared memory, before these leave.
"""

Direction = Literal["fetch", "save"]
"""Out of the store, or into it."""


class Costs(Protocol):
    """What things cost in one simulated run."""

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The large constant arguments of tasks: their names and sizes."""
        return {}

    def launch(self) -> float:
        """From the start of a run until its first workers are invoked."""
        return 0.0

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """From an invocation to the worker's first event.

        Args:
            resources: What the worker has.
            warm: Whether its sandbox is there already.
            first: Whether the client starts it, with the run, rather than another worker.
            beside: How many others are starting, which may share cores with it.
        """
        ...

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Saving or fetching an output."""
        ...

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Running a task."""
        ...

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """The size of a task's output."""
        ...

    def coordination(self) -> float:
        """From marking a task until its worker, if it is there, knows."""
        ...

    def invocation(self) -> float:
        """What one who invokes workers spends on each of them."""
        return 0.0

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        """From handing a sink's output in until the client has it."""
        return self.coordination()


@runtime_checkable
class Elastic(Protocol):
    """Costs of transfers that others slow down meanwhile."""

    def overtime(self) -> float:
        """How many seconds more a transfer takes that was to end now; 0: it has ended."""
        ...


class Predictions(Protocol):
    """What is known of a workflow's costs."""

    @property
    def basis(self) -> str:
        """What they rest on, such as `5 runs` or `no history`."""
        ...

    def at(self, sla: SLA) -> Costs:
        """Each cost at a service level; a higher one never has smaller costs."""
        ...

    def sampled(self, seed: int) -> Costs:
        """Costs as one run might have them; the same for a seed, if asked in the same order."""
        ...
