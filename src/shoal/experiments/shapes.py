"""`Shape`: a workflow as it was measured: its tasks, how long each computes, what it returns.

1. The shapes of the papers' workflows are data (`shapes.json`), measured once by `measuring` at the
   papers' sizes, so that experiments on any machine do the same work.
2. A shape becomes a workflow of the same wiring whose tasks sleep instead of computing, and return
   as many bytes. Each counts the outputs that went into its own, so that a result can be checked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from shoal.errors import UsageError
from shoal.types import TaskId
from shoal.workflow import Output, Task, Workflow

FILE = "shapes.json"
_SMALL = 1024
"""Bytes: outputs up to here are plain numbers, for nobody sees the difference."""


@dataclass(frozen=True, slots=True)
class ShapeTask:
    """A task as it was measured."""

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
    """A workflow as it was measured; each task stands after those whose outputs it takes."""

    name: str
    tasks: Sequence[ShapeTask]
    constants: Sequence[int]
    """The sizes of large constant arguments."""
    about: str = ""
    """What was measured."""

    def output(
        self, seconds: Callable[[TaskId], float] = lambda task: 0.0, *, hollow: bool = False
    ) -> Output[Any]:
        """The workflow in which each task sleeps for a time.

        Args:
            seconds: How long a task sleeps.
            hollow: Whether large constants are left out, for workflows that aren't run.
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
        return outputs[-1]

    @cached_property
    def ids(self) -> tuple[TaskId, ...]:
        """What each task is called in a workflow of this shape."""
        counts: dict[str, int] = {}
        named = []
        for task in self.tasks:
            count = counts[task.name] = counts.get(task.name, -1) + 1
            named.append(TaskId(f"{task.name}#{count}"))
        return tuple(named)

    @cached_property
    def workflow(self) -> Workflow:
        """The workflow, to be planned and simulated."""
        return Workflow.of(self.output(hollow=True))

    @cached_property
    def of_task(self) -> Mapping[TaskId, ShapeTask]:
        """Each task by its name in the workflow."""
        return dict(zip(self.ids, self.tasks, strict=True))

    @cached_property
    def constant_sizes(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The large constants of tasks, as the simulator wants to know them."""
        return {
            named: {TaskId(f"constant:{i}"): self.constants[i] for i in task.constants}
            for named, task in self.of_task.items()
            if task.constants
        }

    @cached_property
    def expected(self) -> int:
        """What the last task has counted."""
        counts: list[int] = []
        for task in self.tasks:
            counts.append((1 + sum(counts[i] for i in task.upstream)) % 2**31)
        return counts[-1]


def work(seconds: float, nbytes: int, constants: int, *inputs: Any) -> Any:
    """Sleep, and return so many bytes that begin with how many outputs went into them.

    Args:
        seconds: How long to sleep.
        nbytes: The size of the output.
        constants: So many of the inputs are constants, which come first and don't count.
        *inputs: What the task takes.
    """
    if seconds > 0:
        time.sleep(seconds)
    count = (1 + sum(map(counted, inputs[constants:]))) % 2**31
    if nbytes <= _SMALL:
        return count
    from shoal.experiments.arrays import np

    made = np.zeros(max(nbytes // 8, 1), np.int64)
    made[0] = count
    return made


def counted(value: Any) -> int:
    """How many outputs went into one."""
    return value if isinstance(value, int) else int(value[0])


def _constant(number: int, nbytes: int) -> Any:
    from shoal.experiments.arrays import np

    return np.full(max(nbytes // 8, 1), number, np.int64)


def shape_named(name: str) -> Shape:
    """The shape of one of the papers' workflows."""
    known = _known()
    if name not in known:
        raise UsageError(f"There is no workflow {name!r}; there are {', '.join(known)}.")
    return known[name]


@cache
def _known() -> dict[str, Shape]:
    text = files("shoal.experiments").joinpath(FILE).read_text()
    return {name: decoded(name, kept) for name, kept in json.loads(text).items()}


def encoded(shape: Shape) -> dict[str, Any]:
    """A shape as it is kept."""
    tasks = [[t.name, t.upstream, t.constants, t.seconds, t.nbytes] for t in shape.tasks]
    return {"about": shape.about, "constants": list(shape.constants), "tasks": tasks}


def decoded(name: str, kept: Mapping[str, Any]) -> Shape:
    """A shape that was kept."""
    tasks = [
        ShapeTask(task, tuple(upstream), tuple(constants), seconds, nbytes)
        for task, upstream, constants, seconds, nbytes in kept["tasks"]
    ]
    return Shape(name, tasks, kept["constants"], kept["about"])
