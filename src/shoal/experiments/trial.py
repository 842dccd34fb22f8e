"""Run a trial: plan a configuration from its history, execute the plan and record the run.

Both modes share plans, work and records. Only the execution differs: the simulator on the virtual
clock (`VirtualRunner`), or workers in sandboxes (`real_runs.RealRunner`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

from shoal.clock import VirtualClock
from shoal.execution.costs import Predictions
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import simulate
from shoal.execution.timeline import STARTS, Timeline
from shoal.experiments.grid import IDEAL_STORAGE, PLANNERS, SMALL, Cell, Grid
from shoal.experiments.platforms import OneByOne, platform_named
from shoal.experiments.records import Row
from shoal.experiments.shapes import Shape
from shoal.experiments.sweeps import version
from shoal.experiments.virtual_costs import PlatformCosts, Service, VirtualCosts
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.quality import prediction_errors
from shoal.metadata.samples import Samples, decode_samples, encode_samples
from shoal.planning.base import Conditions
from shoal.planning.choice import planned
from shoal.planning.preview import Preview
from shoal.planning.prices import PRICES, cost_of
from shoal.types import Resources, WorkerId

READ = 20
"""How many runs a plan learns from, as in a session."""
_OPERATIONS = (*STARTS, "save", "fetch", "deliver", "leave")
"""What a worker doesn't do without the store."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a run."""

    row: Row
    timeline: Timeline
    block: bytes
    """The run's encoded samples."""


class TrialRunner(Protocol):
    """Executes plans."""

    mode: str
    emulates: bool
    """Whether tasks sleep instead of computing."""

    def shape(self, workflow: str) -> Shape:
        """Return the shape of a workflow by its name."""
        ...

    def adapted(self, predictions: Predictions) -> Predictions:
        """Add what is known about the platform to predictions."""
        ...

    def carry_out(self, plan: Plan, shape: Shape, service: Service, seed: str) -> Timeline:
        """Execute a plan without warm sandboxes, and return its timeline."""
        ...


class VirtualRunner:
    """Executes plans in the simulator."""

    mode = "virtual"
    emulates = True

    def __init__(self, grid: Grid, platform: PlatformCosts | None = None) -> None:
        self._grid = grid
        self._platform = platform or platform_named(grid.platform)

    def shape(self, workflow: str) -> Shape:
        """Return the shape of a workflow of the grid."""
        return self._grid.shape(workflow)

    def adapted(self, predictions: Predictions) -> Predictions:
        """Fetch inputs one by one if the platform does."""
        return OneByOne(predictions) if self._platform.each_input else predictions

    def carry_out(self, plan: Plan, shape: Shape, service: Service, seed: str) -> Timeline:
        """Simulate a plan and return its timeline."""
        clock = VirtualClock()
        world = VirtualCosts(shape, service, self._platform, self._grid.latency, seed, clock)
        pool, workers = cold_pool(self._grid), self._grid.workers
        return simulate(plan, world, pool, clock, workers=workers)


def cold_pool(grid: Grid) -> WarmPool[Resources]:
    """Return the platform's pool before a run, without warm sandboxes."""
    return WarmPool(grid.sandboxes, grid.idle_seconds)


def preview_of(
    grid: Grid, cell: Cell, shape: Shape, runs: list[Samples], stage: TrialRunner
) -> Preview:
    """Plan a configuration from the samples of earlier runs, latest first."""
    workflow = shape.workflow
    defaults = DefaultCosts(shape.constant_sizes, grid.latency)
    learnt = LearntPredictions(workflow, runs[:READ], defaults) if runs else defaults
    conditions = Conditions(
        predictions=stage.adapted(learnt),
        workers=grid.workers,
        resources=SMALL,
        pool=lambda: cold_pool(grid),
    )
    planner = PLANNERS[cell.planner](cell.level, workflow, conditions)
    return planned(workflow, conditions, planner)


