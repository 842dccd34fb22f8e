"""Define trained autoscalers, SARSA's table and Double DQN's network, which need only numpy.

1. A policy is a file of plain arrays with a line of JSON that describes its training.
2. It observes the fields of `Observation` and, as its only state, a smoothed arrival rate.
3. Of actions with equal values, it takes the one that changes least.
4. A policy that was trained without the phase clock ignores it.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterable
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Self

from shoal.errors import UsageError
from shoal.farm.arrays import NDArray, np
from shoal.farm.model import Observation

ACTIONS = (0, -1, 1)
"""The actions of a policy, in the order in which ties are broken."""
_SMOOTHING = 0.5
PROGRESS_EDGES = (12, 30, 50, 70, 95, 200, 320, 440, 520, 600, 680, 760, 860, 960, 1060)
"""Bins of results collected: the position in the stream, for a policy with the phase clock."""
RATE_EDGES = (2.5, 3.7, 4.6, 5.4, 6.2, 7.2)
"""Bins of arrivals per second, which a policy without the phase clock uses instead."""
WAITING_EDGES = (6.5,)
WORKERS_EDGES = tuple(edge + 0.5 for edge in range(5, 20))
TABLE = (
    len(PROGRESS_EDGES) + 1,
    len(RATE_EDGES) + 1,
    len(WAITING_EDGES) + 1,
    len(WORKERS_EDGES) + 1,
    len(ACTIONS),
)
"""The table's shape: progress, arrival rate, waiting tasks, workers, actions."""
INPUTS = 11
"""The number of inputs of the network."""


class Senses:
    """Converts observations to a cell of the table or to the network's inputs."""

    def __init__(self, phase_clock: bool) -> None:
        self._clock = phase_clock
        self.reset()

    def reset(self) -> None:
        """Clear the state for a new stream."""
        self._rate = 0.0

    def take(self, observation: Observation) -> Observation:
        """Update the smoothed rate, and return what the policy may see."""
        known = self._rate or observation.arrival_rate  # at the start nothing has arrived yet
        self._rate = known + _SMOOTHING * (observation.arrival_rate - known)
        return observation if self._clock else observation.without_clock()

    def cell(self, observation: Observation) -> tuple[int, ...]:
        """Return the table's cell for an observation."""
        seen = self.take(observation)
        return (
            bisect(PROGRESS_EDGES, seen.collected),
            0 if self._clock else bisect(RATE_EDGES, self._rate),
            bisect(WAITING_EDGES, seen.waiting),
            bisect(WORKERS_EDGES, seen.workers + seen.changing),
        )

    def inputs(self, observation: Observation) -> NDArray[np.float32]:
        """Return the network's inputs for an observation, each of the order of 1."""
        seen = self.take(observation)
        return np.array(
            [
                seen.phases_left / 3,
                seen.collected / 1000,
                np.log1p(seen.waiting) / 3,
                (seen.workers + seen.changing - 12) / 5,
                seen.changing,
                (seen.mean_response - 1.5) / 2,
                (seen.max_response - 3) / 4,
                (seen.arrival_rate - 5) / 3,
                (self._rate - 5) / 3,
                (seen.on_time - 0.95) * 10,
                (seen.busy - 8) / 5,
            ],
            np.float32,
        )


def kind_of_file(path: str | Path) -> str:
    """Return which kind of policy a file has."""
    with np.load(path, allow_pickle=False) as stored:
        return str(json.loads(str(stored["about"])).get("kind"))


class Trained:
    """The base of trained policies: files, and the choice of the best action."""

    kind = ""

    def __init__(self, arrays: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
        self.arrays = arrays
        self.about = about
        self._senses = Senses(bool(about.get("phase_clock", True)))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a policy from its file."""
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = json.loads(str(arrays.pop("about")))
        if about.get("kind") != cls.kind:
            raise UsageError(
                f"{path} has a policy of kind {about.get('kind')!r}, not {cls.kind!r}."
            )
        return cls(arrays, about)

    @classmethod
    def shipped(
        cls, order: str = "fifo", *, phase_clock: bool = True, workload: str = "paper-measured"
    ) -> Self:
        """Load Shoal's own policy for an order of the queue, with or without the phase clock.

        `workload` matters to policies that are made for one workload, those of `ModelPredictive`.
        """
        if not cls.comes(order, phase_clock=phase_clock, workload=workload):
            clock = "with" if phase_clock else "without"
            raise UsageError(
                f"Shoal has no {cls.kind} policy for {order!r} {clock} the phase clock on "
                f"{workload!r}; train one with `shoal farm train`."
            )
        with as_file(cls._resource(order, phase_clock, workload)) as path:
            return cls.load(path)

    @classmethod
    def comes(cls, order: str, *, phase_clock: bool, workload: str = "paper-measured") -> bool:
        """Return whether Shoal includes a policy for these circumstances."""
        return cls._resource(order, phase_clock, workload).is_file()

    @classmethod
    def _resource(cls, order: str, phase_clock: bool, workload: str) -> Traversable:
        name = f"{cls.kind}-{order}-{'clock' if phase_clock else 'blind'}.npz"
        return files("shoal.farm") / "policies" / name

    def save(self, path: str | Path) -> None:
        """Write the policy to a file."""
        about = np.array(json.dumps(self.about | {"kind": self.kind}))
        arrays: dict[str, Any] = {"about": about, **self.arrays}
        np.savez_compressed(path, **arrays)

    def reset(self) -> None:
        """Clear the state for a new stream."""
        self._senses.reset()

    def decide(self, observation: Iterable[float]) -> int:
        """Return the most valuable change, if it exceeds no change by the policy's margin."""
        values = self.values(Observation.of(observation)).copy()
        values[0] += self.about.get("margin", 0.0)
        return ACTIONS[int(np.argmax(values))]

    def values(self, observation: Observation) -> NDArray[Any]:
        """Return the value of each of `ACTIONS`."""
        raise NotImplementedError


class Sarsa(Trained):
    """A trained table of SARSA(lambda)."""

    kind = "sarsa"

    @property
    def table(self) -> NDArray[Any]:
        """The value of each action in each cell."""
        return self.arrays["table"]

    def values(self, observation: Observation) -> NDArray[Any]:
        """Return a row of the table."""
        row: NDArray[Any] = self.arrays["table"][self._senses.cell(observation)]
        return row


class DoubleDqn(Trained):
    """A trained network of Double DQN."""

    kind = "dqn"

    def values(self, observation: Observation) -> NDArray[Any]:
        """Return the network's outputs for an observation."""
        return self.outputs(self._senses.inputs(observation))

    def outputs(self, layer: NDArray[Any]) -> NDArray[Any]:
        """Return the network's outputs for its inputs."""
        arrays = self.arrays
        for number in range(len(arrays) // 2):
            layer = arrays[f"weight{number}"] @ layer + arrays[f"bias{number}"]
            if number < len(arrays) // 2 - 1:
                layer = np.maximum(layer, 0)
        return layer
