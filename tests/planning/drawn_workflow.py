"""Virtual workflows of drawn shapes, whose costs follow drawn laws.

Nothing in Shoal was fitted to them. A time may follow the size of the whole input or of one input,
or a constant argument; in proportion, with a logarithm or a square, above a constant, or not at
all. Outputs grow or shrink down the graph, in proportion or as a power.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from math import log2
from typing import Any, NamedTuple

from sized import MB, Chance, World

from shoal import task
from shoal.types import TaskId
from shoal.workflow import Output, Task, Workflow

LAYERS = 5
WIDE = 8
TEXTS = ("quick", "careful")


class Law(NamedTuple):
    """How an amount grows, relative to what it is for a megabyte."""

    grows: Callable[[float], float]
    scale: float

    def __call__(self, mb: float) -> float:
        return self.scale * self.grows(mb)


GROWTH: tuple[Callable[[float], float], ...] = (
    lambda mb: mb,
    lambda mb: mb * log2(1000 * mb + 2) / 10,
    lambda mb: mb * mb,
    lambda mb: 0.5 + 0.5 * mb,
    lambda mb: float(mb**0.5),
    lambda mb: float(mb**1.5),
    lambda mb: 1.0,
)
"""The laws of times."""
MADE: tuple[Callable[[float], float], ...] = (
    lambda mb: mb,
    lambda mb: mb,
    lambda mb: float(mb**0.7),
    lambda mb: float(mb**1.3),
    lambda mb: 0.2 + 0.5 * mb,
    lambda mb: 0.001,
)
"""The laws of outputs."""


class Stage(NamedTuple):
    """A function of the workflow."""

    task: Task[..., Any]
    inputs: int
    takes: Law
    makes: Law
    single: bool
    """Whether its time follows its first input alone."""
    by_value: bool
    """Whether it follows a constant argument instead."""
    slow: float
    """How much longer its careful calls take; 1 if it has no such argument."""


@task(name="drawn.end")
def end(*parts: Any) -> Any: ...


def _stage(number: int, rng: random.Random) -> Stage:
    @task(name=f"drawn.stage{number}")
    def stage(*parts: Any, points: int = 0, mode: str = "") -> Any: ...

    inputs = rng.choice((1, 1, 2, 3))
    return Stage(
        stage, inputs, Law(rng.choice(GROWTH), rng.uniform(0.05, 0.3)),
        Law(rng.choice(MADE), rng.choice((0.1, 0.5, 0.9, 1.5, 3.0))),
        inputs > 1 and rng.random() < 0.4, rng.random() < 0.25,
        rng.uniform(1.5, 3.0) if rng.random() < 0.2 else 1.0,
    )  # fmt: skip


class Drawn:
    """One such workflow, and what it costs."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"drawn {seed}")
        self.stages = {f"drawn.stage{n}": _stage(n, self._rng) for n in range(2 * LAYERS)}
        self.roots = [self._rng.uniform(1.0, 6.0) for _ in range(WIDE)]
        self.plan = [self._layer(n) for n in range(LAYERS)]

    def _layer(self, number: int) -> list[tuple[Stage, list[int], float, str]]:
        """Draw the calls of a layer: what each takes from the layer above, and its constants."""
        rng, known = self._rng, list(self.stages.values())
        layer = []
        for n in range(WIDE):
            stage = known[2 * number + (n % 2)]
            sources = rng.sample(range(WIDE), stage.inputs)
            layer.append((stage, sources, rng.uniform(1.0, 6.0), rng.choice(TEXTS)))
        return layer

    def build(self, size: float) -> Workflow:
        """Build the workflow for inputs of a relative size."""
        above: list[Output[Any]] = []
        for layer in self.plan:
            outputs = []
            for stage, sources, points, mode in layer:
                constants: dict[str, Any] = {}
                if stage.by_value:
                    constants["points"] = round(1000 * points * size)
                if stage.slow > 1:
                    constants["mode"] = mode
                parts = [above[source] for source in sources] if above else ["a chunk"]
                outputs.append(stage.task(*parts, **constants))
            above = outputs
        return Workflow.of(end(*above))

    def world(self, workflow: Workflow, size: float, chance: Chance) -> World:
        """Return the costs of a run."""
        return DrawnCosts(self, workflow, size, chance)


class DrawnCosts(World):
    """The costs of one run."""

    def __init__(self, drawn: Drawn, workflow: Workflow, size: float, chance: Chance) -> None:
        super().__init__(workflow, size, chance)
        self._drawn = drawn
        self._roots = [task for task, sources in workflow.upstream.items() if not sources]

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The chunks."""
        return {
            task: {TaskId(f"constant:{n}"): round(self._drawn.roots[n % WIDE] * self.size * MB)}
            for n, task in enumerate(self._roots)
        }

    def usual(self, task: TaskId, nbytes: int) -> float:
        """Return what the task takes for its input."""
        call = self.workflow.calls[task]
        stage = self._drawn.stages.get(call.task.name)
        if stage is None:
            return 0.05
        mb = nbytes / MB
        if stage.by_value:
            mb = call.kwargs["points"] / 1000
        elif stage.single and self.workflow.upstream[task]:
            mb = self.made[self.workflow.upstream[task][0]] / MB
        slow = stage.slow if call.kwargs.get("mode") == "careful" else 1.0
        return stage.takes(mb) * slow

    def made_of(self, task: TaskId, nbytes: int) -> float:
        """Return the size of the task's output."""
        stage = self._drawn.stages.get(self.workflow.calls[task].task.name)
        return 1000.0 if stage is None else max(100.0, stage.makes(nbytes / MB) * MB)
