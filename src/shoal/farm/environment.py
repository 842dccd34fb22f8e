"""Define `shoal/Farm-v0`, a Gymnasium environment of a simulated or deployed farm.

Importing this module registers the environment with Gymnasium, as does the long form of its id,
`shoal.farm.environment:shoal/Farm-v0`.

1. A step is one action, followed by a fixed number of seconds. The episode terminates when the
   stream is finished, and is truncated after the last step.
2. `reset(seed=s)` uses the stream of seed s; without a seed, one drawn from the environment's
   generator. So agents that reset with the same seeds get the same streams.
3. An observation has the chosen fields of `Observation`, by default those of the paper's Eq. 1.
   Without the phase clock, the fields that reveal the position in the stream are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from shoal.errors import UsageError
from shoal.farm.arrays import NDArray, np
from shoal.farm.model import EQUATION_1, FarmDriver, Limits, Observation, nearest
from shoal.farm.orders import QueueOrder, order_named
from shoal.farm.reward import Reward
from shoal.farm.simulated import PAPER, Overheads, SimulatedFarm
from shoal.farm.workloads import Generator, workload_named

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise UsageError(f"The environment needs {error.name}: pip install 'shoal[farm]'.") from error

ID = "shoal/Farm-v0"
_MOST_TASKS = 100_000
"""The upper bound of fields that count tasks."""


class FarmEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A farm in which the agent adds and removes workers."""

    def __init__(
        self,
        workload: str | Generator = "paper-measured",
        *,
        order: str | QueueOrder = "fifo",
        phase_clock: bool = True,
        actions: Sequence[int] = (-1, 0, 1),
        reward: Reward | None = None,
        step: float = 8.0,
        steps: int = 30,
        workers: int = 12,
        limits: Limits | None = None,
        overheads: Overheads = PAPER,
        fields: Sequence[str] = EQUATION_1,
        farm: Callable[[int], FarmDriver] | None = None,
    ) -> None:
        """Create the environment.

        Args:
            workload: The name of a workload, or a function that makes one from a seed.
            order: The order of the queue, or its name.
            phase_clock: Whether the agent observes the position in the stream.
            actions: The change in workers for each action.
            reward: The weights of the reward.
            step: Seconds between decisions.
            steps: The most decisions in an episode.
            workers: The initial number of workers.
            limits: The bounds on the number of workers.
            overheads: The overheads of the simulated platform.
            fields: The fields of `Observation` to observe.
            farm: Makes the farm of an episode from its seed, instead of a simulated one.
        """
        unknown = set(fields) - set(Observation._fields)
        if unknown:
            raise UsageError(
                f"An observation has no field {', '.join(sorted(unknown))}; it has "
                f"{', '.join(Observation._fields)}."
            )
        limits = limits or Limits()
        generate, order = workload_named(workload), order_named(order)

        def simulated(seed: int) -> FarmDriver:
            return SimulatedFarm(
                generate(seed), workers=workers, limits=limits, order=order,
                overheads=overheads, seed=seed,
            )  # fmt: skip

        self._make = farm or simulated
        self._clock = phase_clock
        self._changes = tuple(actions)
        self._reward = reward or Reward()
        self._step, self._steps = step, steps
        self._fields = tuple(fields)
        self.farm: FarmDriver | None = None
        self.action_space = gymnasium.spaces.Discrete(len(self._changes))
        self.observation_space = self._space(limits, step * steps)

    def _space(self, limits: Limits, seconds: float) -> gymnasium.Space[NDArray[np.float32]]:
        bounds = dict.fromkeys(Observation._fields, (0.0, float(_MOST_TASKS)))
        bounds |= dict.fromkeys(("mean_response", "max_response"), (0.0, seconds))
        bounds |= {
            "workers": (limits.least, limits.most),
            "on_time": (0.0, 1.0),
            "changing": (-limits.most, limits.most),
        }
        low, high = zip(*(bounds[field] for field in self._fields), strict=True)
        box: Any = gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        return cast("gymnasium.Space[NDArray[np.float32]]", box)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new stream."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        self.farm = self._make(drawn)
        self._left = self._steps
        return self._seen(self.farm.advance(0.0)), {"seed": drawn}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Change the number of workers and let the time of a step pass."""
        if self.farm is None:
            raise UsageError("Call reset() before step().")
        change = self.farm.scale_by(self._changes[int(action)])
        observation = self.farm.advance(self._step)
        self._left -= 1
        finished = self.farm.finished
        truncated = not finished and self._left == 0
        reward = self._reward.of(observation, change)
        if finished or truncated:
            reward += self._reward.at_end(self.farm.unfinished)
        model = self.farm.model
        info = {
            "change": change,
            "completed": model.completed_total,
            "on_time": model.on_time_total,
            "worker_seconds": model.worker_seconds,
        }
        return self._seen(observation), reward, finished, truncated, info

    def action_for(self, change: int) -> int:
        """Return the action that changes the workers by this number, or as nearly as possible."""
        return self._changes.index(nearest(change, self._changes))

    def _seen(self, observation: Observation) -> NDArray[np.float32]:
        shown = observation if self._clock else observation.without_clock()
        return np.array([getattr(shown, field) for field in self._fields], np.float32)


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point="shoal.farm.environment:FarmEnv")
