"""Random scenarios: a plan, costs, the fate of messages, and a pool.

Seconds are multiples of 1/8, so that sums are exact and ties are frequent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

from execution_examples import workflow_of
from hypothesis import strategies as st

from shoal.clock import VirtualClock
from shoal.execution.costs import Costs, Direction
from shoal.execution.events import Event
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.plan import Placement, Plan, Prewarm
from shoal.execution.pool import UNBOUNDED, Acquired, Bound, WarmPool
from shoal.execution.reactions import (
    Duplicate,
    Linger,
    Order,
    Preload,
    RunAfter,
    RunFirst,
    SaveEarly,
    WorkerView,
)
from shoal.execution.simulator import Simulation
from shoal.execution.timeline import Timeline
from shoal.types import MB_PER_CPU, Resources, TaskId, WorkerId

CONFIGURATIONS = [Resources(memory_mb=cpus * MB_PER_CPU) for cpus in (1, 2, 4)]
SECONDS = [0.0, 0.125, 0.25, 0.5, 1.0, 4.0]
SIZES = [0, 1, INLINE_NBYTES, INLINE_NBYTES + 1, 10 * INLINE_NBYTES]


class DrawnCosts(Costs):
    """Costs that differ from call to call."""

    def __init__(
        self,
        seconds: Sequence[float],
        sizes: Sequence[int],
        constants: Mapping[TaskId, Mapping[TaskId, int]] | None = None,
    ) -> None:
        self._constants = constants or {}
        self._seconds = cycle(seconds)
        self._sizes = cycle(sizes)
        self.executions: dict[TaskId, float] = {}
        """The shortest duration given for each task."""

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """Return the given constants."""
        return self._constants

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return the next duration, longer for a cold start."""
        return next(self._seconds) + (not warm)

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Return the next duration."""
        return next(self._seconds)

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return the next duration."""
        seconds = next(self._seconds)
        self.executions[task] = min(seconds, self.executions.get(task, seconds))
        return seconds

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """Return the next size."""
        return next(self._sizes)

    def coordination(self) -> float:
        """Return the next duration."""
        return next(self._seconds)


class WatchedPool(WarmPool[Resources]):
    """A pool that records its maximum load and checks that it is used correctly."""

    def __init__(self, capacity: int, idle_seconds: float) -> None:
        super().__init__(capacity, idle_seconds)
        self.most = 0
        self.starts: list[tuple[Resources, Acquired]] = []
        self.most_at_work = 0
        """The most busy sandboxes of a run, without those that are warmed up."""

    def acquire(self, kind: Resources, now: float, bound: Bound = UNBOUNDED) -> Acquired | None:
        """The pool's answer."""
        acquired = super().acquire(kind, now, bound)
        if acquired is not None:
            self.starts.append((kind, acquired))
        if bound is not UNBOUNDED:
            self.most_at_work = max(self.most_at_work, self._at_work.get(bound.run, 0))
        self.most = max(self.most, self.busy + self.idle)
        return acquired


