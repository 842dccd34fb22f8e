"""`Costs`: what things are predicted to cost; `Predictions`: costs at a service level.

Costs are seconds and bytes. The simulator asks for one whenever a worker would spend time. This
module doesn't know where the figures come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from shoal.types import SLA, Resources, TaskId
from shoal.workflow import Workflow

Direction = Literal["fetch", "save"]
"""From the store, or to it."""


class Costs(Protocol):
    """What things cost in one simulated run."""

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The large constant arguments of tasks: their names and sizes."""
        return {}

    def launch(self) -> float:
        """Seconds from the start of a run until its first workers are invoked."""
        return 0.0

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Seconds from an invocation to the worker's first event.

        Args:
            resources: The worker's resources.
            warm: Whether its sandbox exists already.
            first: Whether the client starts it with the run, rather than another worker.
            beside: How many other workers are starting, which may share cores with it.
        """
        ...

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Seconds to save or fetch an output."""
        ...

    def transfer_of(
        self, task: TaskId, direction: Direction, nbytes: int, resources: Resources
    ) -> float:
        """Seconds to save or fetch the output of a task: some are copied faster than others."""
        return self.transfer(direction, nbytes, resources)

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Seconds to run a task."""
        ...

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """The size of a task's output."""
        ...

    def coordination(self) -> float:
        """Seconds from marking a task until its worker knows, if it is running."""
        ...

    def invocation(self) -> float:
        """Seconds that an invoker spends on each worker."""
        return 0.0

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        """Seconds from handing in the output of a sink until the client has it."""
        return self.coordination()


@runtime_checkable
class Elastic(Protocol):
    """Costs of transfers that slow each other down."""

    def overtime(self) -> float:
        """How much longer a transfer takes that was to end now; 0: it has ended."""
        ...


@runtime_checkable
class Separate(Protocol):
    """Costs of a store from which a task's inputs may have to be fetched one by one."""

    one_by_one: bool


@runtime_checkable
class Sized(Protocol):
    """Predictions that depend on the sizes of a workflow's constants."""

    def of(
        self, workflow: Workflow, constants: Mapping[TaskId, Mapping[TaskId, int]]
    ) -> Predictions:
        """The same knowledge, about a workflow of this shape with constants of other sizes."""
        ...


class Predictions(Protocol):
    """What is known about the costs of a workflow."""

    @property
    def basis(self) -> str:
        """What they are based on, such as `5 runs` or `no history`."""
        ...

    def at(self, sla: SLA) -> Costs:
        """The costs at a service level; a higher level never has smaller costs."""
        ...

    def sampled(self, seed: int) -> Costs:
        """Costs as one run might have them; the same for a seed if asked in the same order."""
        ...
