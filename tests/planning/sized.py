"""How well runs of a virtual workflow are predicted whose costs follow the sizes of its inputs.

History has a few runs at 0.8 to 1.4 times a workflow's size. Runs at another size are predicted and
simulated, and every cost of theirs deviates by 5 %.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from statistics import NormalDist, fmean, median
from typing import Protocol

from shoal import Resources
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


@dataclass(frozen=True)
class Chance:
    """How the costs of a run deviate."""

    seed: str
    noise: float = 0.05
    """How much each deviates."""
    pace: float = 0.0
    """How much all executions of the run deviate."""


class World(Costs):
    """The costs of one run."""

    def __init__(self, workflow: Workflow, size: float, chance: Chance) -> None:
        self.workflow = workflow
        self.size = size
        self.made: dict[TaskId, int] = {}
        """The size of each output so far."""
        self._rng = random.Random(chance.seed)
        self._noise = chance.noise
        self._pace = exp(self._rng.gauss(0.0, chance.pace))

    @abstractmethod
    def usual(self, task: TaskId, nbytes: int) -> float:
        """Return what a task takes for its input."""

    @abstractmethod
    def made_of(self, task: TaskId, nbytes: int) -> float:
        """Return the size of a task's output."""

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

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """Return the size of the task's output."""
        nbytes = self.made[task] = round(self.made_of(task, input_nbytes))
        return nbytes


class Kind(Protocol):
    """A workflow and what it costs, at any size."""

    def build(self, size: float) -> Workflow:
        """Build the workflow."""
        ...

    def world(self, workflow: Workflow, size: float, chance: Chance) -> World:
        """Return the costs of a run."""
        ...


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
            f"{fmean(self.execute):5.1%} (worst {max(self.execute):5.1%}, model "
            f"{fmean(self.expected):5.1%})  P90 kept {fmean(self.kept):4.0%}, "
            f"{fmean(self.careful):+6.1%} (worst {max(self.careful):+6.1%})"
        )


def pool() -> WarmPool[Resources]:
    return WarmPool(8, 7.0)


def history_of(kind: Kind, seed: int, runs: int, chance: Chance) -> tuple[Plan, list[Samples]]:
    """Simulate runs at 0.8 to 1.4 times the size; return their plan and samples."""
    rng = random.Random(f"sizes {seed}")
    plan: Plan | None = None
    blocks: list[Samples] = []
    for number in range(runs):
        size = 0.8 + 0.6 * (number + rng.random()) / runs
        workflow = kind.build(size)
        world = kind.world(workflow, size, replace(chance, seed=f"{seed} past {number}"))
        if plan is None:
            at_first = Conditions(DefaultCosts(world.constants), WORKERS, SMALL, pool=pool)
            plan = UniformPlanner().plan(workflow, at_first)
        blocks.append(recorded(plan.of(workflow), world))
    assert plan is not None
    rng.shuffle(blocks)
    return plan, blocks


def recorded(plan: Plan, world: World) -> Samples:
    """Simulate a run; return its samples."""
    timeline = simulate(plan, world, pool())
    return decode_samples(encode_samples(plan.workflow, plan.workers, timeline, world.constants))


def measured(
    kinds: Callable[[int], Kind], size: float, seeds: Sequence[int], *, runs: int = 6,
    repeats: int = 200, noise: float = 0.05, pace: float = 0.0,
) -> Errors:  # fmt: skip
    """Measure predictions at a size against runs of the same plan, for several histories."""
    errors = Errors()
    for seed in seeds:
        _measure(errors, kinds(seed), size, seed, runs, repeats, Chance("", noise, pace))
    return errors


def _measure(
    errors: Errors, kind: Kind, size: float, seed: int, runs: int, repeats: int, chance: Chance
) -> None:
    plan, blocks = history_of(kind, seed, runs, chance)
    workflow = kind.build(size)
    plan = plan.of(workflow)

    def world(name: str, chance: Chance = chance) -> World:
        return kind.world(workflow, size, replace(chance, seed=f"{seed} {name}"))

    learnt = LearntPredictions(workflow, blocks, DefaultCosts(world("").constants))
    known = Conditions(learnt, WORKERS, SMALL, pool=pool)
    took = [makespan_of(plan, world(f"to come {n}"), pool()) for n in range(repeats)]
    preview = Preview(plan, known)
    promise = Preview(plan, known, Percentile(90))
    promise.makespans = preview.makespans
    errors.median.append(preview.makespan / median(took) - 1)
    errors.kept.append(fmean([seconds <= promise.makespan for seconds in took]))
    errors.careful.append(promise.makespan / (median(took) * level_of(took, 0.9)) - 1)
    for found, run in (
        (errors.execute, world("executed")),
        (errors.expected, world("usual", Chance("", 0.0, 0.0))),
    ):
        block = recorded(plan, run)
        costs = learnt.at("median")
        found.append(prediction_errors(costs, block.samples, list(workflow.calls))["execute"])


def level_of(took: Sequence[float], share: float) -> float:
    """Return a percentile relative to the median, of a distribution like these few."""
    rows = sorted(took)
    near = [each / median(rows) for each in rows]
    spread = (near[round(0.84 * (len(rows) - 1))] - near[round(0.16 * (len(rows) - 1))]) / 2
    return 1 + spread * NormalDist().inv_cdf(share)