class BoundedClock(VirtualClock):
    """A clock that detects endless simulations."""

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back, unless there were too many calls."""
        super().call_at(when, callback)
        assert self._count < 50_000, "the run goes on for ever"


def value_of(task: TaskId, inputs: Mapping[TaskId, Any]) -> int:
    """Return a value that identifies the task and its inputs in order."""
    return hash((task, *inputs.items()))


@dataclass
class Outcome:
    """The outcome of a simulated scenario."""

    simulation: Simulation
    timeline: Timeline
    costs: DrawnCosts
    pool: WatchedPool


@dataclass(frozen=True)
class Scenario:
    """Everything that a simulation depends on."""

    plan: Plan
    seconds: tuple[float, ...]
    """The durations, used in turn and repeatedly."""
    sizes: tuple[int, ...]
    """The sizes of outputs, likewise."""
    repeats: tuple[tuple[float, ...], ...] = ((0.0,),)
    """The delays of each message, likewise."""
    capacity: int = 32
    idle_seconds: float = 7.0
    constant_every: int = 0
    """One in so many tasks has a large constant argument; 0: none."""
    workers: int = 0
    """How many workers may run at once; 0: as many as the pool has room for."""

    def constants(self) -> dict[TaskId, dict[TaskId, int]]:
        """The large constant arguments of tasks, some of them shared."""
        tasks = (
            list(self.plan.workflow.calls)[:: self.constant_every] if self.constant_every else ()
        )
        return {task: {TaskId(f"constant:{n % 3}"): 100_000} for n, task in enumerate(tasks)}

    def run(self) -> Outcome:
        """Simulate the scenario with values."""
        costs = DrawnCosts(self.seconds, self.sizes, self.constants())
        pool = WatchedPool(self.capacity, self.idle_seconds)
        delays: Iterator[tuple[float, ...]] = cycle(self.repeats)
        simulation = Simulation(
            self.plan,
            costs,
            pool,
            perform=value_of,
            repeats=lambda: next(delays),
            clock=BoundedClock(),
            workers=self.workers,
        )
        return Outcome(simulation, simulation.run(), costs, pool)

    def sequential(self) -> dict[TaskId, int]:
        """Return every task's value, evaluated in the workflow's order."""
        values: dict[TaskId, int] = {}
        for task, sources in self.plan.workflow.upstream.items():
            values[task] = value_of(task, {source: values[source] for source in sources})
        return values

    def longest_path(self, executions: Mapping[TaskId, float]) -> float:
        """Return how long the executions on the longest path take."""
        ends: dict[TaskId, float] = {}
        for task, sources in self.plan.workflow.upstream.items():
            ends[task] = executions[task] + max([ends[source] for source in sources], default=0.0)
        return max(ends.values())


@dataclass
class _Sketch:
    """A plan by numbers: each task's upstream tasks and worker, each worker's configuration."""

    sources: list[list[int]] = field(default_factory=list)
    assignment: list[int] = field(default_factory=list)
    sinks: list[int] = field(default_factory=list)

    def plan(self, configurations: Sequence[Resources], linger: float | None) -> Plan:
        wiring = {f"t{i}": [f"t{j}" for j in found] for i, found in enumerate(self.sources)}
        taken = {j for found in self.sources for j in found}
        sinks = [f"t{i}" for i in range(len(wiring)) if i not in taken or i in self.sinks]
        placements = {
            TaskId(f"t{i}"): Placement(WorkerId(f"w{owner}"), configurations[owner])
            for i, owner in enumerate(self.assignment)
        }
        return Plan(workflow_of(wiring, sinks=sinks), placements, linger)


@dataclass(frozen=True)
class Optimized:
    """The optimizations of a task."""

    preload: bool = False
    prewarm: tuple[Prewarm, ...] = ()
    duplicable: bool = False
    expected: tuple[float, float] | None = None

    def applied(self, placement: Placement) -> Placement:
        """Return the placement with the optimizations."""
        return replace(
            placement, preload=self.preload, prewarm=self.prewarm, duplicable=self.duplicable
        )


def optimized(plan: Plan, choices: Sequence[Optimized], gain: float) -> Plan:
    """Return the plan with the given optimizations assigned to its tasks in turn."""
    chosen = dict(zip(plan.workflow.calls, cycle(choices), strict=False))
    return replace(
        plan,
        placements={task: chosen[task].applied(plan.placements[task]) for task in chosen},
        expected={task: each.expected for task, each in chosen.items() if each.expected},
        duplication_gain=gain,
    )


@dataclass(frozen=True)
class Whims:
    """A reaction that gives any orders about any tasks, whether they fit or not."""

    seed: int
    tasks: tuple[TaskId, ...]
    kinds: tuple[int, ...] = tuple(range(7))
    """The kinds of orders that it gives."""

    def react(self, event: Event, worker: WorkerView) -> list[Order]:
        """Up to four orders, always the same for the same event and state."""
        moment = (self.seed, worker.worker, worker.now, type(event), worker.ready)
        rng = random.Random(repr(moment))
        near = [*worker.ready, *sorted(worker.running | worker.held), *self.tasks]
        return [self._order(rng, near) for _ in range(rng.randint(0, 4))]

    def _order(self, rng: random.Random, near: list[TaskId]) -> Order:
        task = near[min(rng.randrange(len(near)), rng.randrange(len(near)))]
        orders: list[Order] = [
            Preload(task),
            Prewarm(rng.choice(CONFIGURATIONS), rng.choice(SECONDS), rng.randint(1, 3)),
            SaveEarly(task),
            RunFirst(task),
            RunAfter(task, rng.choice(near)),
            Duplicate(task),
            Linger(rng.choice(SECONDS)),
        ]
        return orders[rng.choice(self.kinds)]


def whimsical(plan: Plan, seed: int | None) -> Plan:
    """Return the plan with a reaction of this seed, if there is one."""
    if seed is None:
        return plan
    return replace(plan, reactions=(Whims(seed, tuple(plan.workflow.calls)),))


seeds = st.none() | st.integers(0, 2**16)
"""The seed of a reaction; None: there is no reaction."""

WORKERS = 6

_distances = [(), (1,), (2,), (1, 2), (2, 1), (3,), (1, 4), (3, 2, 1), (5,), (8,), (6, 1), (9, 4)]
_tasks = st.tuples(
    st.integers(0, WORKERS - 1), st.sampled_from(_distances), st.integers(0, 7).map((7).__eq__)
)
"""A task's worker, the distance of its upstream tasks, and whether it is a sink too."""


