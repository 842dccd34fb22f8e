"""Polishing of a trained table: what TD learning leaves undecided is decided by trying.

Late tasks are rare, so the values of neighbouring actions differ by less than their noise. Each
cell that the policy meets is given its other actions in turn, and keeps one if the policy is
judged better with it on the same streams. They are training streams: the held-out ones only
say, in the end, whether the polished table is better than the one before.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.farm.arrays import NDArray, np
from shoal.farm.control import run_episode
from shoal.farm.learned import ACTIONS, Sarsa
from shoal.farm.model import Observation
from shoal.farm.orders import order_named
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.training import TRAINING_SEEDS, Report, Training, judgement, stream

_STREAMS = 32
_FEW = 8
"""Streams of each workload that a change is tried on; and those that drop it if it does badly."""
_BADLY = 0.1
_GAIN = 0.002
"""What a change must bring, in mean workers."""


class _Watched(Sarsa):
    """Counts the cells that the policy meets."""

    def __init__(self, arrays: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
        super().__init__(arrays, about)
        self.met: Counter[tuple[int, ...]] = Counter()

    def values(self, observation: Observation) -> NDArray[Any]:
        cell = self._senses.cell(observation)
        self.met[cell] += 1
        row: NDArray[Any] = self._arrays["table"][cell]
        return row


def polished(
    training: Training, policy: Sarsa, sweeps: int = 2, report: Report | None = None
) -> Sarsa:
    """The policy with the actions of its cells chosen by trial, if that is better held out."""
    table = policy.table.copy()
    trial = Sarsa({"table": table}, policy.about)
    few, all_ = (range(TRAINING_SEEDS, TRAINING_SEEDS + count) for count in (_FEW, _STREAMS))
    best, best_few = judgement(training, trial, all_), judgement(training, trial, few)
    tried = 0
    for _ in range(sweeps):
        for cell, _ in _met(training, table, policy.about, all_).most_common():
            for action in _others(table[cell]):
                before = table[cell].copy()
                table[cell][action] = before.max() + 1.0
                tried += 1
                quick = judgement(training, trial, few)
                judged = judgement(training, trial, all_) if quick > best_few - _BADLY else quick
                if quick > best_few - _BADLY and judged > best + _GAIN:
                    best, best_few = judged, quick
                else:
                    table[cell] = before
                if report is not None:
                    report(tried, best)
    if judgement(training, trial) <= judgement(training, policy):
        return policy
    return Sarsa({"table": table}, policy.about | {"polished": tried})


def _others(row: NDArray[Any]) -> list[int]:
    chosen = int(np.argmax(row))
    return [action for action in range(len(ACTIONS)) if action != chosen]


def _met(
    training: Training, table: NDArray[Any], about: dict[str, Any], seeds: range
) -> Counter[tuple[int, ...]]:
    watched = _Watched({"table": table}, about)
    order = order_named(training.order)
    for workload in training.workloads:
        for seed in seeds:
            farm = SimulatedFarm(stream(workload, seed), order=order, seed=seed)
            run_episode(farm, watched, phase_clock=training.phase_clock)
    return watched.met
