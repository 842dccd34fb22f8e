"""A virtual workflow whose costs follow the sizes of its inputs, and how well they are predicted.

Ten tasks of 43 in all, on chunks of a log and of a signal: some take time in proportion to what
they read, some more, some less, and some always the same. Every cost deviates by 5 %.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log2
from statistics import NormalDist, fmean, median
from typing import Any

from shoal import Resources, task
from shoal.execution.costs import Costs, Direction
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import makespan_of, simulate
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.quality import prediction_errors
from shoal.metadata.samples import Samples, decode_samples, encode_samples
from shoal.planning.base import Conditions
from shoal.planning.preview import Preview
from shoal.planning.uniform import UniformPlanner
from shoal.types import Percentile, TaskId
from shoal.workflow import Workflow

MB = 1_000_000
WORKERS = 4
SMALL = Resources(2048)
CHUNKS = (3, 5, 8, 4, 6, 9)
"""The sizes of the log's chunks at size 1, in MB."""
POINTS = (200_000, 350_000, 500_000, 275_000)
"""The points in each signal at size 1."""


@task(name="sized.parse")
def parse(chunk: Any) -> Any: ...


@task(name="sized.order")
def order(rows: Any) -> Any: ...


@task(name="sized.pack")
def pack(rows: Any) -> Any: ...


@task(name="sized.match")
def match(rows: Any, patterns: Any) -> Any: ...


@task(name="sized.signal")
def signal(points: int) -> Any: ...


@task(name="sized.spectrum")
def spectrum(signal: Any) -> Any: ...


@task(name="sized.similar")
def similar(one: Any, other: Any) -> Any: ...


@task(name="sized.patterns")
def patterns() -> Any: ...


@task(name="sized.merge")
def merge(*parts: Any) -> Any: ...


@task(name="sized.report")
def report(*parts: Any) -> Any: ...


def sized(size: float) -> Workflow:
    """Build the workflow, with inputs of a relative size."""
    known = patterns()
    packed, found = [], []
    for _ in CHUNKS:
        rows = parse("a chunk")
        packed.append(pack(order(rows)))
        found.append(match(rows, known))
    spectra = [spectrum(signal(round(points * size))) for points in POINTS]
    near = [similar(one, other) for one, other in zip(spectra[::2], spectra[1::2], strict=True)]
    merged = [merge(*packed[i : i + 2]) for i in range(0, len(packed), 2)]
    return Workflow.of(report(merge(*merged), merge(*found), *near))


def constants_of(workflow: Workflow, size: float) -> dict[TaskId, dict[TaskId, int]]:
    """The sizes of the chunks."""
    parses = [name for name, call in workflow.calls.items() if call.task is parse]
    return {
        name: {TaskId(f"constant:{n}"): round(CHUNKS[n] * size * MB)}
        for n, name in enumerate(parses)
    }


def _log(nbytes: float) -> float:
    return log2(max(nbytes, 2.0)) / 20


class World(Costs):
    """The costs of one run at a size."""

    def __init__(
        self, workflow: Workflow, size: float, seed: str, noise: float = 0.05, pace: float = 0.0
    ) -> None:
        self.sized_constants = constants_of(workflow, size)
        self._workflow = workflow
        self._rng = random.Random(seed)
        self._noise = noise
        self._pace = exp(self._rng.gauss(0.0, pace))
        self._made: dict[TaskId, int] = {}

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The chunks."""
        return self.sized_constants

    def _off(self) -> float:
        return exp(self._rng.gauss(0.0, self._noise))

    def launch(self) -> float:
        """Return 20 ms."""
        return 0.02 * self._off()

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return 10 or 60 ms."""
        return (0.01 if warm else 0.06) * self._off()

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Return 2 ms, and the time at 150 MB/s."""
        return (0.002 + nbytes / (150 * MB)) * self._off()

    def coordination(self) -> float:
        """Return a millisecond."""
        return 0.001 * self._off()

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return what the task takes for its input, times the deviation."""
        return self.usual(task, input_nbytes) * self._pace * self._off()

    def usual(self, task: TaskId, nbytes: int) -> float:
        """Return what the task takes for its input."""
        call, mb = self._workflow.calls[task], nbytes / MB
        match call.task.name.partition(".")[2]:
            case "parse":
                return 0.05 * mb
            case "order":
                return 0.03 * mb * _log(nbytes / 20)
            case "pack":
                return 0.03 + 0.04 * mb
            case "match":
                rows = self._made[self._workflow.upstream[task][0]] / MB
                return 0.02 + 0.06 * rows
            case "signal":
                return 0.4e-6 * call.args[0]
            case "spectrum":
                return 0.06 * mb * _log(nbytes / 16)
            case "similar":
                return 0.004 * mb**1.6
            case "patterns":
                return 0.08
            case "merge":
                return 0.01 + 0.02 * mb
        return 0.1

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """Return the size of the task's output."""
        call = self._workflow.calls[task]
        shares = {"parse": 0.7, "order": 1.0, "pack": 0.3, "match": 0.05, "spectrum": 2.0,
                  "merge": 0.95}  # fmt: skip
        name = call.task.name.partition(".")[2]
        if name == "signal":
            nbytes = 8 * call.args[0]
        elif name == "patterns":
            nbytes = 2 * MB
        else:
            nbytes = round(shares[name] * input_nbytes) if name in shares else 2000
        self._made[task] = nbytes
        return nbytes


