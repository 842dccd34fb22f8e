"""Make plans for `ModelPredictive` from streams, by dynamic programming on the farm's simulator.

1. Each stream is simulated with every constant number of workers. This says which of its tasks are
   late with so many, whatever the stream's bursts, the order of the queue and the platform are.
2. The streams are samples of a Markov chain over the states: which state follows which after a
   control step, and how many tasks of that step are late with each number of workers.
3. A change takes effect within its step, when a worker usually starts or leaves. The best plan of
   this chain has the lowest sum of worker-seconds, a price for each late task and one for each
   change.
4. Of the best plans for several prices, the one is used that controls held-out streams best.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from shoal.farm.arrays import NDArray, np
from shoal.farm.episode import STEP
from shoal.farm.model import Limits
from shoal.farm.orders import order_named
from shoal.farm.predictive import MOST_WORKERS, ModelPredictive, States
from shoal.farm.simulated import PAPER, SimulatedFarm
from shoal.farm.training import TRAINING_SEEDS, OnEpisode, Training, judgement, stream
from shoal.farm.workloads import Workload

_CROWDS = range(5, 23)
"""The constant numbers of workers that are simulated; beyond them the plan extrapolates."""
_PRICES = (35, 45, 50, 55, 60, 65, 70, 80, 90, 110, 150, 250)
"""Candidates for the price of a late task, in worker-seconds."""
_CHANGE_PRICES = (4, 10, 20, 35)
"""Candidates for the price of a change, in worker-seconds."""
_HELD_OUT = 100
"""How many held-out streams of each workload the candidates control."""
_ROUNDS = 100
"""Rounds of value iteration: more than an episode has steps."""
_OFFSETS = 4
"""Each stream is sampled with its control steps beginning at so many different moments."""
_IMPOSSIBLE = 1e9


def train_predictive(training: Training, report: OnEpisode | None = None) -> ModelPredictive:
    """Make the best plan for streams of these workloads.

    `training.episodes` limits the episodes of constant numbers of workers. `report` counts them,
    and the candidates.
    """
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if report is not None:
            report(done, 0.0)

    chain = Chain(States(training.phase_clock))
    streams = max(1, training.episodes // len(_CROWDS) // len(training.workloads))
    for workload in training.workloads:
        for seed in range(TRAINING_SEEDS, TRAINING_SEEDS + streams):
            each = stream(workload, seed)
            chain.add(each, late_tasks(each, training.order))
            count()
    checked = replace(training, held_out=_HELD_OUT)
    judged: list[tuple[float, int, ModelPredictive]] = []
    for price, change_price in product(_PRICES, _CHANGE_PRICES):
        about = _about(training, len(training.workloads) * streams, price, change_price)
        plan = ModelPredictive({"plan": chain.best_plan(price, change_price)}, about)
        judged.append((judgement(checked, plan), -len(judged), plan))
        count()
    best, _, plan = max(judged, key=lambda candidate: candidate[:2])
    plan.about["judgement"] = round(best, 4)
    return plan


def planning_steps(training: Training) -> int:
    """Return how often `train_predictive` reports."""
    streams = max(1, training.episodes // len(_CROWDS) // len(training.workloads))
    return len(training.workloads) * streams + len(_PRICES) * len(_CHANGE_PRICES)


def _about(training: Training, streams: int, price: float, change_price: float) -> dict[str, Any]:
    known = {name: getattr(training, name) for name in ("workloads", "order", "phase_clock")}
    return known | {
        "target": training.target,
        "trained_episodes": streams * len(_CROWDS),
        "price": price,
        "change_price": change_price,
    }


def late_tasks(workload: Workload, order: str) -> NDArray[np.bool_]:
    """Return which tasks are late with each number of workers, as a row for each of `_CROWDS`."""
    rows = []
    for workers in _CROWDS:
        farm = SimulatedFarm(
            workload, workers=workers, limits=Limits(workers, workers), order=order_named(order)
        )
        farm.drain()
        rows.append(farm.met)
    return ~np.array(rows, bool)


class _Sample(NamedTuple):
    """A control step of a stream."""

    state: int
    after: int | None
    """The next state; None if no task arrives after this step."""
    late: NDArray[np.float64]
    """How many of the tasks that arrive in this step are late, by the number of workers."""


class Chain:
    """A Markov chain over states, estimated from streams."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._visits = np.zeros(states.count)
        self._follows = np.zeros((states.count, states.count))
        self._late = np.zeros((states.count, MOST_WORKERS + 1))

    def add(self, workload: Workload, late: NDArray[np.bool_]) -> None:
        """Add the control steps of a stream."""
        for offset in range(_OFFSETS):
            for sample in self._samples(workload.arrivals, late, offset * STEP / _OFFSETS):
                self._visits[sample.state] += 1
                self._late[sample.state] += sample.late
                if sample.after is not None:
                    self._follows[sample.state, sample.after] += 1

    def _samples(
        self, arrivals: NDArray[np.float64], late: NDArray[np.bool_], offset: float
    ) -> list[_Sample]:
        times = np.arange(offset, arrivals[-1] + STEP, STEP)
        arrived = np.searchsorted(arrivals, times, side="right")
        self._states.reset()
        rates = np.diff(arrived, prepend=0) / STEP
        states = [self._states.next(*each) for each in zip(arrived, rates, strict=True)]
        first = 1 if offset else 0  # the first rate of an offset stream is of a shorter step
        return [
            _Sample(
                states[at],
                states[at + 1] if arrived[at + 1] < len(arrivals) else self._states.end(states[at]),
                _by_workers(late[:, arrived[at] : arrived[at + 1]].sum(axis=1)),
            )
            for at in range(first, len(times) - 1)
        ]

    def best_plan(self, price: float, change_price: float) -> NDArray[np.int8]:
        """Return the best change for each state and number of workers, by value iteration."""
        visits = np.maximum(self._visits, 1)[:, None]
        follows = self._follows / visits
        step = STEP * np.arange(MOST_WORKERS + 1) + price * self._late / visits
        until_start = PAPER.startup / STEP
        until_exit = (PAPER.drain_least + PAPER.drain_most) / 2 / STEP
        grow = until_start * step[:, :-1] + (1 - until_start) * step[:, 1:] + change_price
        shrink = until_exit * step[:, 1:] + (1 - until_exit) * step[:, :-1] + change_price
        costs = np.full((3, *step.shape), _IMPOSSIBLE)  # of no change, -1 and +1
        values = np.zeros(step.shape)
        for _ in range(_ROUNDS):
            later = follows @ values
            costs[0] = step + later
            costs[1, :, 1:] = shrink + later[:, :-1]
            costs[2, :, :-1] = grow + later[:, 1:]
            values = costs.min(axis=0)
        plan = np.array([0, -1, 1], np.int8)[costs.argmin(axis=0)]
        return self._like_visited(plan)

    def _like_visited(self, plan: NDArray[np.int8]) -> NDArray[np.int8]:
        """Let each state that was never visited do what the closest visited one does."""
        visited = np.flatnonzero(self._visits)
        every = np.arange(len(plan))
        closest: NDArray[np.int8] = plan[
            visited[np.abs(visited[None, :] - every[:, None]).argmin(axis=1)]
        ]
        return closest


def _by_workers(late: NDArray[np.int_]) -> NDArray[np.float64]:
    """Extend counts for `_CROWDS` to all numbers of workers."""
    counts = np.empty(MOST_WORKERS + 1)
    counts[: _CROWDS[0]] = 3 * late[0] + 0.5
    counts[_CROWDS[0] : _CROWDS[-1] + 1] = late
    counts[_CROWDS[-1] + 1 :] = late[-1]
    return counts
