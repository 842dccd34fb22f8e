"""Polishing of a trained table: what TD learning leaves undecided is decided by trying.

1. Late tasks are rare, so the values of neighbouring actions differ by less than their noise, and
   a learned table is ragged. Each of its rows becomes a *band*: below it workers are added, above
   it they leave, within it nothing changes. The band that fits the learned row best is taken.
2. The bands are then moved by one worker, together and one by one, and stay moved if the policy
   is judged better on the same streams. These are training streams.
3. Held-out streams that no table was chosen by say in the end whether the result is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from shoal.farm.arrays import NDArray, np
from shoal.farm.control import run_episode
from shoal.farm.learned import ACTIONS, TABLE, Sarsa
from shoal.farm.model import Observation
from shoal.farm.orders import order_named
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.training import HELD_OUT_SEEDS, TRAINING_SEEDS, Report, Training, judgement, stream

_STREAMS = 32
_FEW = 8
"""Streams of each workload that a move is tried on; and those that drop it if it does badly."""
_BADLY = 0.1
_GAIN = 0.002
"""What a move must bring, in mean workers."""
_RUN = 6
"""Neighbouring rows that are moved together."""
_MOVES = ((1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Of a band's lower and upper end."""

Row = tuple[int, ...]
"""A cell but for the number of workers."""


class _Watched(Sarsa):
    """Counts the cells that the policy meets."""

    def __init__(self, arrays: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
        super().__init__(arrays, about)
        self.met: Counter[Row] = Counter()

    def values(self, observation: Observation) -> NDArray[Any]:
        """The row of the table, counted."""
        cell = self._senses.cell(observation)
        self.met[cell] += 1
        row: NDArray[Any] = self.arrays["table"][cell]
        return row


def polished(
    training: Training, policy: Sarsa, sweeps: int = 3, report: Report | None = None
) -> Sarsa:
    """The policy as bands, moved to where they do best; or itself, if that isn't better."""
    if sweeps == 0:
        return policy
    few, many = (range(TRAINING_SEEDS, TRAINING_SEEDS + count) for count in (_FEW, _STREAMS))
    met = _met(training, policy, few)
    rows = Counter[Row]()
    for cell, count in met.items():
        rows[cell[:-1]] += count
    table = np.zeros(policy.table.shape, np.float32)
    bands = {row: _fitted(policy.table[row], row, met) for row in rows}
    _write(table, bands)
    trial = Sarsa({"table": table}, policy.about | {"polished": sweeps})
    best, best_few = judgement(training, trial, many), judgement(training, trial, few)
    for _ in range(sweeps):
        before = best
        for group in _groups(rows):
            for move in _MOVES:
                moved = {row: _moved(bands[row], *move) for row in group}
                _write(table, moved)
                quick = judgement(training, trial, few)
                if quick > best_few - _BADLY:
                    judged = judgement(training, trial, many)
                    if judged > best + _GAIN:
                        best, best_few = judged, quick
                        bands |= moved
                _write(table, {row: bands[row] for row in group})
            if report is not None:
                report(sweeps, best)
        if best == before:
            break
    fresh = range(HELD_OUT_SEEDS + training.held_out, HELD_OUT_SEEDS + 3 * training.held_out)
    better = judgement(training, trial, fresh) > judgement(training, policy, fresh)
    return trial if better else policy


def _met(training: Training, policy: Sarsa, seeds: range) -> Counter[Row]:
    """How often the policy meets each cell."""
    watched = _Watched({"table": policy.table}, policy.about)
    order = order_named(training.order)
    for workload in training.workloads:
        for seed in seeds:
            farm = SimulatedFarm(stream(workload, seed), order=order, seed=seed)
            run_episode(farm, watched, phase_clock=training.phase_clock)
    return watched.met


def _fitted(learned: NDArray[Any], row: Row, met: Counter[Row]) -> tuple[int, int]:
    """The band that decides most like the learned row, where the policy really is."""
    chosen = np.argmax(learned, axis=1)
    weights = np.array([met[(*row, workers)] for workers in range(len(chosen))])

    def disagreement(band: tuple[int, int]) -> float:
        return float(weights[np.argmax(_banded(*band), axis=1) != chosen].sum())

    return min(_bands(len(chosen)), key=lambda band: (disagreement(band), band[1] - band[0]))


def _groups(rows: Counter[Row]) -> Iterator[tuple[Row, ...]]:
    """The rows that are moved together: all, neighbours, then each by itself."""
    ordered = sorted(rows)
    yield tuple(ordered)
    for start in range(0, len(ordered) - _RUN + 1, _RUN // 2):
        yield tuple(ordered[start : start + _RUN])
    for row, _ in rows.most_common():
        yield (row,)


def _bands(count: int) -> Iterator[tuple[int, int]]:
    return ((low, high) for low in range(count) for high in range(low, count))


def _moved(band: tuple[int, int], by_low: int, by_high: int) -> tuple[int, int]:
    """The band moved, within the table and never upside down."""
    low = min(max(band[0] + by_low, 0), TABLE[-2] - 1)
    return low, min(max(band[1] + by_high, low), TABLE[-2] - 1)


def _write(table: NDArray[Any], bands: dict[Row, tuple[int, int]]) -> None:
    for row, band in bands.items():
        table[row] = _banded(*band)


def _banded(low: int, high: int) -> NDArray[np.float32]:
    """A table's row that grows below the band, shrinks above it, and stays within it."""
    workers = np.arange(TABLE[-2])
    change = (workers < low).astype(int) - (workers > high).astype(int)
    row: NDArray[np.float32] = (change[:, None] == np.array(ACTIONS)).astype(np.float32)
    return row