@st.composite
def sketches(draw: st.DrawFn, most: int = 16) -> _Sketch:
    """Generate DAGs with random placements on up to six workers."""
    workers = draw(st.integers(1, WORKERS))
    sketch = _Sketch()
    for number, (owner, back, wanted) in enumerate(
        draw(st.lists(_tasks, min_size=1, max_size=most))
    ):
        sketch.assignment.append(owner % workers)
        sketch.sources.append([number - distance for distance in back if distance <= number])
        if wanted:
            sketch.sinks.append(number)
    return sketch


lingers = st.sampled_from([0.0, 0.125, 0.5, 2.0])
delays = st.sampled_from([(0.0,), (0.125,), (8.0,), (0.0, 0.0), (0.0, 1.0, 8.0), (1.0, 0.125, 0.0)])

prewarms = st.builds(Prewarm, st.sampled_from(CONFIGURATIONS), st.sampled_from(SECONDS))
optimizations = st.builds(
    Optimized,
    st.booleans(),
    st.just(()) | st.lists(prewarms, max_size=2).map(tuple),
    st.booleans(),
    st.none() | st.tuples(st.sampled_from(SECONDS), st.sampled_from([0.0, 1.0, 3.0, 20.0])),
)
plain = st.just([Optimized()])
gains = st.sampled_from([0.0, 0.5])


@st.composite
def scenarios(draw: st.DrawFn, most: int = 16) -> Scenario:
    """Generate scenarios; a pool smaller than the plan occurs only with parking."""
    sketch = draw(sketches(most))
    configurations = [CONFIGURATIONS[i % 3] for i in range(draw(st.integers(0, 2)), 3 + WORKERS)]
    capacity = draw(st.integers(1, WORKERS))
    workers = draw(st.integers(0, WORKERS))
    spacious = min(capacity, workers or capacity) >= len(set(sketch.assignment))
    linger = draw(lingers | st.none() if spacious else lingers)
    choices = draw(plain | st.lists(optimizations, min_size=1, max_size=7))
    return Scenario(
        whimsical(
            optimized(sketch.plan(configurations, linger), choices, draw(gains)), draw(seeds)
        ),
        seconds=tuple(draw(st.lists(st.sampled_from(SECONDS), min_size=1, max_size=9))),
        sizes=tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=7))),
        repeats=tuple(draw(st.lists(delays, min_size=1, max_size=5))),
        capacity=capacity,
        idle_seconds=draw(st.sampled_from([0.0, 1.0, 7.0])),
        constant_every=draw(st.integers(0, 3)),
        workers=workers,
    )


def large_scenario(seed: int, tasks: int) -> Scenario:
    """Build a scenario with many tasks, without drawing each of them."""
    rng = random.Random(seed)
    workers = rng.randint(2, 12)
    reach = rng.choice([3, 10, tasks])
    sketch = _Sketch()
    for number in range(tasks):
        nearest = range(max(0, number - reach), number)
        sketch.sources.append(rng.sample(nearest, min(len(nearest), rng.choice([0, 1, 1, 2, 5]))))
        sketch.assignment.append(rng.randrange(workers))
    configurations = [rng.choice(CONFIGURATIONS) for _ in range(workers)]
    plan = sketch.plan(configurations, rng.choice([0.0, 0.125, 2.0]))
    plan = optimized(plan, [_random_choice(rng) for _ in range(13)], rng.choice([0.0, 0.5]))
    return Scenario(
        whimsical(plan, seed if rng.random() < 0.5 else None),
        seconds=tuple(rng.choices(SECONDS, k=97)),
        sizes=tuple(rng.choices(SIZES, k=31)),
        repeats=tuple(tuple(rng.choices([0.0, 0.5, 8.0], k=rng.randint(1, 3))) for _ in range(11)),
        capacity=rng.randint(1, workers),
        constant_every=rng.randint(0, 3),
        workers=rng.randint(0, workers),
    )


def _random_choice(rng: random.Random) -> Optimized:
    configuration = rng.choice(CONFIGURATIONS)
    return Optimized(
        preload=rng.random() < 0.5,
        prewarm=(Prewarm(configuration, rng.choice(SECONDS)),) if rng.random() < 0.2 else (),
        duplicable=rng.random() < 0.7,
        expected=(rng.choice(SECONDS), rng.choice([0.0, 3.0, 20.0])),
    )
