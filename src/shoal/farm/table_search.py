"""Improve a trained SARSA table by direct search.

1. Late tasks are rare, so the values of neighbouring actions differ by less than their noise, and a
   learned table is ragged. So the search starts from a *level* for each stretch of the table: the
   target number of workers whose decisions agree most with the learned ones. Each row becomes a
   *band* around the level: below it workers are added, above it removed, within it nothing changes.
2. The search moves the bands of neighbouring rows by one worker, or makes them equal. A move is
   accepted if the policy is judged better on the same training streams. At first a slightly worse
   one may be accepted too, to escape local optima. The same decisions on the same stream have the
   same outcome, so only new courses are simulated.
3. The result is used only if it is better on held-out streams that no table was chosen by.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import islice
from random import Random
from typing import Any

from shoal.farm.arrays import NDArray, np
from shoal.farm.episode import run_episode
from shoal.farm.learned import ACTIONS, TABLE, Sarsa
from shoal.farm.model import Observation
from shoal.farm.orders import order_named
from shoal.farm.simulated import SimulatedFarm
from shoal.farm.training import (
    HELD_OUT_SEEDS,
    TRAINING_SEEDS,
    OnEpisode,
    Performance,
    Training,
    judgement,
    mean_performance,
    stream,
    weighed,
)

_STREAMS = 48
_FEW = 8
"""How many streams of each workload a move is judged on, and on how many it is tried first."""
_BADLY = 0.05
_LENIENT = 0.1
"""How much worse a move may be, in mean workers: in the first trial, and, decreasing to 0, when it
is judged."""
_RUNS = (1, 1, 2, 4, 8)
"""How many neighbouring rows of the table are moved together."""
_MOVES = ((1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1), None)
"""The changes of a band's lower and upper end; None copies the band of a neighbour."""

Cell = tuple[int, ...]
_BandKey = tuple[int, ...]
"""A cell without the number of workers."""
Band = tuple[int, int]
Bands = dict[_BandKey, Band]


class _Watched(Sarsa):
    """A policy that records the cells it visits."""

    def __init__(self, arrays: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
        super().__init__(arrays, about)
        self.met: list[Cell] = []

    def values(self, observation: Observation) -> NDArray[Any]:
        """Return the row of the table, and record its cell."""
        cell = self._senses.cell(observation)
        self.met.append(cell)
        row: NDArray[Any] = self.arrays["table"][cell]
        return row


class _Course:
    """The result of a sequence of decisions on a stream: the next cell, or the outcome."""

    __slots__ = ("after", "cell", "performance")

    def __init__(self) -> None:
        self.cell: Cell | None = None
        self.after: dict[int, _Course] = {}
        self.performance: Performance | None = None

    def end(self, choices: NDArray[Any]) -> _Course:
        """Follow these choices as far as they are known."""
        course = self
        while course.cell is not None:
            course = course.after.setdefault(int(choices[course.cell]), _Course())
        return course


class Streams:
    """The streams that tables are judged on; each course of decisions is simulated only once."""

    def __init__(self, training: Training, seeds: range) -> None:
        self._training = training
        self._order = order_named(training.order)
        self._begun = {w: {seed: _Course() for seed in seeds} for w in training.workloads}
        self.met: Counter[Cell] = Counter()
        """How often each cell was visited in the simulated courses."""

    def judgement(self, table: NDArray[Any], count: int) -> float:
        """Judge a table on the first `count` streams of each workload."""
        choices = np.argmax(table, axis=-1)
        means = []
        for workload, begun in self._begun.items():
            first = islice(begun.items(), count)
            each = [self._performance(workload, *known, table, choices) for known in first]
            means.append(mean_performance(each))
        return weighed(self._training, means)

    def _performance(
        self, workload: str, seed: int, begun: _Course, table: NDArray[Any], choices: NDArray[Any]
    ) -> Performance:
        known = begun.end(choices)
        if known.performance is not None:
            return known.performance
        clock = self._training.phase_clock
        policy = _Watched({"table": table}, {"phase_clock": clock})
        farm = SimulatedFarm(stream(workload, seed), order=self._order, seed=seed)
        episode = run_episode(farm, policy, phase_clock=clock)
        self.met.update(policy.met)
        course = begun
        for cell in policy.met:
            course.cell = cell
            course = course.after.setdefault(int(choices[cell]), _Course())
        course.performance = Performance(episode.qos, episode.mean_workers, episode.actions)
        return course.performance


def improve_table(
    training: Training, policy: Sarsa, moves: int, report: OnEpisode | None = None
) -> Sarsa:
    """Convert the policy to bands and search for better ones; return it if none is better."""
    if moves == 0:
        return policy
    rng = Random(training.seed)
    streams = Streams(training, range(TRAINING_SEEDS, TRAINING_SEEDS + _STREAMS))
    streams.judgement(policy.table, _FEW)
    bands = _fitted_bands(policy, streams.met)
    table = np.zeros(policy.table.shape, np.float32)
    _write(table, bands)
    best, best_few = streams.judgement(table, _STREAMS), streams.judgement(table, _FEW)
    best_bands = bands
    for number in range(1, moves + 1):
        lenient = _LENIENT * (1 - number / moves)
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
    trial = Sarsa({"table": table}, policy.about | asdict(training))
    fresh = range(HELD_OUT_SEEDS + training.held_out, HELD_OUT_SEEDS + 3 * training.held_out)
    better = judgement(training, trial, fresh) > judgement(training, policy, fresh)
    return trial if better else policy


def _fitted_bands(policy: Sarsa, met: Counter[Cell]) -> Bands:
    """Fit a level to each stretch of the table; one that was never visited is like the last."""
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
            level = _fitted_level(policy.table[place], counts)
        bands |= {(*place, tasks): (level, level) for tasks in range(waiting)}
    return bands


def _fitted_level(learned: NDArray[Any], weights: NDArray[Any]) -> int:
    """Return the number of workers whose band agrees most with the learned decisions."""
    chosen = np.argmax(learned, axis=-1)

    def disagreement(level: int) -> float:
        decided = np.argmax(_banded(level, level), axis=-1)
        return float(weights[decided[None, :] != chosen].sum())

    return min(range(TABLE[-2]), key=disagreement)


def _moved(rng: Random, bands: Bands) -> Bands:
    """Move the bands of a run of neighbouring rows, or copy the band next to the run."""
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
    """Move a band within the table; its ends never cross."""
    low = min(max(band[0] + by_low, 0), TABLE[-2] - 1)
    return low, min(max(band[1] + by_high, low), TABLE[-2] - 1)


def _write(table: NDArray[Any], bands: Bands) -> None:
    for row, band in bands.items():
        table[row] = _banded(*band)


def _banded(low: int, high: int) -> NDArray[np.float32]:
    """Return a row of the table that grows below the band, shrinks above it, and else stays."""
    workers = np.arange(TABLE[-2])
    change = (workers < low).astype(int) - (workers > high).astype(int)
    row: NDArray[np.float32] = (change[:, None] == np.array(ACTIONS)).astype(np.float32)
    return row
