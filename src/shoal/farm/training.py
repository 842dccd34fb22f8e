"""What the training of every learned autoscaler shares: streams, judgement, early stopping.

1. Three ranges of seeds never meet: training, the held-out seeds that choose what is kept, and
   those of an evaluation.
2. A policy is judged without exploration on the held-out seeds of all its workloads every few
   episodes; the best one is kept, and training ends when none has been better for a while.
3. Values after the last step of a stream are nought, not what the table or network says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

from shoal.farm.control import run_episode
from shoal.farm.environment import FarmEnv
from shoal.farm.learned import ACTIONS
from shoal.farm.model import Autoscaler, Observation
from shoal.farm.orders import order_named
from shoal.farm.reward import Reward
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.workloads import Workload, workload_named

TRAINING_SEEDS = 0
HELD_OUT_SEEDS = 1_000_000
"""Where each range of seeds begins; `evaluation.EVALUATION_SEEDS` begins the third."""
_SHORTFALL = 1000.0
"""In mean workers: what service below the target weighs in a judgement."""
_STREAMS = 300
"""How many streams of each workload training goes through before it meets them again."""

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
"""Weights with which agents learn well: each worker has a price, a late task always the same one,
nothing rewards a change for its own sake, nor a stream's end. Learners count rewards from par, so
that the length of a stream, which they don't decide, isn't what they mostly learn."""


@dataclass(frozen=True, slots=True)
class Training:
    """What a policy is to be trained for, and how long."""

    workloads: tuple[str, ...] = ("paper-measured", "paper-described")
    order: str = "fifo"
    phase_clock: bool = True
    target: float = 0.994
    """The service below which a policy is judged by its service, above it by its workers."""
    action_price: float = 0.05
    """In mean workers: what a change of the number of workers weighs in a judgement."""
    episodes: int = 1000
    patience: int = 400
    """Training ends when no better policy was found for so many episodes."""
    every: int = 25
    """Episodes between judgements."""
    held_out: int = 24
    """Held-out seeds of each workload."""
    seed: int = 0
    reward: Reward = LEARNING


Report = Callable[[int, float], None]
"""Is told the number of episodes and the best judgement so far."""


class Best:
    """The best policy so far, and whether it is time to stop."""

    def __init__(self, training: Training, report: Report | None) -> None:
        self._training = training
        self._report = report
        self._at = 0
        self.judgement = -inf
        self.arrays: dict[str, Any] = {}

    def is_final(self, episode: int, policy: Autoscaler, arrays: dict[str, Any]) -> bool:
        """Judge the policy, if it is time to, and keep it if it is better; whether to stop."""
        if episode % self._training.every == 0:
            judged = judgement(self._training, policy)
            if judged > self.judgement:
                self.judgement, self._at = judged, episode
                self.arrays = {name: array.copy() for name, array in arrays.items()}
            if self._report is not None:
                self._report(episode, self.judgement)
        return episode - self._at >= self._training.patience

    def about(self, episodes: int) -> dict[str, Any]:
        """What to write down with the policy."""
        done = {"trained_episodes": episodes, "judgement": round(self.judgement, 4)}
        return asdict(self._training) | done


class Fared(NamedTuple):
    """How a policy did, on one stream or on the average."""

    service: float
    workers: float
    actions: float


def judgement(training: Training, policy: Autoscaler, seeds: range | None = None) -> float:
    """How good a policy is; by default on the held-out seeds."""
    return weighed(training, [_fared(training, policy, w, seeds) for w in training.workloads])


def weighed(training: Training, fared: Sequence[Fared]) -> float:
    """A judgement of how a policy fared on each workload: what it needs where it needs most."""
    short = sum(max(0.0, training.target - each.service) for each in fared)
    price = max(each.workers + training.action_price * each.actions for each in fared)
    return -price - _SHORTFALL * short / len(fared)


def measured(training: Training, policy: Autoscaler) -> Fared:
    """How a policy fares on the held-out seeds, the mean of the workloads."""
    return mean_fared([_fared(training, policy, workload) for workload in training.workloads])


def mean_fared(fared: Sequence[Fared]) -> Fared:
    """The average of several."""
    return Fared(*(fmean(column) for column in zip(*fared, strict=True)))


def _fared(
    training: Training, policy: Autoscaler, workload: str, seeds: range | None = None
) -> Fared:
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
    return mean_fared([Fared(e.qos, e.mean_workers, e.actions) for e in episodes])


@lru_cache(maxsize=2048)
def stream(workload: str, seed: int) -> Workload:
    """A named workload of a seed, kept for the next time."""
    return workload_named(workload)(seed)


def environments(training: Training) -> list[FarmEnv]:
    """An environment for each of the workloads."""
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
    """Which of the environments an episode is in, and the seed of its stream."""
    round_, workload = divmod(episode, len(training.workloads))
    return workload, TRAINING_SEEDS + round_ % _STREAMS
