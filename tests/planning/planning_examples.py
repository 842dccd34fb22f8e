"""Workflows, costs and conditions for tests of planners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal import Resources, task
from shoal.execution.costs import Costs, Direction
from shoal.execution.pool import WarmPool
from shoal.planning.base import Conditions
from shoal.types import SLA, TaskId
from shoal.workflow import Output, Workflow

SMALL, MIDDLE, LARGE = Resources(2048), Resources(4096), Resources(8192)


@task
def step(*sources: Any) -> None: ...


class Table(Costs):
    """Costs from a table; also predictions that are sure of themselves."""

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
        self._seconds = seconds
        self._sizes = sizes
        self._bandwidth = bandwidth
        self._start = start
        self._coordination = coordination
        self.basis = basis

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        return 0.0 if warm else self._start

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        return nbytes / self._bandwidth

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        seconds = self._seconds
        return seconds if isinstance(seconds, int | float) else seconds.get(task, 1.0)

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        return self._sizes if isinstance(self._sizes, int) else self._sizes.get(task, 100)

    def coordination(self) -> float:
        return self._coordination

    def at(self, sla: SLA) -> Costs:
        return self

    def sampled(self, seed: int) -> Costs:
        return self


def conditions(costs: Table, workers: int = 4, **options: Any) -> Conditions:
    options.setdefault("pool", lambda: WarmPool(64, 7.0))
    return Conditions(costs, workers, options.pop("resources", SMALL), **options)


def tree(leaves: int) -> Output[Any]:
    level = [step() for _ in range(leaves)]
    while len(level) > 1:
        level = [step(*level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]


def fan(width: int) -> Output[Any]:
    first = step()
    return step(*[step(first) for _ in range(width)])


def chain(length: int) -> Output[Any]:
    output = step()
    for _ in range(length - 1):
        output = step(output)
    return output


def homes(placements: Mapping[TaskId, Any]) -> dict[str, list[str]]:
    """The tasks of each worker, by their numbers."""
    found: dict[str, list[str]] = {}
    for name, placement in placements.items():
        found.setdefault(placement.worker, []).append(name.rpartition("#")[2])
    return found


def workflow(output: Output[Any]) -> Workflow:
    return Workflow.of(output)
