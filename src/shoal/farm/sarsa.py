"""Train `Sarsa`: tabular SARSA(lambda) with replacing traces, then a direct search."""

from __future__ import annotations

from typing import Any

from shoal.farm.arrays import NDArray, np
from shoal.farm.environment import FarmEnv
from shoal.farm.learned import ACTIONS, TABLE, Sarsa, Senses
from shoal.farm.model import Observation
from shoal.farm.table_search import improve_table
from shoal.farm.training import Best, OnEpisode, Training, environments, turn

_GAMMA = 0.985
_TRACE = 0.95
"""Lambda, the decay of eligibility traces."""
_RATE = 0.05
"""The initial learning rate, which falls to a tenth."""
_EXPLORING = (0.4, 0.02)
"""The share of random actions at the start and at the end."""
_MOVES_WITH_CLOCK, _MOVES_WITHOUT = 2.0, 0.6
"""Moves of the search per episode; without the phase clock the table has fewer rows."""


def train_sarsa(training: Training, report: OnEpisode | None = None) -> Sarsa:
    """Train a policy in the simulated farm, then improve its table by search.

    `report` counts episodes first, then moves of the search: up to `training_steps` in total.
    """

    def report_move(move: int, best: float) -> None:
        if report is not None:
            report(training.episodes + move, best)

    moves = training_steps(training) - training.episodes
    return improve_table(training, train_table(training, report), moves, report_move)


def training_steps(training: Training) -> int:
    """Return how many episodes and moves of the search a training has at most."""
    moves = _MOVES_WITH_CLOCK if training.phase_clock else _MOVES_WITHOUT
    return training.episodes + round(moves * training.episodes)


def train_table(training: Training, report: OnEpisode | None = None) -> Sarsa:
    """Train a table by SARSA(lambda) in the simulated farm."""
    rng = np.random.default_rng(training.seed)
    envs, table = environments(training), np.zeros(TABLE)
    policy = Sarsa({"table": table}, {"phase_clock": training.phase_clock})
    senses, best = Senses(training.phase_clock), Best(training, report)
    episode = 0
    for episode in range(1, training.episodes + 1):
        progress = episode / training.episodes
        exploring = _EXPLORING[0] * (_EXPLORING[1] / _EXPLORING[0]) ** progress
        workload, seed = turn(training, episode)
        rate = _RATE * (1 - 0.9 * progress)
        par = training.reward.par
        _learn(rng, envs[workload], seed, table, senses, par, exploring, rate)
        if best.is_final(episode, policy, {"table": table}):
            break
    arrays = {"table": best.arrays["table"].astype(np.float32)}
    return Sarsa(arrays, best.about(episode))


def _learn(
    rng: np.random.Generator,
    env: FarmEnv,
    seed: int,
    table: NDArray[Any],
    senses: Senses,
    par: float,
    exploring: float,
    rate: float,
) -> None:
    """Learn from one episode."""

    def chosen(seen: NDArray[np.float32]) -> tuple[int, ...]:
        cell = senses.cell(Observation(*seen.tolist()))
        if rng.random() < exploring:
            return (*cell, int(rng.integers(len(ACTIONS))))
        return (*cell, int(np.argmax(table[cell])))

    senses.reset()
    at = chosen(env.reset(seed=seed)[0])
    traces, over = np.zeros(TABLE), False
    while not over:
        seen, reward, terminated, truncated, _ = env.step(at[-1])
        over = terminated or truncated
        then = chosen(seen)
        td_error = reward - par - table[at] + (0.0 if over else _GAMMA * table[then])
        traces *= _GAMMA * _TRACE
        traces[at[:-1]] = 0.0
        traces[at] = 1.0
        table += rate * td_error * traces
        at = then
