"""Share streams, judgement and early stopping between the trainings of all learned autoscalers.

1. Three ranges of seeds never overlap: those of training, the held-out seeds that select the
   policy, and those of the evaluation.
2. Every few episodes the policy is judged without exploration on the held-out seeds of all its
   workloads. The best one is kept, and training stops when none has been better for a while.
3. The value after the last step of a stream is 0, whatever the table or network says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

from shoal.farm.environment import FarmEnv
from shoal.farm.episode import run_episode
from shoal.farm.learned import ACTIONS
from shoal.farm.model import Autoscaler, Observation
from shoal.farm.orders import order_named
from shoal.farm.reward import Reward
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.workloads import Workload, workload_named

TRAINING_SEEDS = 0
HELD_OUT_SEEDS = 1_000_000
"""The first seed of each range; the third begins at `evaluation.EVALUATION_SEEDS`."""
_SHORTFALL = 1000.0
"""The weight of service below the target in a judgement, in mean workers."""
_STREAMS = 300
"""How many streams of each workload training uses before it repeats them."""

LEARNING = Reward(
    balanced_workers=8.0,
    qos=60.0,
    efficiency=0.25,
    scale=0.6,
    up=0.0,
    down=0.0,
    stable=0.0,
    finished=0.0,
    unfinished=0.0,
)
"""Weights that agents learn well with: each worker and each late task has a constant price, and
neither changes nor the end of a stream are rewarded. Agents learn a reward's difference to par, so
that the length of a stream, which they don't control, doesn't dominate."""


@dataclass(frozen=True, slots=True)
class Training:
    """The goal and the limits of a training."""

    workloads: tuple[str, ...] = ("paper-measured", "paper-described")
    order: str = "fifo"
    phase_clock: bool = True
    target: float = 0.994
    """The target service: below it a policy is judged by its service, above it by its workers."""
    action_price: float = 0.05
    """The weight of a scaling action in a judgement, in mean workers."""
    episodes: int = 1000
    patience: int = 400
    """Training stops after so many episodes without a better policy."""
    every: int = 25
    """The number of episodes between judgements."""
    held_out: int = 24
    """The number of held-out seeds of each workload."""
    seed: int = 0
    reward: Reward = LEARNING


OnEpisode = Callable[[int, float], None]
"""Receives the number of steps done and the best judgement so far."""


class Best:
    """Tracks the best policy so far, and decides when to stop."""

    def __init__(self, training: Training, report: OnEpisode | None) -> None:
        self._training = training
        self._report = report
        self._at = 0
        self.judgement = -inf
        self.arrays: dict[str, Any] = {}

    def is_final(self, episode: int, policy: Autoscaler, arrays: dict[str, Any]) -> bool:
        """Judge the policy if it is due, keep it if it is better, and return whether to stop."""
        if episode % self._training.every == 0:
            judged = judgement(self._training, policy)
            if judged > self.judgement:
                self.judgement, self._at = judged, episode
                self.arrays = {name: array.copy() for name, array in arrays.items()}
            if self._report is not None:
                self._report(episode, self.judgement)
        return episode - self._at >= self._training.patience

    def about(self, episodes: int) -> dict[str, Any]:
        """Return the description to store with the policy."""
        done = {"trained_episodes": episodes, "judgement": round(self.judgement, 4)}
        return asdict(self._training) | done


class Performance(NamedTuple):
    """How a policy performed, on one stream or on average."""

    service: float
    workers: float
    actions: float


def judgement(training: Training, policy: Autoscaler, seeds: range | None = None) -> float:
    """Judge a policy, by default on the held-out seeds; higher is better."""
    return weighed(training, [_performance(training, policy, w, seeds) for w in training.workloads])


def weighed(training: Training, found: Sequence[Performance]) -> float:
    """Combine the performance on each workload: the cost where it is highest, and the shortfall."""
    short = sum(max(0.0, training.target - each.service) for each in found)
    price = max(each.workers + training.action_price * each.actions for each in found)
    return -price - _SHORTFALL * short / len(found)


def measured(training: Training, policy: Autoscaler) -> Performance:
    """Return a policy's performance on the held-out seeds, averaged over workloads."""
    return mean_performance(
        [_performance(training, policy, workload) for workload in training.workloads]
    )


def mean_performance(found: Sequence[Performance]) -> Performance:
    """Average several performances."""
    return Performance(*(fmean(column) for column in zip(*found, strict=True)))


def _performance(
    training: Training, policy: Autoscaler, workload: str, seeds: range | None = None
) -> Performance:
    if seeds is None:
        seeds = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + training.held_out)
    order = order_named(training.order)
    episodes = (
        run_episode(
            SimulatedFarm(stream(workload, seed), order=order, seed=seed),
            policy,
            phase_clock=training.phase_clock,
        )
        for seed in seeds
    )
    return mean_performance([Performance(e.qos, e.mean_workers, e.actions) for e in episodes])


@lru_cache(maxsize=2048)
def stream(workload: str, seed: int) -> Workload:
    """Return a named workload for a seed; cached."""
    return workload_named(workload)(seed)


def environments(training: Training) -> list[FarmEnv]:
    """Create an environment for each workload."""
    return [
        FarmEnv(
            lambda seed, workload=workload: stream(workload, seed),  # type: ignore[misc]
            order=training.order,
            phase_clock=training.phase_clock,
            actions=ACTIONS,
            reward=training.reward,
            fields=Observation._fields,
        )
        for workload in training.workloads
    ]


def turn(training: Training, episode: int) -> tuple[int, int]:
    """Return the index of an episode's environment and the seed of its stream."""
    round_, workload = divmod(episode, len(training.workloads))
    return workload, TRAINING_SEEDS + round_ % _STREAMS