def pool() -> WarmPool[Resources]:
    return WarmPool(8, 7.0)


@dataclass
class Errors:
    """What predictions at one size were like."""

    median: list[float] = field(default_factory=list)
    """How far the median makespan was off, for each history."""
    execute: list[float] = field(default_factory=list)
    """The median relative error of executions, for each history."""
    kept: list[float] = field(default_factory=list)
    """The share of runs that were no longer than promised at 90 %."""
    careful: list[float] = field(default_factory=list)
    """How far the promise at 90 % was above the true percentile."""
    expected: list[float] = field(default_factory=list)
    """How far the executions' usual times were off, without the noise of the measured run."""

    def __str__(self) -> str:
        worst = max(self.median, key=abs)
        return (
            f"P50 {fmean(self.median):+6.1%} (worst {worst:+6.1%})  execute "
            f"{fmean(self.execute):5.1%} (model {fmean(self.expected):5.1%})  P90 kept "
            f"{fmean(self.kept):4.0%}, {fmean(self.careful):+6.1%} "
            f"(worst {max(self.careful):+6.1%})"
        )


def history_of(seed: int, runs: int, *, noise: float, pace: float) -> tuple[Plan, list[Samples]]:
    """Simulate runs at 0.8 to 1.4 times the size; return their plan and samples."""
    rng = random.Random(f"sizes {seed}")
    plan: Plan | None = None
    blocks: list[Samples] = []
    for number in range(runs):
        size = 0.8 + 0.6 * (number + rng.random()) / runs
        workflow = sized(size)
        world = World(workflow, size, f"{seed} past {number}", noise, pace)
        if plan is None:
            at_first = Conditions(DefaultCosts(world.constants), WORKERS, SMALL, pool=pool)
            plan = UniformPlanner().plan(workflow, at_first)
        timeline = simulate(plan.of(workflow), world, pool())
        encoded = encode_samples(workflow, plan.workers, timeline, world.constants)
        blocks.append(decode_samples(encoded))
    assert plan is not None
    rng.shuffle(blocks)
    return plan, blocks


def measured(
    size: float, seeds: Sequence[int], *, runs: int = 6, repeats: int = 200,
    noise: float = 0.05, pace: float = 0.0,
) -> Errors:  # fmt: skip
    """Measure predictions at a size against runs of the same plan, for several histories."""
    errors = Errors()
    for seed in seeds:
        plan, blocks = history_of(seed, runs, noise=noise, pace=pace)
        workflow = sized(size)
        plan = plan.of(workflow)
        learnt = LearntPredictions(workflow, blocks, DefaultCosts(constants_of(workflow, size)))
        known = Conditions(learnt, WORKERS, SMALL, pool=pool)
        worlds = [World(workflow, size, f"{seed} to come {n}", noise, pace) for n in range(repeats)]
        took = [makespan_of(plan, world, pool()) for world in worlds]
        preview = Preview(plan, known)
        promise = Preview(plan, known, Percentile(90))
        promise.makespans = preview.makespans
        errors.median.append(preview.makespan / median(took) - 1)
        errors.kept.append(fmean([seconds <= promise.makespan for seconds in took]))
        true = median(took) * _level_of(took, 0.9)
        errors.careful.append(promise.makespan / true - 1)
        for world, kept in (
            (World(workflow, size, f"{seed} executed", noise, pace), errors.execute),
            (World(workflow, size, f"{seed} usual", 0.0, 0.0), errors.expected),
        ):
            timeline = simulate(plan, world, pool())
            block = decode_samples(
                encode_samples(workflow, plan.workers, timeline, world.constants)
            )
            kept.append(
                prediction_errors(learnt.at("median"), block.samples, list(workflow.calls))[
                    "execute"
                ]
            )
    return errors


def _level_of(took: Sequence[float], share: float) -> float:
    """Return a percentile relative to the median, of a distribution like these few."""
    rows = sorted(took)
    near = [each / median(rows) for each in rows]
    spread = (near[round(0.84 * (len(rows) - 1))] - near[round(0.16 * (len(rows) - 1))]) / 2
    return 1 + spread * NormalDist().inv_cdf(share)
