"""Define `FixedCosts`, the costs of a shape, which are the same for every planner and run.

The store is the only cost besides executions: starts, messages and the return of results cost
nothing, as in the model that the published schedulers plan with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quality.shapes import Shape
from shoal.execution.costs import Costs, Direction
from shoal.types import SLA, Resources, TaskId

BANDWIDTH = 100e6
"""The store's bandwidth in bytes per second, in each direction."""

SMALLEST = 64 * 1024
"""The smallest output that a task takes, so that none travels inside a message."""


@dataclass(frozen=True)
class FixedCosts:
    """Costs that are also perfect predictions."""

    seconds: Mapping[TaskId, float]
    nbytes: Mapping[TaskId, int]
    constants: Mapping[TaskId, Mapping[TaskId, int]] = field(default_factory=dict)
    basis: str = "fixed figures"

    def launch(self) -> float:
        """Nothing."""
        return 0.0

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Nothing."""
        return 0.0

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """The same both ways."""
        return nbytes / BANDWIDTH

    def transfer_of(
        self, task: TaskId, direction: Direction, nbytes: int, resources: Resources
    ) -> float:
        """The same for all tasks."""
        return self.transfer(direction, nbytes, resources)

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """The shape's."""
        return self.seconds[task]

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """The shape's, scaled."""
        return self.nbytes[task]

    def coordination(self) -> float:
        """Nothing."""
        return 0.0

    def invocation(self) -> float:
        """Nothing."""
        return 0.0

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        """Nothing."""
        return 0.0

    def at(self, sla: SLA) -> Costs:
        """These."""
        return self

    def sampled(self, seed: int) -> Costs:
        """These."""
        return self


def costs_at(shape: Shape, ccr: float) -> FixedCosts:
    """A shape's costs with outputs scaled to a ratio of communication to computation.

    That is the mean time over an edge, to save an output and to fetch it, over the mean execution.
    """
    weights = {task: float(shape.nbytes[task]) for task in shape.workflow.calls}
    if not any(weights[source] for source, _ in shape.edges):
        weights = dict.fromkeys(weights, 1.0)
    scale = 0.0
    if shape.edges:
        execution = sum(shape.seconds.values()) / len(shape.seconds)
        weight = sum(weights[source] for source, _ in shape.edges) / len(shape.edges)
        scale = ccr * execution * BANDWIDTH / 2 / weight
    taken = {source for source, _ in shape.edges}
    nbytes = {
        task: max(SMALLEST, round(weights[task] * scale)) if task in taken else 0
        for task in shape.workflow.calls
    }
    return FixedCosts(shape.seconds, nbytes)
