"""Fit the costs of store and gateway to the real runs of an experiment.

1. The latency is subtracted from each kind of cost, and the rest is described by its median and its
   spread. Costs that depend on a size have a rest for small sizes, and seconds per byte for large.
2. Starts and transfers that run alone are separated from concurrent ones, which show how much they
   slow each other down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log
from statistics import fmean, median, quantiles
from typing import NamedTuple

from shoal.errors import UsageError
from shoal.execution.timeline import STARTS, Timeline
from shoal.experiments.records import Records
from shoal.experiments.virtual_costs import LARGE, PlatformCosts, Varying
from shoal.metadata.samples import FIRST, Sample, decode_samples

_FEW = 3
"""The largest number of samples that is too few to fit."""
_HARDLY = 0.1
"""The average number of concurrent transfers below which one counts as alone."""
_LEAST = 1e-4
"""The smallest rest, in seconds."""

_Blocks = Sequence[Sequence[Sample]]


class _Move(NamedTuple):
    """A large transfer."""

    others: float
    """The average number of concurrent transfers."""
    nbytes: int
    seconds: float
    """How long the bytes took, without the fixed cost."""


def fitted(records: Records) -> PlatformCosts:
    """Fit the platform's costs to the real runs of an experiment."""
    experiment = records.experiment()
    if experiment.mode != "real":
        raise UsageError(
            f"{records.folder} has virtual runs; calibrate from an experiment with --mode real."
        )
    latency = float(experiment.settings["latency"])
    blocks = [decode_samples(block).samples for block in records.all_samples()]
    samples = [sample for block in blocks for sample in block]
    timelines = [records.timeline(row.id) for row in records.rows()[0]]
    known = PlatformCosts()

    def of(kind: str, first: bool | None = None) -> list[Sample]:
        return [
            s for s in samples if s.kind == kind and (first is None or (s.name == FIRST) is first)
        ]

    def rest(found: Sequence[Sample], otherwise: Varying, off: float = latency) -> Varying:
        small = [max(_LEAST, s.seconds - off) for s in found if s.nbytes < LARGE]
        return _varying(small) if len(small) > _FEW else otherwise

    launch = rest(of("launch"), known.launch, 0.0)
    save, fetch = rest(of("save"), known.save), rest(of("fetch"), known.fetch)
    hand_in = rest(of("hand in"), known.hand_in)
    cold = rest(_alone([b for b in blocks if _constants(b) < LARGE], first=True), known.cold)
    start = rest(_alone(blocks, first=False), known.start)
    packing, uploading = _constants_cost(blocks, launch.median, latency + cold.median, known)
    saves = _moves(timelines, "save", latency + save.median)
    fetches = _moves(timelines, "fetch", latency + fetch.median)
    results = [
        _Move(0, s.nbytes, s.seconds - latency - hand_in.median)
        for s in of("hand in")
        if s.nbytes >= LARGE
    ]
    saving, fetching = _each_byte(saves, known.saving), _each_byte(fetches, known.fetching)
    return PlatformCosts(
        launch=launch,
        cold=cold,
        crowd=_crowd(blocks, cold.median + latency, start.median + latency),
        warm=rest(of("warm start", True), known.warm),
        start=start,
        again=rest(of("warm start", False), known.again),
        message=rest(of("deliver"), known.message),
        save=save,
        fetch=fetch,
        hand_in=hand_in,
        packing=packing,
        uploading=uploading,
        saving=saving,
        fetching=fetching,
        sharing=_sharing(((saves, saving), (fetches, fetching)), known.sharing),
        handing_in=_each_byte(results, known.handing_in),
    )


def _alone(blocks: _Blocks, *, first: bool) -> list[Sample]:
    """Return the cold starts of runs without concurrent starts.

    If these are too few, return those of all runs that began when no other was under way.
    """
    apart = [
        samples for samples in blocks if not any(s.nbytes for s in samples if s.kind in STARTS)
    ]
    found = [s for samples in apart for s in _cold(samples, first=first)]
    if len(found) > _FEW:
        return found
    return [s for samples in blocks for s in _cold(samples, first=first) if not s.nbytes]


