"""Train `DoubleDqn` with torch, with multi-step returns and soft target updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.farm.arrays import NDArray, np
from shoal.farm.learned import ACTIONS, INPUTS, DoubleDqn, Senses
from shoal.farm.model import Observation
from shoal.farm.training import Best, OnEpisode, Training, environments, judgement, turn

_GAMMA = 0.97
_STEPS = 3
"""The length of multi-step returns."""
_LEARNING_RATE = 3e-4
_BATCH = 64
_REPLAY = 75_000
_WARM_UP = 1000
"""How many transitions to collect before learning starts."""
_EXPLORING = (0.8, 0.05)
"""The share of random actions at the start, and from the middle of the training on."""
_FOLLOWING = 0.01
"""How far the target network moves towards the online network at each learning step."""
_REWARD_SCALE = 0.1
_MARGINS = (0.0, 0.01, 0.02, 0.04, 0.08)
"""Candidates for how much more a change must be worth than no change, to ignore noise."""


def train_dqn(training: Training, report: OnEpisode | None = None) -> DoubleDqn:
    """Train a network in the simulated farm."""
    learner = Learner(training.seed)
    rng = np.random.default_rng(training.seed)
    envs, memory = environments(training), Replay()
    senses, best = Senses(training.phase_clock), Best(training, report)
    episode = 0
    for episode in range(1, training.episodes + 1):
        progress = min(1.0, 2 * episode / training.episodes)
        exploring = _EXPLORING[0] * (_EXPLORING[1] / _EXPLORING[0]) ** progress
        workload, seed = turn(training, episode)
        senses.reset()
        seen, over, path = envs[workload].reset(seed=seed)[0], False, []
        while not over:
            state = senses.inputs(Observation(*seen.tolist()))
            if rng.random() < exploring:
                action = int(rng.integers(len(ACTIONS)))
            else:
                action = learner.best_action(state)
            seen, reward, terminated, truncated, _ = envs[workload].step(action)
            over = terminated or truncated
            path.append((state, action, _REWARD_SCALE * (reward - training.reward.par)))
            if len(memory) >= _WARM_UP:
                learner.learn(memory.sample(rng))
        memory.add(path)
        arrays = learner.arrays()
        policy = DoubleDqn(arrays, {"phase_clock": training.phase_clock})
        if best.is_final(episode, policy, arrays):
            break
    return with_best_margin(training, DoubleDqn(best.arrays, best.about(episode)))


def with_best_margin(training: Training, policy: DoubleDqn) -> DoubleDqn:
    """Choose the margin that a change must be worth, on the held-out seeds."""
    choices = [DoubleDqn(policy.arrays, policy.about | {"margin": each}) for each in _MARGINS]
    return max(choices, key=lambda choice: judgement(training, choice))


class Learner:
    """The online network, which chooses actions, and the target network, which values them."""

    def __init__(self, seed: int, *, inputs: int = INPUTS, following: float = _FOLLOWING) -> None:
        self._inputs, self._following = inputs, following
        self._torch = torch = _torch()
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._online, self._target = self._network(), self._network()
        self._target.load_state_dict(self._online.state_dict())
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=_LEARNING_RATE)

    def _network(self) -> Any:
        nn = self._torch.nn
        return nn.Sequential(
            nn.Linear(self._inputs, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, len(ACTIONS)),
        )

    def best_action(self, state: NDArray[np.float32]) -> int:
        """Return the number of the action that the online network values most."""
        with self._torch.no_grad():
            return int(self._online(self._torch.from_numpy(state)).argmax())

    def learn(self, batch: Sequence[NDArray[Any]]) -> None:
        """Learn from a batch of a replay."""
        torch, online, target = self._torch, self._online, self._target
        states, actions, returns, discounts, later = map(torch.from_numpy, batch)
        with torch.no_grad():
            choice = online(later).argmax(1, keepdim=True)
            wanted = returns + discounts * target(later).gather(1, choice).squeeze(1)
        valued = online(states).gather(1, actions[:, None]).squeeze(1)
        self._optimizer.zero_grad()
        torch.nn.functional.smooth_l1_loss(valued, wanted).backward()
        torch.nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        self._optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, self._following)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the network as plain arrays for `DoubleDqn`."""
        layers = [layer for layer in self._online if hasattr(layer, "weight")]
        arrays = {}
        for number, layer in enumerate(layers):
            arrays[f"weight{number}"] = layer.weight.detach().numpy()
            arrays[f"bias{number}"] = layer.bias.detach().numpy()
        return arrays


class Replay:
    """A ring buffer of multi-step transitions."""

    def __init__(self, *, inputs: int = INPUTS, steps: int = _STEPS) -> None:
        self._count, self._steps = 0, steps
        self._states = np.zeros((_REPLAY, inputs), np.float32)
        self._actions = np.zeros(_REPLAY, np.int64)
        self._returns = np.zeros(_REPLAY, np.float32)
        self._discounts = np.zeros(_REPLAY, np.float32)
        self._later = np.zeros((_REPLAY, inputs), np.float32)

    def __len__(self) -> int:
        return min(self._count, _REPLAY)

    def add(self, path: Sequence[tuple[NDArray[np.float32], int, float]]) -> None:
        """Add an episode; the value after its end is 0."""
        for start, (state, action, _) in enumerate(path):
            at, after = self._count % _REPLAY, start + self._steps
            rewards = [reward for *_, reward in path[start:after]]
            self._states[at], self._actions[at] = state, action
            self._returns[at] = sum(_GAMMA**k * reward for k, reward in enumerate(rewards))
            self._discounts[at] = _GAMMA**self._steps if after < len(path) else 0.0
            self._later[at] = path[after][0] if after < len(path) else 0.0
            self._count += 1

    def sample(self, rng: np.random.Generator) -> tuple[NDArray[Any], ...]:
        """Sample a batch of states, actions, returns, discounts and later states."""
        at = rng.integers(len(self), size=_BATCH)
        columns = (self._states, self._actions, self._returns, self._discounts, self._later)
        return tuple(column[at] for column in columns)


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise UsageError("Training Double DQN needs torch: pip install 'shoal[rl]'.") from error
    return torch
