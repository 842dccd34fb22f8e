"""Define the farm paper's own agents as they decide: its table's bins, and its network's inputs.

1. A tie is broken towards more workers.
2. Both observe the fields of Eq. 1 and have no state. They take observations and vectors of Eq. 1.
3. The paper doesn't state how the network's inputs were scaled; `SCALES` is an estimate.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable

from shoal.farm.arrays import NDArray, np
from shoal.farm.learned import DoubleDqn, Sarsa
from shoal.farm.model import EQUATION_1

ACTIONS = (1, 0, -1)
"""The actions, in the order in which ties are broken."""
EDGES = {
    "phases_left": (0.5, 1.5, 2.5),
    "waiting": (0.5, 2.5, 5.5, 9.5, 15.5, 30.5),
    "workers": (3.5, 7.5, 11.5, 12.5, 16.5, 20.5, 24.5),
    "mean_response": (0.5, 1, 2, 4, 8, 16, 32),
    "arrival_rate": (0.15, 0.5, 1.5, 3.5),
    "on_time": (0.5, 0.8, 0.9, 0.95, 0.999),
}
"""The bins of the table."""
SCALES = (4.0, 100.0, 100.0, 1000.0, 32.0, 30.0, 30.0, 10.0, 1.0)
"""What the network's inputs, the fields of Eq. 1, are divided by."""
_PLACES = {field: EQUATION_1.index(field) for field in EDGES}


class PaperSarsa(Sarsa):
    """The paper's table."""

    kind = "paper-sarsa"

    def decide(self, observation: Iterable[float]) -> int:
        """Return the most valuable change."""
        return ACTIONS[int(np.argmax(self.table[cell(observation)]))]


class PaperDqn(DoubleDqn):
    """The paper's network."""

    kind = "paper-dqn"

    def decide(self, observation: Iterable[float]) -> int:
        """Return the most valuable change."""
        return ACTIONS[int(np.argmax(self.outputs(inputs(observation))))]


def cell(observation: Iterable[float]) -> tuple[int, ...]:
    """Return the table's cell for an observation, or for a vector of Eq. 1."""
    seen = tuple(observation)
    return tuple(bisect(edges, seen[_PLACES[field]]) for field, edges in EDGES.items())


def inputs(observation: Iterable[float]) -> NDArray[np.float32]:
    """Return the network's inputs for an observation, or for a vector of Eq. 1."""
    pairs = zip(observation, SCALES, strict=False)  # further fields are left out
    return np.array([value / scale for value, scale in pairs], np.float32)
