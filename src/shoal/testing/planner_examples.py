"""Workflows, costs and conditions for tests of planners."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from shoal.execution.pool import WarmPool
from shoal.planning.base import Conditions
from shoal.testing.table_costs import TableCosts
from shoal.types import Resources
from shoal.workflow import Output, Workflow, task

SMALL, MIDDLE, LARGE = Resources(2048), Resources(4096), Resources(8192)
SEEDS = range(4)


@task
def step(*sources: Any) -> None:
    """Take any inputs; planners and simulations never call it."""


@task
def other(*sources: Any) -> None:
    """Like `step`, with a history of its own."""


def chain(length: int) -> Output[Any]:
    """Return the last of several tasks in a row."""
    output = step()
    for _ in range(length - 1):
        output = step(output)
    return output


def tree(leaves: int) -> Output[Any]:
    """Return the root of a binary tree."""
    level = [step() for _ in range(leaves)]
    while len(level) > 1:
        level = [step(*level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]


def fan(width: int) -> Output[Any]:
    """Return a task that takes the outputs of many, which all take the output of one."""
    first = step()
    return step(*[step(first) for _ in range(width)])


def random_outputs(seed: int) -> list[Output[Any]]:
    """Return all outputs of a random graph."""
    rng = random.Random(seed)
    made: list[Output[Any]] = []
    for _ in range(rng.randint(5, 25)):
        count = min(rng.randint(0, 3), len(made))
        made.append(rng.choice((step, other))(*rng.choices(made, k=count)))
    return made


SHAPES: dict[str, Callable[[], list[Output[Any]]]] = {
    "one task": lambda: [step()],
    "chain": lambda: [chain(6)],
    "tree": lambda: [tree(8)],
    "fan": lambda: [fan(9)],
    "unconnected": lambda: [step() for _ in range(7)],
    "repeated": lambda: [step()] * 2,
    **{f"random {seed}": lambda seed=seed: random_outputs(seed) for seed in SEEDS},  # type: ignore[misc]
}
"""The outputs of workflows of each shape."""


def workflow_of(shape: str) -> Workflow:
    """Return a new workflow of a shape."""
    return Workflow.of(*SHAPES[shape]())


def drawn_costs(workflow: Workflow, basis: str = "5 runs") -> TableCosts:
    """Return costs that differ from task to task, the same for every workflow of this shape."""
    rng = random.Random(len(workflow))
    return TableCosts(
        {name: rng.choice((0.01, 0.1, 1.0, 3.0)) for name in workflow.calls},
        {name: rng.choice((10, 10**5, 10**7, 10**8)) for name in workflow.calls},
        start=rng.choice((0.0, 0.1, 1.0)),
        coordination=0.001,
        basis=basis,
    )


def conditions(costs: TableCosts, workers: int = 4, **options: Any) -> Conditions:
    """Return conditions with small workers and room for many of them."""
    options.setdefault("pool", lambda: WarmPool(64, 7.0))
    return Conditions(costs, workers, options.pop("resources", SMALL), **options)
