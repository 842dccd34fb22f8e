"""Define `ModelPredictive`, which simulates each possible change and takes the best one.

1. A simulation starts from the farm's current state: its workers, running and waiting tasks.
   Arrivals are drawn from recent rates, processing times from the workload's distribution.
2. Every change is simulated with the same draws, so that only the change makes a difference.
3. The best change has the lowest cost: worker-seconds, plus a price for each late task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from shoal.farm.arrays import NDArray, np
from shoal.farm.model import Limits, Observation
from shoal.farm.orders import QueueOrder, order_named
from shoal.farm.simulated import PAPER, Overheads, SimulatedFarm
from shoal.farm.workloads import Workload, processing_times, workload_of

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
"""Draws a number of processing times."""


class ModelPredictive:
    """Simulates the farm over sampled arrivals for each possible change."""

    def __init__(
        self,
        *,
        order: str | QueueOrder = "fifo",
        actions: Sequence[int] = (0, -1, 1),
        limits: Limits | None = None,
        overheads: Overheads = PAPER,
        processing: Draw = processing_times,
        floor: int = 1,
        horizon: float = 24.0,
        samples: int = 4,
        price: float = 15.0,
        change_price: float = 10.0,
        seed: int = 0,
    ) -> None:
        """Create the autoscaler.

        Args:
            order: The order of the farm's queue.
            actions: The changes to try; the first of equally good ones is taken.
            limits: The bounds on the number of workers.
            overheads: The platform's overheads.
            processing: Draws processing times from the stream's distribution.
            floor: The fewest workers to keep, for unforeseen load.
            horizon: How many seconds to simulate.
            samples: How many streams to draw for each decision.
            price: The worker-seconds that a task on time is worth.
            change_price: The worker-seconds that a change must save.
            seed: The seed of the draws.
        """
        self._order = order_named(order)
        self._actions = tuple(actions)
        self._limits = limits or Limits()
        self._overheads = overheads
        self._processing = processing
        self._floor = floor
        self._horizon = horizon
        self._samples = samples
        self._price = price
        self._change_price = change_price
        self._seed = seed
        self.reset()

    def reset(self) -> None:
        """Clear the state for a new stream."""
        self._rng = np.random.default_rng(self._seed)
        self._rates: deque[float] = deque(maxlen=3)

    def decide(self, observation: Iterable[float]) -> int:
        """Return the change with the lowest simulated cost."""
        observation = Observation.of(observation)
        planned = round(observation.workers + observation.changing)
        self._rates.append(observation.arrival_rate)
        if planned < self._floor:
            return self._floor - planned
        allowed = [action for action in self._actions if planned + action >= self._floor]
        streams = [self._stream(observation) for _ in range(self._samples)]
        costs = {
            action: sum(self._cost(observation, action, *stream) for stream in streams)
            for action in allowed
        }
        return min(costs, key=lambda action: costs[action])

    def _stream(self, observation: Observation) -> tuple[Workload, int]:
        """Draw a stream of present and future tasks, and a seed for the platform."""
        rng = self._rng
        busy, waiting = int(observation.busy), int(observation.waiting)
        rate = float(rng.choice(list(self._rates)))
        count = int(rng.poisson(rate * self._horizon))
        arrivals = np.sort(rng.random(count)) * self._horizon
        times = self._processing(rng, busy + waiting + count)
        times[:busy] *= rng.random(busy)
        at = np.concatenate([np.zeros(busy + waiting), arrivals])
        return workload_of(at, times), int(rng.integers(2**31))

    def _cost(self, observation: Observation, change: int, stream: Workload, seed: int) -> float:
        farm = SimulatedFarm(
            stream,
            workers=min(max(round(observation.workers), self._limits.least), self._limits.most),
            limits=self._limits,
            order=self._order,
            overheads=self._overheads,
            seed=seed,
        )
        farm.scale_by(round(observation.changing) + change)
        farm.advance(self._horizon)
        spent = farm.model.worker_seconds
        left = farm.unfinished
        farm.drain(self._horizon)
        late = len(farm.met) - sum(farm.met)
        return spent + self._price * (late + left) + self._change_price * abs(change)
