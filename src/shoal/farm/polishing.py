"""Polishing of a trained table: what TD learning leaves undecided is decided by trying.

1. Late tasks are rare, so the values of neighbouring actions differ by less than their noise, and
   a learned table is ragged. What was learned of a place along the table becomes a *level*: the
   number of workers to go to that decides most like it. Then each row is a *band* about the level:
   below it workers are added, above it they leave, within it nothing changes.
2. A direct search moves the bands of neighbouring rows by one worker, or makes them alike; a move
   stays if the policy is judged better on the same streams, which are training streams. At first
   one that is judged a little worse than the best may stay too: so the search leaves dead ends.
   The same decisions on the same stream have the same end, so only new courses are simulated.
3. Held-out streams that no table was chosen by say in the end whether the result is better.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import islice
from random import Random
from typing import Any

from shoal.farm.arrays import NDArray, np
from shoal.farm.control import run_episode
from shoal.farm.learned import ACTIONS, TABLE, Sarsa
from shoal.farm.model import Observation
from shoal.farm.orders import order_named
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.training import (
    HELD_OUT_SEEDS,
    TRAINING_SEEDS,
    Fared,
    Report,
    Training,
    judgement,
    mean_fared,
    stream,
    weighed,
)

_STREAMS = 48
_FEW = 8
"""Streams of each workload that a move is tried on; and those that drop it if it does badly."""
_BADLY = 0.05
_LENIENT = 0.1
"""In mean workers: what a move may do worse on the few, and, falling to none, what it may cost."""
_RUNS = (1, 1, 2, 4, 8)
"""How many neighbouring places along the table are moved together."""
_MOVES = ((1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1), None)
"""Of a band's lower and upper end; or none, and the band becomes that of a neighbour."""

Cell = tuple[int, ...]
Row = tuple[int, ...]
"""A cell but for the number of workers."""
Band = tuple[int, int]
Bands = dict[Row, Band]


class _Watched(Sarsa):
    """Writes down the cells that the policy meets."""

    def __init__(self, arrays: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
        super().__init__(arrays, about)
        self.met: list[Cell] = []

    def values(self, observation: Observation) -> NDArray[Any]:
        """The row of the table; its cell is written down."""
        cell = self._senses.cell(observation)
        self.met.append(cell)
        row: NDArray[Any] = self.arrays["table"][cell]
        return row


class _Course:
    """What comes of a course of decisions on a stream: the next cell, or the end."""

    __slots__ = ("after", "cell", "fared")

    def __init__(self) -> None:
        self.cell: Cell | None = None
        self.after: dict[int, _Course] = {}
        self.fared: Fared | None = None

    def end(self, choices: NDArray[Any]) -> _Course:
        """Where these choices lead, as far as is known."""
        course = self
        while course.cell is not None:
            course = course.after.setdefault(int(choices[course.cell]), _Course())
        return course


class Streams:
    """Streams that tables are tried on; a course of decisions is simulated only once."""

    def __init__(self, training: Training, seeds: range) -> None:
        self._training = training
        self._order = order_named(training.order)
        self._begun = {w: {seed: _Course() for seed in seeds} for w in training.workloads}
        self.met: Counter[Cell] = Counter()
        """How often each cell was met in the simulated courses."""

    def judgement(self, table: NDArray[Any], count: int) -> float:
        """How good a table is on the first so many streams of each workload."""
        choices = np.argmax(table, axis=-1)
        fared = []
        for workload, begun in self._begun.items():
            first = islice(begun.items(), count)
            each = [self._fared(workload, *known, table, choices) for known in first]
            fared.append(mean_fared(each))
        return weighed(self._training, fared)

    def _fared(
        self, workload: str, seed: int, begun: _Course, table: NDArray[Any], choices: NDArray[Any]
    ) -> Fared:
        known = begun.end(choices)
        if known.fared is not None:
            return known.fared
        clock = self._training.phase_clock
        policy = _Watched({"table": table}, {"phase_clock": clock})
        farm = SimulatedFarm(stream(workload, seed), order=self._order, seed=seed)
        episode = run_episode(farm, policy, phase_clock=clock)
        self.met.update(policy.met)
        course = begun
        for cell in policy.met:
            course.cell = cell
            course = course.after.setdefault(int(choices[cell]), _Course())
        course.fared = Fared(episode.qos, episode.mean_workers, episode.actions)
        return course.fared


def polished(
    training: Training, policy: Sarsa, tries: int = 500, report: Report | None = None
) -> Sarsa:
    """The policy as bands, moved to where they do best; or itself, if that isn't better."""
    if tries == 0:
        return policy
    rng = Random(training.seed)
    streams = Streams(training, range(TRAINING_SEEDS, TRAINING_SEEDS + _STREAMS))
    streams.judgement(policy.table, _FEW)
    bands = _fitted_bands(policy, streams.met)
    table = np.zeros(policy.table.shape, np.float32)
    _write(table, bands)
    best, best_few = streams.judgement(table, _STREAMS), streams.judgement(table, _FEW)
    best_bands = bands
    for number in range(1, tries + 1):
        lenient = _LENIENT * (1 - number / tries)
        moved = _moved(rng, bands)
        _write(table, moved)
        few = streams.judgement(table, _FEW)
        if few >= best_few - _BADLY - lenient:
            judged = streams.judgement(table, _STREAMS)
            if judged >= best - lenient * rng.random():
                bands = moved
            if judged > best:
                best, best_few, best_bands = judged, few, moved
        if report is not None:
            report(number, best)
    _write(table, best_bands)
    trial = Sarsa({"table": table}, policy.about | asdict(training) | {"polished": tries})
    fresh = range(HELD_OUT_SEEDS + training.held_out, HELD_OUT_SEEDS + 3 * training.held_out)
    better = judgement(training, trial, fresh) > judgement(training, policy, fresh)
    return trial if better else policy


def _fitted_bands(policy: Sarsa, met: Counter[Cell]) -> Bands:
    """A level for each place that the policy can meet; one that it didn't meet is like the last."""
    progress, rates, waiting, workers = TABLE[:-1]
    clock = policy.about.get("phase_clock", True)
    places = [(at, 0) for at in range(progress)] if clock else [(0, at) for at in range(rates)]
    bands: Bands = {}
    level = workers - 1
    for place in places:
        counts = np.array(
            [[met[(*place, tasks, at)] for at in range(workers)] for tasks in range(waiting)]
        )
        if counts.any():
            level = _fitted(policy.table[place], counts)
        bands |= {(*place, tasks): (level, level) for tasks in range(waiting)}
    return bands


def _fitted(learned: NDArray[Any], weights: NDArray[Any]) -> int:
    """The number of workers to go to that decides most like what was learned, where it was met."""
    chosen = np.argmax(learned, axis=-1)

    def disagreement(level: int) -> float:
        decided = np.argmax(_banded(level, level), axis=-1)
        return float(weights[decided[None, :] != chosen].sum())

    return min(range(TABLE[-2]), key=disagreement)


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