def run_trial(
    grid: Grid, cell: Cell, repeat: int | str, seed: int, runs: list[Samples], stage: TrialRunner
) -> Trial:
    """Plan a configuration and run it.

    Args:
        grid: The grid of the configuration.
        cell: The configuration.
        repeat: The run's number; that of a warm-up run begins with a letter.
        seed: The experiment's seed.
        runs: The samples of earlier runs, latest first.
        stage: The runner that executes the plan.
    """
    shape = stage.shape(cell.workflow)
    if cell.planner == IDEAL_STORAGE:
        shape = shape.weightless
    name = f"{cell}/{repeat}"
    preview = preview_of(grid, cell, shape, runs, stage)
    counts = isinstance(repeat, int)
    promised = preview.makespan if counts and runs else None
    service = Service(shape, grid.work, f"{seed}/{name}")
    timeline = stage.carry_out(preview.plan, shape, service, f"{seed}/{name}")
    workers = preview.plan.workers_of(timeline.workers)
    if stage.emulates:
        timeline = _with_cpu(timeline, service, workers)
    block = encode_samples(shape.workflow, workers, timeline, shape.constant_sizes)
    row = _row(grid, cell, repeat if isinstance(repeat, int) else -1, preview, timeline, stage.mode)
    row = replace(row, id=name, predicted=promised)
    if promised is not None:
        row = _judged(row, preview, decode_samples(block))
    return Trial(row, timeline, block)


def _with_cpu(
    timeline: Timeline, service: Service, workers: Mapping[WorkerId, Resources]
) -> Timeline:
    """Set the CPU time that sleeping represents."""
    spans = [
        replace(span, cpu=service.cpu(span.seconds, workers[span.worker]))
        if span.kind == "execute"
        else span
        for span in timeline.spans
    ]
    return Timeline(tuple(spans), timeline.makespan, timeline.shards)


def _judged(row: Row, preview: Preview, found: Samples) -> Row:
    """Add the prediction errors to the row."""
    costs = preview.conditions.predictions.at("median")
    errors = prediction_errors(costs, found.samples, list(preview.plan.workflow.calls))
    return replace(
        row,
        predicted_median=median(preview.makespans),
        execution_error=errors.get("execute"),
        transfer_error=errors.get("transfer"),
        startup_error=errors.get("start"),
    )


def _row(
    grid: Grid, cell: Cell, repeat: int, preview: Preview, timeline: Timeline, mode: str
) -> Row:
    plan = preview.plan
    workflow, parameters = version(cell.workflow)
    cost = cost_of(plan, timeline, PRICES["aws-lambda"])
    seconds: dict[str, Any] = {
        kind: sum(span.seconds for span in timeline.of_kind(*kinds))
        for kind, kinds in _PARTS.items()
    }
    return Row(
        id="",
        workflow=workflow,
        parameters=parameters,
        planner=cell.planner,
        sla=cell.sla,
        repeat=repeat,
        mode=mode,
        tasks=len(plan.workflow),
        makespan=timeline.makespan,
        gb_seconds=cost.gb_seconds,
        price=cost.price,
        waiting=waiting(timeline),
        uploaded=sum(span.nbytes for span in timeline.of_kind("save")),
        downloaded=sum(span.nbytes for span in timeline.of_kind("fetch")),
        operations=len([s for s in timeline.of_kind(*_OPERATIONS) if not s.came_along]),
        cold=len(timeline.of_kind("cold start")),
        warm=len(timeline.of_kind("warm start")),
        workers=len(timeline.lives),
        planning=preview.planning,
        **seconds,
    )


_PARTS = {
    "startup": STARTS,
    "executing": ("execute",),
    "fetching": ("fetch",),
    "saving": ("save",),
}


def waiting(timeline: Timeline) -> float:
    """Return the seconds in which workers were idle, summed over workers."""
    busy: dict[WorkerId, list[tuple[float, float]]] = {}
    for span in timeline.spans:
        if span.kind != "deliver":
            busy.setdefault(span.worker, []).append((span.start, span.end))
    there = sum(end - begin for lives in timeline.lives.values() for begin, end in lives)
    return max(0.0, there - sum(map(_union, busy.values())))


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals that are sorted by start."""
    total, until = 0.0, float("-inf")
    for start, end in spans:
        if end > until:
            total += end - max(start, until)
            until = end
    return total
