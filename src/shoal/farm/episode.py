"""Run an autoscaler on a simulated farm for one stream, and measure its performance.

1. The autoscaler decides at a fixed interval, for a limited number of steps or until the stream is
   finished. Remaining tasks are then completed with the current workers.
2. Service is the fraction of all tasks that were on time. Mean workers are the time average over
   the controlled period. A phase's tasks are those that arrive in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nan

from shoal.farm.model import Autoscaler, Observation, nearest
from shoal.farm.simulated import SimulatedFarm

STEP = 8.0
STEPS = 30
"""The farm paper's control: decisions 8 s apart, for 240 s."""
ACTIONS = (-1, 0, 1)


@dataclass(frozen=True, slots=True)
class Episode:
    """An autoscaler's performance on one stream."""

    qos: float
    """The fraction of tasks that were on time."""
    mean_workers: float
    max_workers: int
    actions: int
    no_ops: int
    phase_qos: tuple[float, ...]
    phase_workers: tuple[float, ...]
    course: tuple[Observation, ...]
    """The observation at each step."""
    running_qos: tuple[float, ...]
    """The fraction on time of all tasks completed until each step."""


def run_episode(
    farm: SimulatedFarm,
    autoscaler: Autoscaler,
    *,
    phase_clock: bool = True,
    actions: Sequence[int] = ACTIONS,
    step: float = STEP,
    steps: int = STEPS,
) -> Episode:
    """Let an autoscaler control a simulated farm for one stream."""
    autoscaler.reset()
    model, seen = farm.model, farm.observe()
    course, running = [seen], [1.0]
    for _ in range(steps):
        shown = seen if phase_clock else seen.without_clock()
        farm.scale_by(nearest(autoscaler.decide(shown), actions))
        seen = farm.advance(step)
        course.append(seen)
        running.append(model.on_time_total / max(1, model.completed_total))
        if farm.finished:
            break
    end = farm.now
    mean_workers, taken = model.worker_seconds / end, model.actions
    most, history = model.most_workers, list(model.history)
    farm.drain()
    return Episode(
        qos=sum(farm.met) / max(1, len(farm.met)),
        mean_workers=mean_workers,
        max_workers=most,
        actions=taken,
        no_ops=len(course) - 1 - taken,
        phase_qos=_phase_qos(farm),
        phase_workers=_phase_workers(farm.workload.phase_starts, history, end),
        course=tuple(course),
        running_qos=tuple(running),
    )


def _phase_qos(farm: SimulatedFarm) -> tuple[float, ...]:
    met: list[list[bool]] = [[] for _ in farm.workload.phase_starts]
    for phase, on_time in zip(farm.workload.phases.tolist(), farm.met, strict=True):
        met[phase].append(on_time)
    return tuple(sum(each) / len(each) if each else nan for each in met)


def _phase_workers(
    starts: Sequence[float], history: Sequence[tuple[float, int]], end: float
) -> tuple[float, ...]:
    """Return the mean number of workers in each phase."""
    means = []
    for begin, finish in pairwise([*starts, end]):
        total = sum(
            workers * max(0.0, min(until, finish) - max(since, begin))
            for (since, workers), (until, _) in pairwise([*history, (inf, 0)])
        )
        means.append(total / (finish - begin) if finish > begin else nan)
    return tuple(means)
