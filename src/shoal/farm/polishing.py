"""Polishing of a trained table: what TD learning leaves undecided is decided by trying.

1. Late tasks are rare, so the values of neighbouring actions differ by less than their noise, and
   a learned table is ragged. Each of its rows becomes a *band*: below it workers are added, above
   it they leave, within it nothing changes. The band that fits the learned row best is taken.
2. A direct search then moves the bands of neighbouring rows by one worker, or makes them alike; a
   move stays if the policy is judged better on the same streams, which are training streams. At
   first one that is judged a little worse may stay too, so that the search gets out of dead ends.
3. Held-out streams that no table was chosen by say in the end whether the result is better.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from random import Random
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
_BADLY = 0.05
_LENIENT = 0.2
"""In mean workers: what a move may do worse on the few, and, falling to none, what it may cost."""
_RUNS = (1, 1, 2, 4, 8)
"""How many neighbouring places along the table are moved together."""
_MOVES = ((1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1), None)
"""Of a band's lower and upper end; or none, and the band becomes that of a neighbour."""

Row = tuple[int, ...]
"""A cell but for the number of workers."""
Band = tuple[int, int]
Bands = dict[Row, Band]


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
    training: Training, policy: Sarsa, tries: int = 500, report: Report | None = None
) -> Sarsa:
    """The policy as bands, moved to where they do best; or itself, if that isn't better."""
    if tries == 0:
        return policy
    rng = Random(training.seed)
    few, many = (range(TRAINING_SEEDS, TRAINING_SEEDS + count) for count in (_FEW, _STREAMS))
    bands = _fitted_bands(policy, _met(training, policy, few))
    table = np.zeros(policy.table.shape, np.float32)
    _write(table, bands)
    trial = Sarsa({"table": table}, policy.about | asdict(training) | {"polished": tries})
    now, now_few = judgement(training, trial, many), judgement(training, trial, few)
    best, best_bands = now, bands
    for number in range(1, tries + 1):
        lenient = _LENIENT * (1 - number / tries)
        moved = _moved(rng, bands)
        _write(table, moved)
        quick = now_few if moved == bands else judgement(training, trial, few)
        if quick != now_few and quick >= now_few - _BADLY - lenient:
            judged = judgement(training, trial, many)
            if judged > now - lenient * rng.random():
                now, now_few, bands = judged, quick, moved
            if judged > best:
                best, best_bands = judged, moved
        if report is not None:
            report(number, best)
    _write(table, best_bands)
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


def _fitted_bands(policy: Sarsa, met: Counter[Row]) -> Bands:
    """A band for each row that the policy can meet; one that it didn't meet is like the last."""
    progress, rates, waiting = TABLE[:3]
    clock = policy.about.get("phase_clock", True)
    places = [(at, 0) for at in range(progress)] if clock else [(0, at) for at in range(rates)]
    bands: Bands = {}
    band = (0, TABLE[-2] - 1)
    for row in ((*place, tasks) for place in places for tasks in range(waiting)):
        weights = np.array([met[(*row, workers)] for workers in range(TABLE[-2])])
        if weights.any():
            band = _fitted(policy.table[row], weights)
        bands[row] = band
    return bands


def _fitted(learned: NDArray[Any], weights: NDArray[Any]) -> Band:
    """The band that decides most like the learned row, where the policy really is."""
    chosen = np.argmax(learned, axis=1)

    def disagreement(band: Band) -> float:
        return float(weights[np.argmax(_banded(*band), axis=1) != chosen].sum())

    count = len(chosen)
    bands = ((low, high) for low in range(count) for high in range(low, count))
    return min(bands, key=lambda band: (disagreement(band), band[1] - band[0]))


def _moved(rng: Random, bands: Bands) -> Bands:
    """The bands with those of a run of neighbours moved, or made like the one beside the run."""
    waiting = TABLE[2]
    rows = list(bands)
    start, length = rng.randrange(len(rows) // waiting), rng.choice(_RUNS)
    columns = rng.choice([(at,) for at in range(waiting)] + [tuple(range(waiting))])
    move, beside = rng.choice(_MOVES), rng.choice((start - 1, start + length))
    moved = dict(bands)
    for place in range(start, min(start + length, len(rows) // waiting)):
        for column in columns:
            row = rows[place * waiting + column]
            if move is not None:
                moved[row] = _shifted(bands[row], *move)
            elif 0 <= beside < len(rows) // waiting:
                moved[row] = bands[rows[beside * waiting + column]]
    return moved


def _shifted(band: Band, by_low: int, by_high: int) -> Band:
    """The band moved, within the table and never upside down."""
    low = min(max(band[0] + by_low, 0), TABLE[-2] - 1)
    return low, min(max(band[1] + by_high, low), TABLE[-2] - 1)


def _write(table: NDArray[Any], bands: Bands) -> None:
    for row, band in bands.items():
        table[row] = _banded(*band)


def _banded(low: int, high: int) -> NDArray[np.float32]:
    """A table's row that grows below the band, shrinks above it, and stays within it."""
    workers = np.arange(TABLE[-2])
    change = (workers < low).astype(int) - (workers > high).astype(int)
    row: NDArray[np.float32] = (change[:, None] == np.array(ACTIONS)).astype(np.float32)
    return row
