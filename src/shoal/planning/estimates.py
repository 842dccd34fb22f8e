"""Define `Estimates`, which caches each task's predicted sizes and times."""

from __future__ import annotations

from shoal.execution.costs import Costs, Direction
from shoal.execution.memory import INLINE_NBYTES
from shoal.types import Resources, TaskId
from shoal.workflow import Workflow


class Estimates:
    """The predicted costs that planners look up repeatedly."""

    def __init__(self, workflow: Workflow, costs: Costs) -> None:
        self.workflow = workflow
        self.costs = costs
        self.input_nbytes: dict[TaskId, int] = {}
        self.output_nbytes: dict[TaskId, int] = {}
        outputs, constants = self.output_nbytes, costs.constants
        for task, sources in workflow.upstream.items():
            nbytes = sum([outputs[source] for source in sources])
            if task in constants:
                nbytes += sum(constants[task].values())
            self.input_nbytes[task] = nbytes
            outputs[task] = costs.output_nbytes(task, nbytes)
        self._seconds: dict[Resources, dict[TaskId, float]] = {}
        self._transfers: dict[tuple[Direction, str, int, Resources], float] = {}

    def seconds(self, resources: Resources) -> dict[TaskId, float]:
        """Return how long each task takes with these resources."""
        found = self._seconds.get(resources)
        if found is None:
            execution, nbytes = self.costs.execution, self.input_nbytes
            found = {task: execution(task, nbytes[task], resources) for task in nbytes}
            self._seconds[resources] = found
        return found

    def transfer(self, direction: Direction, task: TaskId, resources: Resources) -> float:
        """Return how long a task's output takes to transfer; 0 if it travels inside a message."""
        nbytes = self.output_nbytes[task]
        if nbytes <= INLINE_NBYTES:
            return 0.0
        key = (direction, self.workflow.calls[task].task.key, nbytes, resources)
        seconds = self._transfers.get(key)
        if seconds is None:
            seconds = self.costs.transfer_of(task, direction, nbytes, resources)
            self._transfers[key] = seconds
        return seconds
