"""Draw the farm paper's Fig. 2 and Fig. 4: what workers cost and save, and how tasks arrive.

1. Fig. 2 runs a fixed set of the paper's images, all there at the start, on every number of
   workers. A deployment from scratch is counted apart, with the times measured in the paper.
2. Fig. 4 has the configured rates of the four phases, and the mean of streams of both workloads.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.farm.arrays import NDArray, np
from shoal.farm.figures import Panel, lines_svg
from shoal.farm.model import Limits
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.workloads import (
    COUNTS,
    PHASE,
    Workload,
    configured_rate,
    processing_times,
    workload_named,
    workload_of,
)

MOST = 32
TASKS = 320
"""How many tasks the static workload of Fig. 2 has."""
DEPLOY, DEPLOY_EACH = 17.3, 5.47
"""Seconds that a deployment took in the paper's measurements, and each of its workers."""
STREAMS = 200
_BIN = 2.0
"""The seconds over which arrivals are counted."""


def deployment(workers: int) -> float:
    """Return how long the deployment of a farm takes."""
    return DEPLOY + DEPLOY_EACH * workers


def static_workload(seed: int = 0) -> Workload:
    """Return tasks that are all there at the start."""
    rng = np.random.default_rng(seed)
    return workload_of(np.zeros(TASKS), processing_times(rng, TASKS))


def runtime(workers: int, workload: Workload) -> float:
    """Return how long a number of workers take for a workload."""
    farm = SimulatedFarm(workload, workers=workers, limits=Limits(1, MOST))
    while not farm.finished:
        farm.advance(1.0)
    return max(farm.response)


def scaling_svg() -> str:
    """Draw Fig. 2."""
    workload, counts = static_workload(), range(1, MOST + 1)
    runtimes = {count: runtime(count, workload) for count in counts}
    seconds: Panel = (
        "workers",
        "seconds",
        {
            "runtime": [(count, runtimes[count]) for count in counts],
            "deployment": [(count, deployment(count)) for count in counts],
            "both": [(count, runtimes[count] + deployment(count)) for count in counts],
        },
    )
    total = {count: runtimes[count] + deployment(count) for count in counts}
    speedup: Panel = (
        "workers",
        "speed-up",
        {
            "runtime": [(count, runtimes[1] / runtimes[count]) for count in counts],
            "both": [(count, total[1] / total[count]) for count in counts],
        },
    )
    return lines_svg(f"{TASKS} tasks on a farm that is deployed for them", [seconds, speedup])


def arrivals_svg() -> str:
    """Draw Fig. 4."""
    grid = np.linspace(0, PHASE, 121)
    configured = [
        (PHASE * phase + at, 60 * rate)
        for phase in range(len(COUNTS))
        for at, rate in zip(grid.tolist(), configured_rate(phase, grid).tolist(), strict=True)
    ]
    lines = {"configured": configured}
    for name in ("paper-described", "paper-measured"):
        generate = workload_named(name)
        lines[name] = _mean_rate([generate(seed).arrivals for seed in range(STREAMS)])
    panel: Panel = ("seconds", "tasks a minute", lines)
    return lines_svg(f"Arrivals, means of {STREAMS} streams", [panel])


def _mean_rate(streams: Sequence[NDArray[np.float64]]) -> list[tuple[float, float]]:
    """Return the mean tasks per minute of streams, at the middle of each bin."""
    edges = np.arange(0.0, PHASE * len(COUNTS) + _BIN, _BIN)
    counted = np.mean([np.histogram(arrivals, edges)[0] for arrivals in streams], axis=0)
    middles = (edges[1:] + edges[:-1]) / 2
    return list(zip(middles.tolist(), (60 / _BIN * counted).tolist(), strict=True))