def _crowd(blocks: _Blocks, cold: float, start: float) -> list[tuple[float, float]]:
    """Return how much longer a cold start is with 1, 2 to 3, 4 to 7, ... concurrent starts.

    That is the median over runs of each run's mean, since some runs do other work meanwhile. Starts
    by the client in runs with large constants are excluded, because they wait for the upload.
    """
    found: dict[int, list[tuple[float, float]]] = {}
    for samples in blocks:
        crowded = [(s.nbytes, s.seconds - start) for s in _cold(samples, first=False)]
        if _constants(samples) < LARGE:
            crowded += [(s.nbytes, s.seconds - cold) for s in _cold(samples, first=True)]
        alike: dict[int, list[tuple[int, float]]] = {}
        for others, longer in crowded:
            if others:
                alike.setdefault(others.bit_length(), []).append((others, longer))
        for size, those in alike.items():
            found.setdefault(size, []).append(_middle(those, fmean))
    return [(x, max(0.0, y)) for x, y in (_middle(found[size], median) for size in sorted(found))]


def _middle(
    points: Sequence[tuple[float, float]], mean: Callable[[list[float]], float]
) -> tuple[float, float]:
    return mean([x for x, _ in points]), mean([y for _, y in points])


def _moves(timelines: Iterable[Timeline], kind: str, base: float) -> list[_Move]:
    """Return the large transfers of a kind."""
    moves = []
    for timeline in timelines:
        large = [s for s in timeline.of_kind("save", "fetch") if s.nbytes >= LARGE]
        for span in large:
            seconds = span.seconds - base
            if span.kind == kind and seconds > 0:
                both = [min(span.end, o.end) - max(span.start, o.start) - base for o in large]
                shared = sum(overlap for overlap in both if overlap > 0) - seconds
                moves.append(_Move(shared / seconds, span.nbytes, seconds))
    return moves


def _each_byte(moves: Sequence[_Move], otherwise: float) -> float:
    """Return the seconds per byte of transfers that ran alone."""
    alone = [move.seconds / move.nbytes for move in moves if move.others < _HARDLY]
    return max(0.0, median(alone)) if len(alone) > _FEW else otherwise


def _sharing(found: Iterable[tuple[Sequence[_Move], float]], otherwise: float) -> float:
    """Return by what fraction each concurrent transfer slows a transfer down."""
    slower = [
        (move.seconds / move.nbytes / each - 1) / move.others
        for moves, each in found
        for move in moves
        if each and move.others >= _HARDLY
    ]
    return max(0.0, median(slower)) if len(slower) > _FEW else otherwise


def _constants_cost(
    blocks: _Blocks, launch: float, start: float, known: PlatformCosts
) -> tuple[float, float]:
    """Return the seconds per byte that constants add to the launch and to the first starts."""
    packing, uploading = [], []
    for samples in blocks:
        starts, nbytes = _cold(samples, first=True), _constants(samples)
        if starts and nbytes >= LARGE:
            took = next(s.seconds for s in samples if s.kind == "launch")
            packing.append(max(0.0, took - launch) / nbytes)
            uploading.append(max(0.0, min(s.seconds for s in starts) - start) / nbytes)
    if len(packing) <= _FEW:
        return known.packing, known.uploading
    return median(packing), median(uploading)


def _cold(samples: Sequence[Sample], *, first: bool) -> list[Sample]:
    return [s for s in samples if s.kind == "cold start" and (s.name == FIRST) is first]


def _constants(samples: Sequence[Sample]) -> int:
    return next((s.nbytes for s in samples if s.kind == "launch"), 0)


def _varying(rests: Sequence[float]) -> Varying:
    low, middle, high = quantiles(rests, n=4, method="inclusive")
    return Varying(round(middle, 6), round(log(high / low) / 1.349, 3))
