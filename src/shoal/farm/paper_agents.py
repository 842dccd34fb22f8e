"""Train the farm paper's own agents: their bins, network, hyper-parameters and reward.

1. They learn on the stream that the paper's runs had, with the phase clock and the paper's reward,
   and the last policy counts, not the best. Shoal's own trainings do all of this differently.
2. The paper doesn't state how the network's target followed it; `_FOLLOWING` is an estimate.
3. The value after the last step of a stream is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from shoal.farm.arrays import NDArray, np
from shoal.farm.dqn import Learner, Replay
from shoal.farm.environment import FarmEnv
from shoal.farm.orders import order_named
from shoal.farm.paper_policies import ACTIONS, EDGES, SCALES, PaperDqn, PaperSarsa, cell, inputs
from shoal.farm.reward import Reward
from shoal.farm.training import OnEpisode, Training, stream, turn

PAPER_SARSA = Training(workloads=("paper-measured",), episodes=260, reward=Reward())
PAPER_DQN = Training(workloads=("paper-measured",), episodes=80, reward=Reward())
"""The trainings of the paper."""
_FOLLOWING = 0.001
"""How far the target network moves at each learning step: hardly at all, as in the paper."""
_WARM_UP = 400
"""How many transitions to collect before the network learns."""


def train_paper_sarsa(training: Training, report: OnEpisode | None = None) -> PaperSarsa:
    """Train the paper's SARSA(lambda), with accumulating traces."""
    rng = np.random.default_rng(training.seed)
    table = np.zeros((*(len(edges) + 1 for edges in EDGES.values()), len(ACTIONS)))
    envs = _environments(training)
    for episode in range(training.episodes):
        exploring = max(0.10, 0.40 * 0.995**episode)
        workload, seed = turn(training, episode)
        _learn_table(envs[workload], seed, table, exploring, rng)
        if report is not None:
            report(episode + 1, 0.0)
    return PaperSarsa({"table": table.astype(np.float32)}, _about(training))


def _learn_table(
    env: FarmEnv, seed: int, table: NDArray[Any], exploring: float, rng: np.random.Generator
) -> None:
    """Learn from one episode."""
    gamma, rate, decay = 0.985, 0.025, 0.5
    traces: dict[tuple[int, ...], float] = {}

    def chosen(seen: NDArray[np.float32]) -> tuple[int, ...]:
        at = cell(seen.tolist())
        explores = rng.random() < exploring
        action = rng.integers(len(ACTIONS)) if explores else np.argmax(table[at])
        return (*at, int(action))

    at, over = chosen(env.reset(seed=seed)[0]), False
    while not over:
        seen, reward, terminated, truncated, _ = env.step(at[-1])
        over = terminated or truncated
        then = chosen(seen)
        error = reward + (0.0 if over else gamma * table[then]) - table[at]
        traces[at] = traces.get(at, 0.0) + 1.0
        for place in traces:
            table[place] += rate * error * traces[place]
            traces[place] *= gamma * decay
        at = then


def train_paper_dqn(training: Training, report: OnEpisode | None = None) -> PaperDqn:
    """Train the paper's Double DQN."""
    rng = np.random.default_rng(training.seed)
    learner = Learner(training.seed, inputs=len(SCALES), following=_FOLLOWING)
    memory, envs = Replay(inputs=len(SCALES), steps=1), _environments(training)
    for episode in range(training.episodes):
        exploring = max(0.05, 0.80 * 0.98**episode)
        workload, seed = turn(training, episode)
        path = _explored(envs[workload], seed, exploring, rng, learner, memory)
        memory.add(path)
        if report is not None:
            report(episode + 1, 0.0)
    return PaperDqn(learner.arrays(), _about(training))


def _explored(
    env: FarmEnv,
    seed: int,
    exploring: float,
    rng: np.random.Generator,
    learner: Learner,
    memory: Replay,
) -> list[tuple[NDArray[np.float32], int, float]]:
    """Return the steps of one episode, and learn at each once there are enough."""
    seen, over, path = env.reset(seed=seed)[0], False, []
    while not over:
        state = inputs(seen.tolist())
        explores = rng.random() < exploring
        action = int(rng.integers(len(ACTIONS))) if explores else learner.best_action(state)
        seen, reward, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        path.append((state, action, reward))
        if len(memory) >= _WARM_UP:
            learner.learn(memory.sample(rng))
    return path


def _environments(training: Training) -> list[FarmEnv]:
    """Return an environment of the paper's for each workload."""
    return [
        FarmEnv(
            _streams(workload),
            order=order_named(training.order),
            phase_clock=training.phase_clock,
            actions=ACTIONS,
            reward=training.reward,
        )
        for workload in training.workloads
    ]


def _streams(workload: str) -> Callable[[int], Any]:
    return lambda seed: stream(workload, seed)


def _about(training: Training) -> dict[str, Any]:
    return asdict(training) | {"trained_episodes": training.episodes}
