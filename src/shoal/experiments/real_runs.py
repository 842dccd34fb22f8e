"""Define `RealRunner`, which executes plans in real sandboxes with tasks that sleep.

Every run starts cold: idle sandboxes of earlier runs are removed first. Each result is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shoal.clock import RealClock
from shoal.errors import ShoalError, UsageError
from shoal.execution.costs import Predictions
from shoal.execution.plan import Plan
from shoal.execution.timeline import Timeline
from shoal.experiments.centralised.scheduler import (
    PARALLEL_INVOKERS,
    PUB_SUB,
    STRAWMAN,
    CentralScheduler,
)
from shoal.experiments.grid import PEERS, SMALL, Cell, Grid
from shoal.experiments.records import Row
from shoal.experiments.shapes import Shape, counted
from shoal.experiments.sweeps import version
from shoal.experiments.tree_reduction import tree_reduction
from shoal.experiments.virtual_costs import Service
from shoal.planning.base import Conditions
from shoal.planning.prices import PRICES
from shoal.platform.gateway import LocalGateway
from shoal.session import Session
from shoal.types import TaskId
from shoal.workflow import Output, Workflow

if TYPE_CHECKING:
    from shoal.experiments.dask_peer import DaskPeer

_DESIGNS = {"strawman": STRAWMAN, "pubsub": PUB_SUB, "parallel-invokers": PARALLEL_INVOKERS}
_EXTRA_SECONDS = 120.0
"""How many seconds a run may take beyond its work."""
_GB = SMALL.memory_mb / 1024


@dataclass(frozen=True, slots=True)
class _Used:
    """What a run without a plan took."""

    makespan: float
    gb_seconds: float
    workers: int
    cold: int = 0
    warm: int = 0


class RealRunner:
    """Runs plans in a session of its own, set up for a grid."""

    mode = "real"
    emulates = True

    def __init__(self, grid: Grid, folder: str) -> None:
        """Start the gateway and the store.

        Args:
            grid: The grid to run.
            folder: The folder for logs.
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
        # Large outputs go through the store with its latency, as between machines.
        self._gateway.shares_memory = False
        self._grid = grid
        self._peer: tuple[str, DaskPeer] | None = None

    def shape(self, workflow: str) -> Shape:
        """Return the shape of a workflow of the grid."""
        return self._grid.shape(workflow)

    def adapted(self, predictions: Predictions) -> Predictions:
        """Return the predictions as they are: workers fetch a task's inputs together."""
        return predictions

    def carry_out(self, plan: Plan, shape: Shape, service: Service, seed: str) -> Timeline:
        """Run a plan and return the recorded timeline."""
        seconds = {
            task: service.seconds(task, placement.resources)
            for task, placement in plan.placements.items()
        }
        self._end_peer()
        self._gateway.cool()
        outputs = self._outputs(shape, seconds)
        run = self.session.submit(outputs, planner=_Given(plan), name=shape.name)
        run.result(timeout=_EXTRA_SECONDS + sum(seconds.values()))
        if not self._right(shape, run.values()):
            raise ShoalError(f"{seed}: the result is wrong.")
        return run.timeline

    def _outputs(self, shape: Shape, seconds: Mapping[TaskId, float]) -> list[Output[Any]]:
        return shape.outputs(seconds.__getitem__)

    def _right(self, shape: Shape, values: Sequence[Any]) -> bool:
        return sum(map(counted, values)) == shape.expected

    def run_unplanned(self, grid: Grid, cell: Cell, repeat: int, seed: int) -> Row:
        """Run a workflow with a central scheduler or with Dask, which record no details."""
        shape = self.shape(cell.workflow)
        service = Service(shape, grid.work, f"{seed}/{cell}/{repeat}")
        seconds = {task: service.seconds(task, SMALL) for task in shape.ids}
        self._end_peer(cell.planner)
        run = self._run_on_dask if cell.planner in PEERS else self._run_centrally
        values, used = run(cell.planner, shape, seconds)
        if not self._right(shape, values):
            raise ShoalError(f"{cell}/{repeat}: the result is wrong.")
        workflow, parameters = version(cell.workflow)
        prices = PRICES["aws-lambda"]
        price = used.gb_seconds * prices.gb_second
        price += (used.cold + used.warm) * prices.invocation
        return Row(
            id=f"{cell}/{repeat}", workflow=workflow, planner=cell.planner, sla=cell.sla,
            repeat=repeat, mode=self.mode, tasks=len(shape.tasks), makespan=used.makespan,
            gb_seconds=used.gb_seconds, price=price, startup=0.0, waiting=0.0,
            executing=sum(seconds.values()), fetching=0.0, saving=0.0, uploaded=0, downloaded=0,
            operations=0, cold=used.cold, warm=used.warm, workers=used.workers, planning=0.0,
            parameters=parameters,
        )  # fmt: skip

    def _run_centrally(
        self, design: str, shape: Shape, seconds: Mapping[TaskId, float]
    ) -> tuple[Sequence[Any], _Used]:
        with CentralScheduler(self.session) as central:
            begin = RealClock().now()
            values = central.compute(*self._outputs(shape, seconds), design=_DESIGNS[design])
            status = central.gateway.status()
        starts, held = status["invocations"], status["busy_seconds"] * _GB
        makespan = central.ended - begin
        return values, _Used(makespan, held, len(seconds), starts["cold"], starts["warm"])

    def _run_on_dask(
        self, name: str, shape: Shape, seconds: Mapping[TaskId, float]
    ) -> tuple[Sequence[Any], _Used]:
        if self._peer is None:
            self._peer = name, _dask_peer(name)
        peer, begin = self._peer[1], RealClock().now()
        values = peer.run(shape, seconds.__getitem__)
        makespan = RealClock().now() - begin
        return values, _Used(makespan, makespan * peer.slots * _GB, peer.slots)

    def _end_peer(self, keep: str = "") -> None:
        """Stop the workers of Dask, except for those of the design to keep."""
        if self._peer is not None and self._peer[0] != keep:
            self._peer[1].close()
            self._peer = None

    def close(self) -> None:
        """Stop the gateway and the store."""
        self._end_peer()
        self.session.close()

    def __enter__(self) -> RealRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ComputingRunner(RealRunner):
    """Runs small workflows whose tasks compute instead of sleeping."""

    emulates = False

    def __init__(self, grid: Grid, folder: str) -> None:
        super().__init__(grid, folder)
        self._known: dict[str, tuple[Shape, Any]] = {}

    def shape(self, workflow: str) -> Shape:
        """Return the shape of a workflow, measured on first use."""
        if workflow not in SMALL_WORKFLOWS:
            names = ", ".join(SMALL_WORKFLOWS)
            raise UsageError(f"There is no small version of {workflow!r}; choose one of {names}.")
        if workflow not in self._known:
            from shoal.experiments.measure_shapes import evaluated

            self._known[workflow] = evaluated(workflow, SMALL_WORKFLOWS[workflow](), "small")
        return self._known[workflow][0]

    def _outputs(self, shape: Shape, seconds: Mapping[TaskId, float]) -> list[Output[Any]]:
        return [SMALL_WORKFLOWS[shape.name]()]

    def _right(self, shape: Shape, values: Sequence[Any]) -> bool:
        from shoal.farm.arrays import np

        expected, (value,) = self._known[shape.name][1], values
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
"""The workflows whose tasks compute, at sizes suitable for two cores."""


def _dask_peer(name: str) -> DaskPeer:
    from shoal.experiments.dask_peer import DaskPeer

    return DaskPeer(name)


class _Given:
    """A planner that returns a given plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        return self._plan.of(workflow)
