"""Define `Shape`, a measured workflow: its tasks, their computing times and output sizes.

1. The shapes of the papers' workflows are data (`shapes.json`), measured once by `measure_shapes`
   at the papers' sizes, so that experiments do the same work on any machine.
2. A shape can be turned into a workflow of the same structure whose tasks sleep instead of
   computing, and return as many bytes. Each task counts the outputs it depends on, so that results
   can be checked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from shoal.errors import UsageError, suggestion
from shoal.types import TaskId
from shoal.workflow import Output, Task, Workflow
from shoal.workflow.graph import needed

FILE = "shapes.json"
_SMALL = 1024
"""Outputs of up to this many bytes are plain numbers, which makes no difference."""


@dataclass(frozen=True, slots=True)
class ShapeTask:
    """A measured task."""

    name: str
    upstream: tuple[int, ...]
    """The numbers of the tasks whose outputs it takes."""
    constants: tuple[int, ...]
    """The numbers of the large constants that it takes."""
    seconds: float
    """CPU seconds on one core."""
    nbytes: int
    """The size of its output."""


@dataclass(frozen=True)
class Shape:
    """A measured workflow; each task comes after its upstream tasks."""

    name: str
    tasks: Sequence[ShapeTask]
    constants: Sequence[int]
    """The sizes of large constant arguments."""
    about: str = ""
    """A description of what was measured."""

    def outputs(
        self, seconds: Callable[[TaskId], float] = lambda task: 0.0, *, hollow: bool = False
    ) -> list[Output[Any]]:
        """Build a workflow of this shape whose tasks sleep; return the outputs of its sinks.

        Args:
            seconds: Returns how long a task sleeps.
            hollow: Whether to omit large constants, for workflows that never run.
        """
        kinds = {task.name: Task(work, name=task.name) for task in self.tasks}
        constants = [] if hollow else [_constant(i, n) for i, n in enumerate(self.constants)]
        outputs: list[Output[Any]] = []
        for task, named in zip(self.tasks, self.ids, strict=True):
            large = [] if hollow else [constants[i] for i in task.constants]
            inputs = [outputs[i] for i in task.upstream]
            outputs.append(
                kinds[task.name](seconds(named), task.nbytes, len(large), *large, *inputs)
            )
        return [outputs[sink] for sink in self.sinks]

    @cached_property
    def sinks(self) -> tuple[int, ...]:
        """The numbers of the tasks whose outputs no other task takes."""
        taken = {source for task in self.tasks for source in task.upstream}
        return tuple(number for number in range(len(self.tasks)) if number not in taken)

    @cached_property
    def ids(self) -> tuple[TaskId, ...]:
        """The task ids in a workflow of this shape."""
        counts: dict[str, int] = {}
        named = []
        for task in self.tasks:
            count = counts[task.name] = counts.get(task.name, -1) + 1
            named.append(TaskId(f"{task.name}#{count}"))
        return tuple(named)

    @cached_property
    def workflow(self) -> Workflow:
        """The workflow for planning and simulation."""
        return Workflow.of(self.outputs(hollow=True))

    @cached_property
    def of_task(self) -> Mapping[TaskId, ShapeTask]:
        """The measured tasks, by task id."""
        return dict(zip(self.ids, self.tasks, strict=True))

    @cached_property
    def constant_sizes(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The sizes of each task's large constants, for the simulator."""
        return {
            named: {TaskId(f"constant:{i}"): self.constants[i] for i in task.constants}
            for named, task in self.of_task.items()
            if task.constants
        }

    @cached_property
    def weightless(self) -> Shape:
        """The same workflow without data, as if storage were ideal."""
        tasks = [replace(task, constants=(), nbytes=0) for task in self.tasks]
        return Shape(f"{self.name}-weightless", tasks, (), f"{self.about}, without data")

    @cached_property
    def expected(self) -> int:
        """The sum of the counts that the sinks return."""
        counts: list[int] = []
        for task in self.tasks:
            counts.append((1 + sum(counts[i] for i in task.upstream)) % 2**31)
        return sum(counts[sink] for sink in self.sinks)


def work(seconds: float, nbytes: int, constants: int, *inputs: Any) -> Any:
    """Sleep, then return `nbytes` bytes that begin with the count of outputs they depend on.

    Args:
        seconds: How long to sleep.
        nbytes: The size of the output.
        constants: How many of the inputs are constants, which come first and are not counted.
        *inputs: The task's inputs.
    """
    if seconds > 0:
        time.sleep(seconds)
    count = (1 + sum(map(counted, inputs[constants:]))) % 2**31
    if nbytes <= _SMALL:
        return count
    from shoal.farm.arrays import np

    made = np.zeros(max(nbytes // 8, 1), np.int64)
    made[0] = count
    return made


def counted(value: Any) -> int:
    """Return the count of outputs that a value depends on."""
    return value if isinstance(value, int) else int(value[0])


def in_workflow_order(shape: Shape) -> Shape:
    """Put the tasks of a shape in the order of a workflow."""
    made: list[Output[Any]] = []
    for task in shape.tasks:
        made.append(Task(work, name=task.name)(*[made[i] for i in task.upstream]))
    places = {id(output): number for number, output in enumerate(made)}
    order = [places[id(output)] for output in needed(*[made[sink] for sink in shape.sinks])]
    numbers = {old: new for new, old in enumerate(order)}
    tasks = [
        replace(shape.tasks[old], upstream=tuple(numbers[i] for i in shape.tasks[old].upstream))
        for old in order
    ]
    return replace(shape, tasks=tasks)


def _constant(number: int, nbytes: int) -> Any:
    from shoal.farm.arrays import np

    return np.full(max(nbytes // 8, 1), number, np.int64)


def shape_named(name: str) -> Shape:
    """Return the shape of one of the papers' workflows."""
    known = _known()
    if name not in known:
        raise UsageError(f"There is no workflow {name!r}; {suggestion(name, list(known))}")
    return known[name]


@cache
def _known() -> dict[str, Shape]:
    text = files("shoal.experiments").joinpath(FILE).read_text()
    return {name: decoded(name, kept) for name, kept in json.loads(text).items()}


def encoded(shape: Shape) -> dict[str, Any]:
    """Encode a shape for `shapes.json`."""
    tasks = [[t.name, t.upstream, t.constants, t.seconds, t.nbytes] for t in shape.tasks]
    return {"about": shape.about, "constants": list(shape.constants), "tasks": tasks}


def decoded(name: str, kept: Mapping[str, Any]) -> Shape:
    """Decode a shape of `shapes.json`."""
    tasks = [
        ShapeTask(task, tuple(upstream), tuple(constants), seconds, nbytes)
        for task, upstream, constants, seconds, nbytes in kept["tasks"]
    ]
    return Shape(name, tasks, kept["constants"], kept["about"])
