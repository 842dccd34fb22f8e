"""The share of runs that keep a promised makespan matches its service level.

The world is virtual and stationary: each run has a pace, each cost deviates, and one task in a
hundred takes two to four times as long. History has only a few runs.
"""

from __future__ import annotations

import random
from math import exp
from statistics import fmean, median
from typing import Any

import pytest
from planning_examples import workflow

from shoal import NonUniformPlanner, Percentile, Resources, UniformPlanner, WukongPlanner, task
from shoal.execution.costs import Costs, Direction
from shoal.execution.plan import Placement, Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import makespan_of, simulate
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.samples import Samples, decode_samples, encode_samples
from shoal.planning import preview as previewing
from shoal.planning.base import Conditions, Planner
from shoal.planning.preview import Preview
from shoal.types import SLA, TaskId, WorkerId
from shoal.workflow import Workflow

WORLDS = 25
"""Histories in each case, each of different tasks."""
RUNS = 10
"""Runs that each promise is compared with."""
AT_ONCE = 4
"""How many workers may run at once."""
LEVELS: dict[float, SLA] = {50: "median", 75: Percentile(75), 90: Percentile(90)}
SMALL = Resources(2048)


@task
def load(*_: Any) -> None: ...


@task
def join(*_: Any) -> None: ...


def tree() -> Workflow:
    """Build 8 loads, joined pairwise."""
    level = [load() for _ in range(8)]
    while len(level) > 1:
        level = [join(*level[i : i + 2]) for i in range(0, len(level), 2)]
    return workflow(level[0])


class VirtualCosts(Costs):
    """One run's costs."""

    def __init__(self, world: int, run: str, noise: float) -> None:
        self._rng = random.Random(f"{world} {run}")
        self._world = world
        self._noise = noise
        self._pace = self._off(noise)

    def _off(self, deviation: float) -> float:
        return exp(self._rng.gauss(0.0, deviation))

    def launch(self) -> float:
        """Return 33 ms."""
        return 0.033 * self._off(0.2)

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return 35 or 70 ms."""
        return (0.035 if warm else 0.07) * self._off(0.25)

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Return a round trip plus the time at 300 MB per second."""
        return (0.03 + nbytes / 300e6) * self._off(0.15)

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return about half a second, different for each task."""
        usual = random.Random(f"{self._world} {task}").uniform(0.4, 0.6)
        late = self._rng.uniform(2.0, 4.0) if self._rng.random() < 0.01 else 1.0
        return usual * late * self._pace * self._off(self._noise)

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """Return a size too large to travel with a mark."""
        return 1_000_000

    def coordination(self) -> float:
        """Return a round trip."""
        return 0.03 * self._off(0.15)


def pool() -> WarmPool[Resources]:
    return WarmPool(32, 7.0)


def remembered(flow: Workflow, plan: Plan, world: int, run: str, noise: float) -> Samples:
    """Simulate a run of a plan and return its samples."""
    timeline = simulate(plan, VirtualCosts(world, run, noise), pool(), workers=AT_ONCE)
    workers = plan.workers or plan.workers_of(timeline.workers)
    return decode_samples(encode_samples(flow, workers, timeline, {}))


def kept(case: int, planner: Planner, history: int, noise: float) -> dict[float, list[bool]]:
    """Return whether runs were no longer than promised, by level."""
    flow = tree()
    found: dict[float, list[bool]] = {p: [] for p in LEVELS}
    for world in range(case * WORLDS, (case + 1) * WORLDS):
        plan = planner.plan(flow, Conditions(DefaultCosts(), AT_ONCE, SMALL, pool=pool))
        runs = [remembered(flow, plan, world, f"past {n}", noise) for n in range(history)]
        learnt = LearntPredictions(flow, runs, DefaultCosts())
        known = Conditions(learnt, AT_ONCE, SMALL, pool=pool)
        plan = planner.plan(flow, known)
        took = [
            makespan_of(plan, VirtualCosts(world, f"to come {n}", noise), pool(), workers=AT_ONCE)
            for n in range(RUNS)
        ]
        makespans = Preview(plan, known).makespans
        for p, sla in LEVELS.items():
            preview = Preview(plan, known, sla)
            preview.makespans = makespans
            found[p] += [seconds <= preview.makespan for seconds in took]
    return found


@pytest.mark.slow
def test_the_share_of_runs_that_keep_a_promise_matches_its_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(previewing, "DRAWING_SECONDS", 600.0)
    cases = [
        kept(0, UniformPlanner(), 5, 0.08),
        kept(1, UniformPlanner(), 15, 0.2),
        kept(2, NonUniformPlanner(), 5, 0.15),
        kept(3, WukongPlanner(), 5, 0.08),
    ]
    for p in LEVELS:
        share = 100 * fmean([met for case in cases for met in case[p]])
        assert abs(share - p) < 5, f"{p:g} % promised, {share:.1f} % kept"


class Even(VirtualCosts):
    """Costs without deviation."""

    def _off(self, deviation: float) -> float:
        return 1.0

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return half a second."""
        return 0.5


def test_history_of_simulated_runs_predicts_simulated_runs_without_bias() -> None:
    """Without deviations, predictions equal the recorded run."""
    flow = tree()
    for planner in (UniformPlanner(), WukongPlanner()):
        plan = planner.plan(flow, Conditions(DefaultCosts(), AT_ONCE, SMALL, pool=pool))
        timeline = simulate(plan, Even(0, "", 0.0), pool(), workers=AT_ONCE)
        workers = plan.workers or plan.workers_of(timeline.workers)
        block = decode_samples(encode_samples(flow, workers, timeline, {}))
        learnt = LearntPredictions(flow, [block] * 5, DefaultCosts(latency=0.03))
        known = Conditions(learnt, AT_ONCE, SMALL, pool)
        assert Preview(plan, known).makespan == pytest.approx(timeline.makespan, rel=0.005)


@pytest.mark.slow
def test_a_wide_fan_in_is_predicted_without_bias_however_messages_vary() -> None:
    """Only the last of many messages is recorded, so it isn't drawn for each of them."""

    class Talking(Even):
        def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
            return 100

        def coordination(self) -> float:
            return 0.1 * exp(self._rng.gauss(0.0, 1.0))

    flow = workflow(join(*[load() for _ in range(16)]))
    placements = {
        task: Placement(WorkerId(f"w{n % 16}"), SMALL) for n, task in enumerate(flow.calls)
    }
    plan = Plan(flow, placements)
    past = [simulate(plan, Talking(0, f"past {n}", 0.0), pool()) for n in range(300)]
    usual = median([each.makespan for each in past])
    runs = [decode_samples(encode_samples(flow, plan.workers, each, {})) for each in past]
    ratios = []
    for begin in range(0, len(runs), 20):
        known = LearntPredictions(flow, runs[begin : begin + 20], DefaultCosts())
        drawn = [makespan_of(plan, known.sampled(seed), pool()) for seed in range(60)]
        ratios.append(median(drawn) / usual)
    assert median(ratios) == pytest.approx(1.0, rel=0.1)
