"""The world that virtual runs happen in: what everything takes, drawn anew for each run.

1. How long a task computes is its measured time (`shapes.json`) on a worker of 2 GB, and less on a
   larger one; each run has a pace, each task deviates from it, and a few straggle. Real runs sleep
   for exactly these times, so a run of the same seed does the same work in both modes.
2. What store and gateway take was fitted to real runs (`Platform`): a round trip's latency, and a
   rest that varies. All workers have one store: what they move at a time they share.
3. `platform.json` has it as a machine of 2 cores had it, but for one thing: there sandboxes that
   start together slow each other down, which would tell against whoever starts many; in it they
   don't, and each takes what one alone takes. `shoal experiments calibrate` fits it anew, that too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import exp
from typing import Any

from shoal.clock import Clock
from shoal.execution.costs import Costs, Direction
from shoal.experiments.pipe import Pipe
from shoal.experiments.shapes import Shape
from shoal.types import Resources, TaskId

FILE = "platform.json"
LARGE = 256 * 1024
"""Bytes from which on a size tells in the time."""
BASE = Resources(2048)
"""On which a task takes the time that was measured."""


@dataclass(frozen=True, slots=True)
class Work:
    """How long tasks compute, beyond what was measured."""

    scale: float = 1.0
    """By what every measured time is multiplied."""
    least: float = 0.0
    """Seconds that every task takes at least, before it is multiplied."""
    gain: float = 0.3
    """Exponent: with so many times the CPUs a task is that power of it as fast; the published
    system's. A worker of 8 GB runs four such tasks at a time."""
    pace: float = 0.05
    """The spread of whole runs, as the standard deviation of its logarithm."""
    spread: float = 0.08
    """The same of single tasks."""
    straggling: float = 0.01
    """The share of tasks that take two to four times as long."""


@dataclass(frozen=True, slots=True)
class Varying:
    """A cost beyond the latency of a round trip: its median, and how much it varies."""

    median: float
    spread: float = 0.3
    """The standard deviation of its logarithm."""

    def drawn(self, rng: random.Random) -> float:
        """One."""
        return self.median * exp(rng.gauss(0.0, self.spread))


@dataclass(frozen=True, slots=True)
class Platform:
    """What store and gateway take, beside the latency."""

    launch: Varying = Varying(0.012)
    cold: Varying = Varying(0.060)
    """A cold start by the client."""
    crowd: Sequence[tuple[float, float]] = ()
    """What a cold start takes longer if so many others are under way: they share the cores. Between
    the points it is in proportion."""
    warm: Varying = Varying(0.006)
    start: Varying = Varying(0.040)
    """A cold start by another worker."""
    again: Varying = Varying(0.006)
    message: Varying = Varying(0.002)
    save: Varying = Varying(0.002)
    fetch: Varying = Varying(0.002)
    hand_in: Varying = Varying(0.003)
    packing: float = 1.0 / 800e6
    """Seconds for each byte of constants before the client invokes workers."""
    uploading: float = 1.0 / 800e6
    """Seconds for each byte of constants that the workers it invokes wait for."""
    saving: float = 1.0 / 800e6
    fetching: float = 1.0 / 800e6
    sharing: float = 1.0
    """By what share a transfer is slower for each other that is under way."""
    handing_in: float = 1.0 / 800e6
    """Of a result until the client has it, once it is saved."""
    invocation: float = 0.0005
    """What one who invokes workers spends on each."""


def platform_from(kept: Mapping[str, Any]) -> Platform:
    """What was fitted, as it is kept."""
    costs: dict[str, Any] = {
        name: Varying(**cost) if isinstance(cost, Mapping) else cost for name, cost in kept.items()
    }
    return Platform(**costs)


def platform_here() -> Platform:
    """What was fitted to the real runs that Shoal is shipped with."""
    return platform_from(json.loads(files("shoal.experiments").joinpath(FILE).read_text()))


class Service:
    """How long each task of one run computes."""

    def __init__(self, shape: Shape, work: Work, seed: str) -> None:
        self._shape = shape
        self._work = work
        self._seed = seed
        rng = random.Random(seed)
        self._pace = exp(rng.gauss(0.0, work.pace))
        self._drawn: dict[TaskId, float] = {}

    def seconds(self, task: TaskId, resources: Resources) -> float:
        """On a worker with these resources."""
        found = self._drawn.get(task)
        if found is None:
            found = self._drawn[task] = self._draw(task)
        work = self._work
        return found * float((BASE.cpu_share / resources.cpu_share) ** work.gain)

    def cpu(self, seconds: float, resources: Resources) -> float:
        """The CPU seconds that so many seconds of a task stand for."""
        return seconds * resources.cpu_share

    def _draw(self, task: TaskId) -> float:
        work = self._work
        rng = random.Random(f"{self._seed}/{task}")
        seconds = max(self._shape.of_task[task].seconds, work.least) * work.scale
        seconds *= self._pace * exp(rng.gauss(0.0, work.spread))
        return seconds * rng.uniform(2.0, 4.0) if rng.random() < work.straggling else seconds


class World(Costs):
    """What one virtual run takes."""

    def __init__(
        self,
        shape: Shape,
        service: Service,
        platform: Platform,
        latency: float,
        seed: str,
        clock: Clock,
    ) -> None:
        self._shape = shape
        self._service = service
        self._platform = platform
        self._latency = latency
        self._rng = random.Random(f"{seed}/platform")
        self._clock = clock
        self._pipe = Pipe(clock, platform.sharing)

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """Those of the shape."""
        return self._shape.constant_sizes

    def launch(self) -> float:
        """Packing the plan, with the constants."""
        packing = sum(self._shape.constants) * self._platform.packing
        return self._platform.launch.drawn(self._rng) + packing

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """A request to the gateway, and a sandbox; those by the client wait for its constants."""
        platform = self._platform
        crowd = 0.0 if warm else extra(platform.crowd, beside)
        if not first:
            return self._trip(platform.again if warm else platform.start) + crowd
        uploading = sum(self._shape.constants) * platform.uploading
        return self._trip(platform.warm if warm else platform.cold) + uploading + crowd

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """A round trip, and the bytes, which others may be moved beside."""
        platform, saves = self._platform, direction == "save"
        trip = self._trip(platform.save if saves else platform.fetch)
        moving = nbytes * (platform.saving if saves else platform.fetching)
        return trip + moving if nbytes < LARGE else self._pipe.enter(moving, trip)

    def overtime(self) -> float:
        """What a transfer still takes, because of others that came meanwhile."""
        return self._pipe.overtime()

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """The task's time in this run."""
        return self._service.seconds(task, resources)

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """As measured."""
        return self._shape.of_task[task].nbytes

    def coordination(self) -> float:
        """A round trip."""
        return self._trip(self._platform.message)

    def invocation(self) -> float:
        """What one who invokes workers spends on each."""
        return self._platform.invocation

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        """A round trip, and the bytes."""
        return self._trip(self._platform.hand_in) + nbytes * self._platform.handing_in

    def _trip(self, rest: Varying) -> float:
        return self._latency + rest.drawn(self._rng)


def extra(points: Sequence[tuple[float, float]], at: float) -> float:
    """What lies on the lines from 0 through the points, and on the last one beyond them."""
    before = (0.0, 0.0)
    for point in points:
        if at <= point[0] or point is points[-1]:
            share = (at - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return 0.0
