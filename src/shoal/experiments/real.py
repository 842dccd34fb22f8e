"""`RealStage`: carries plans out in real sandboxes; tasks sleep for as long as they would work.

Every run begins cold: sandboxes that an earlier one left idle are removed first. The result of each
is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from shoal.clock import RealClock
from shoal.errors import ShoalError, UsageError
from shoal.execution.plan import Plan
from shoal.execution.timeline import Timeline
from shoal.experiments.centralised.scheduler import (
    PARALLEL_INVOKERS,
    PUB_SUB,
    STRAWMAN,
    CentralScheduler,
)
from shoal.experiments.grid import SMALL, Cell, Grid
from shoal.experiments.records import Row
from shoal.experiments.shapes import Shape, counted, shape_named
from shoal.experiments.tree_reduction import tree_reduction
from shoal.experiments.world import Service
from shoal.planning.base import Conditions
from shoal.planning.prices import PRICES
from shoal.platform.gateway import LocalGateway
from shoal.session import Session
from shoal.types import TaskId
from shoal.workflow import Output, Workflow

ELSEWHERE = "elsewhere"
"""Where clients think that sandboxes are: large outputs then go through the store with its latency,
as they would between machines, and not through shared memory."""
_DESIGNS = {"strawman": STRAWMAN, "pubsub": PUB_SUB, "parallel-invokers": PARALLEL_INVOKERS}
_PATIENCE = 120.0
"""Seconds beyond its work that a run may take."""


class RealStage:
    """A session of its own, in the set-up of a grid."""

    mode = "real"
    emulates = True

    def shape(self, workflow: str) -> Shape:
        """As measured."""
        return shape_named(workflow)

    def __init__(self, grid: Grid, folder: str) -> None:
        """Start the gateway and the store.

        Args:
            grid: What is run.
            folder: Where logs go.
        """
        self.session = Session(
            latency=grid.latency,
            sandboxes=grid.sandboxes,
            idle_seconds=grid.idle_seconds,
            workers=grid.workers,
            memory_mb=SMALL.memory_mb,
            history=False,
            progress=False,
            folder=folder,
        )
        assert isinstance(self.session.platform, LocalGateway)
        self._gateway = self.session.platform
        self._gateway.host = ELSEWHERE

    def carry_out(self, plan: Plan, shape: Shape, service: Service, seed: str) -> Timeline:
        """What was recorded."""
        seconds = {
            task: service.seconds(task, placement.resources)
            for task, placement in plan.placements.items()
        }
        self._gateway.cool()
        output = self._output(shape, seconds)
        run = self.session.submit(output, planner=_Given(plan), name=shape.name)
        value = run.result(timeout=_PATIENCE + sum(seconds.values()))
        if not self._right(shape, value):
            raise ShoalError(f"{seed}: the result is wrong.")
        return run.timeline

    def _output(self, shape: Shape, seconds: Mapping[TaskId, float]) -> Output[Any]:
        return shape.output(seconds.__getitem__)

    def _right(self, shape: Shape, value: Any) -> bool:
        return counted(value) == shape.expected

    def centrally(self, grid: Grid, cell: Cell, repeat: int, seed: int) -> Row:
        """A run under a central scheduler; what its functions did isn't recorded in detail."""
        shape = self.shape(cell.workflow)
        service = Service(shape, grid.work, f"{seed}/{cell}/{repeat}")
        output = self._output(shape, {task: service.seconds(task, SMALL) for task in shape.ids})
        with CentralScheduler(self.session) as central:
            begin = RealClock().now()
            (value,) = central.compute(output, design=_DESIGNS[cell.planner])
            status = central.gateway.status()
        if not self._right(shape, value):
            raise ShoalError(f"{cell}/{repeat}: the result is wrong.")
        starts, held = status["invocations"], status["busy_seconds"] * SMALL.memory_mb / 1024
        prices = PRICES["aws-lambda"]
        return Row(
            id=f"{cell}/{repeat}", workflow=cell.workflow, planner=cell.planner, sla=cell.sla,
            repeat=repeat, mode=self.mode, tasks=len(shape.tasks),
            makespan=central.ended - begin, gb_seconds=held,
            price=held * prices.gb_second + (starts["cold"] + starts["warm"]) * prices.invocation,
            startup=0.0, waiting=0.0, executing=sum(service.seconds(t, SMALL) for t in shape.ids),
            fetching=0.0, saving=0.0, uploaded=0, downloaded=0, operations=0,
            cold=starts["cold"], warm=starts["warm"], workers=len(shape.tasks), planning=0.0,
        )  # fmt: skip

    def close(self) -> None:
        """End the gateway and the store."""
        self.session.close()

    def __enter__(self) -> RealStage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ComputingStage(RealStage):
    """Tasks compute; the workflows are so small that two cores bear them."""

    emulates = False

    def __init__(self, grid: Grid, folder: str) -> None:
        super().__init__(grid, folder)
        self._known: dict[str, tuple[Shape, Any]] = {}

    def shape(self, workflow: str) -> Shape:
        """Measured here, when it is first asked for."""
        if workflow not in SMALL_WORKFLOWS:
            names = ", ".join(SMALL_WORKFLOWS)
            raise UsageError(f"There is no small version of {workflow!r}; there are {names}.")
        if workflow not in self._known:
            from shoal.experiments.measuring import evaluated

            self._known[workflow] = evaluated(workflow, SMALL_WORKFLOWS[workflow](), "small")
        return self._known[workflow][0]

    def _output(self, shape: Shape, seconds: Mapping[TaskId, float]) -> Output[Any]:
        return SMALL_WORKFLOWS[shape.name]()

    def _right(self, shape: Shape, value: Any) -> bool:
        from shoal.experiments.arrays import np

        expected = self._known[shape.name][1]
        if isinstance(expected, np.ndarray):
            return bool(np.array_equal(value, expected))
        return bool(value == expected)


def _text() -> Output[Any]:
    from shoal.experiments.text_analysis import generate_text, text_analysis

    return text_analysis(generate_text(20_000))


def _matrix() -> Output[Any]:
    from shoal.experiments.matrix_multiplication import matrix_multiplication

    return matrix_multiplication(400)


def _image() -> Output[Any]:
    from shoal.experiments.image_transformation import image_transformation

    return image_transformation(width=600, height=400)


SMALL_WORKFLOWS: Mapping[str, Callable[[], Output[Any]]] = {
    "matrix": _matrix,
    "tree": tree_reduction,
    "text": _text,
    "image": _image,
}
"""The workflows whose tasks compute, at sizes that two cores bear."""


class _Given:
    """A planner that has its plan already."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        return self._plan.of(workflow)
