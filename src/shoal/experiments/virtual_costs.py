"""Define the costs of virtual runs, which are drawn separately for each run.

1. A task computes for its measured time (`shapes.json`) on a worker of 2 GB, and less on a larger
   one. Each run has a pace, each task deviates from it, and a few straggle. Real runs sleep for
   exactly these times, so a run with the same seed does the same work in both modes.
2. The costs of store and gateway (`PlatformCosts`) were fitted to real runs: a round trip's latency
   and a varying rest.
3. `platform.json` has the costs of a machine with 2 cores, with one exception: on that machine,
   concurrent starts and concurrent transfers slow each other down, which would penalize plans with
   many of them. In the file they don't. `shoal experiments calibrate` fits costs that include both.
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
from shoal.experiments.shapes import Shape
from shoal.experiments.shared_bandwidth import SharedBandwidth
from shoal.types import Resources, TaskId

FILE = "platform.json"
LARGE = 256 * 1024
"""The size from which transfers take noticeably longer."""
BASE = Resources(2048)
"""The resources with which task times were measured."""


@dataclass(frozen=True, slots=True)
class WorkModel:
    """How the computing times of tasks are derived from the measured ones."""

    scale: float = 1.0
    """The factor for every measured time."""
    least: float = 0.0
    """The minimum seconds of every task, before scaling."""
    gain: float = 0.3
    """The exponent of a task's speed-up with more CPUs, as in the published
    system. A worker of 8 GB runs four such tasks at a time."""
    pace: float = 0.05
    """The spread of runs' paces: the standard deviation of the logarithm."""
    spread: float = 0.08
    """The spread of single tasks, likewise."""
    straggling: float = 0.01
    """The fraction of tasks that take two to four times as long."""


@dataclass(frozen=True, slots=True)
class Varying:
    """A cost beyond the latency of a round trip: its median, and how much it varies."""

    median: float
    spread: float = 0.3
    """The standard deviation of its logarithm."""

    def drawn(self, rng: random.Random) -> float:
        """Draw a cost."""
        return self.median * exp(rng.gauss(0.0, self.spread))


@dataclass(frozen=True, slots=True)
class PlatformCosts:
    """The costs of store and gateway besides the latency."""

    about: str = ""
    """Where they were measured, for reports."""
    launch: Varying = Varying(0.012)
    cold: Varying = Varying(0.060)
    """A cold start by the client."""
    crowd: Sequence[tuple[float, float]] = ()
    """How much longer a cold start takes for a number of concurrent ones, which share the cores;
    interpolated linearly between the points."""
    warm: Varying = Varying(0.006)
    start: Varying = Varying(0.040)
    """A cold start by another worker."""
    again: Varying = Varying(0.006)
    message: Varying = Varying(0.002)
    save: Varying = Varying(0.002)
    fetch: Varying = Varying(0.002)
    hand_in: Varying = Varying(0.003)
    packing: float = 1.0 / 800e6
    """Seconds per byte of constants before the client invokes workers."""
    uploading: float = 1.0 / 800e6
    """Seconds per byte of constants that the workers it invokes wait for."""
    saving: float = 1.0 / 800e6
    fetching: float = 1.0 / 800e6
    sharing: float = 1.0
    """By what fraction each concurrent transfer slows a transfer down."""
    handing_in: float = 1.0 / 800e6
    """Seconds per byte of a saved result until the client has it."""
    invocation: float = 0.0005
    """The seconds that the caller spends on each invocation."""
    each_input: bool = False
    """Whether a task's inputs are fetched one after the other, each in a round trip of its own."""


def platform_from(kept: Mapping[str, Any]) -> PlatformCosts:
    """Decode fitted costs."""
    costs: dict[str, Any] = {
        name: Varying(**cost) if isinstance(cost, Mapping) else cost for name, cost in kept.items()
    }
    return PlatformCosts(**costs)


def platform_here() -> PlatformCosts:
    """Return the costs that Shoal includes."""
    return platform_from(json.loads(files("shoal.experiments").joinpath(FILE).read_text()))


class Service:
    """The computing times of the tasks of one run."""

    def __init__(self, shape: Shape, work: WorkModel, seed: str) -> None:
        self._shape = shape
        self._work = work
        self._seed = seed
        rng = random.Random(seed)
        self._pace = exp(rng.gauss(0.0, work.pace))
        self._drawn: dict[TaskId, float] = {}

    def seconds(self, task: TaskId, resources: Resources) -> float:
        """Return how long a task computes on a worker with these resources."""
        found = self._drawn.get(task)
        if found is None:
            found = self._drawn[task] = self._draw(task)
        work = self._work
        return found * float((BASE.cpu_share / resources.cpu_share) ** work.gain)

    def cpu(self, seconds: float, resources: Resources) -> float:
        """Return the CPU seconds that a task's seconds represent."""
        return seconds * resources.cpu_share

    def _draw(self, task: TaskId) -> float:
        work = self._work
        rng = random.Random(f"{self._seed}/{task}")
        seconds = max(self._shape.of_task[task].seconds, work.least) * work.scale
        seconds *= self._pace * exp(rng.gauss(0.0, work.spread))
        return seconds * rng.uniform(2.0, 4.0) if rng.random() < work.straggling else seconds


class VirtualCosts(Costs):
    """The costs of one virtual run."""

    def __init__(
        self,
        shape: Shape,
        service: Service,
        platform: PlatformCosts,
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
        self._pipe = SharedBandwidth(clock, platform.sharing)
        self.one_by_one = platform.each_input

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The sizes of the shape's constants."""
        return self._shape.constant_sizes

    def launch(self) -> float:
        """Return the time to pack the plan and the constants."""
        packing = sum(self._shape.constants) * self._platform.packing
        return self._platform.launch.drawn(self._rng) + packing

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return the time of a request and a start; the client also uploads constants."""
        platform = self._platform
        crowd = 0.0 if warm else extra(platform.crowd, beside)
        if not first:
            return self._trip(platform.again if warm else platform.start) + crowd
        uploading = sum(self._shape.constants) * platform.uploading
        return self._trip(platform.warm if warm else platform.cold) + uploading + crowd

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        """Return the time of a round trip and of the bytes, which share bandwidth with others."""
        platform, saves = self._platform, direction == "save"
        trip = self._trip(platform.save if saves else platform.fetch)
        moving = nbytes * (platform.saving if saves else platform.fetching)
        return trip + moving if nbytes < LARGE else self._pipe.enter(moving, trip)

    def overtime(self) -> float:
        """Return how much longer a transfer takes because of others that began later."""
        return self._pipe.overtime()

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return the task's time in this run."""
        return self._service.seconds(task, resources)

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        """Return the measured size of the output."""
        return self._shape.of_task[task].nbytes

    def coordination(self) -> float:
        """Return the time of a round trip."""
        return self._trip(self._platform.message)

    def invocation(self) -> float:
        """Return the seconds that the caller spends on each invocation."""
        return self._platform.invocation

    def hand_in(self, nbytes: int, resources: Resources) -> float:
        """Return the time of a round trip and of the bytes."""
        return self._trip(self._platform.hand_in) + nbytes * self._platform.handing_in

    def _trip(self, rest: Varying) -> float:
        return self._latency + rest.drawn(self._rng)


def extra(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolate linearly from 0 through the points, and extrapolate beyond the last one."""
    before = (0.0, 0.0)
    for point in points:
        if at <= point[0] or point is points[-1]:
            share = (at - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return 0.0
