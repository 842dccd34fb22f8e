"""What store and gateway take, fitted to the real runs of an experiment.

1. Of each kind of cost the latency is taken off, and the rest is told by its median and its spread.
   What depends on sizes has a rest for small ones, and seconds for each byte of large ones.
2. What starts or moves alone is told from what has others beside it: those tell how much slower
   they make it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log
from statistics import fmean, median, quantiles
from typing import NamedTuple

from shoal.errors import UsageError
from shoal.execution.timeline import STARTS, Timeline
from shoal.experiments.records import Records
from shoal.experiments.world import LARGE, Platform, Varying
from shoal.metadata.samples import FIRST, Sample, undistilled

_FEW = 3
"""Samples that say too little."""
_HARDLY = 0.1
"""Others that don't disturb."""
_LEAST = 1e-4
"""Seconds that a rest has at least."""

_Blocks = Sequence[Sequence[Sample]]


class _Move(NamedTuple):
    """A large transfer."""

    others: float
    """That were under way beside it, on average."""
    nbytes: int
    seconds: float
    """That the bytes took."""


def fitted(records: Records) -> Platform:
    """What the real runs of an experiment say."""
    experiment = records.experiment()
    if experiment.mode != "real":
        raise UsageError(f"{records.folder} has virtual runs: only real ones tell.")
    latency = float(experiment.settings["latency"])
    blocks = [undistilled(block).samples for block in records.lessons()]
    samples = [sample for block in blocks for sample in block]
    timelines = [records.timeline(row.id) for row in records.rows()[0]]
    known = Platform()

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
    return Platform(
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
    """Cold starts of runs in which no two were under way at a time.

    If they are few, of all runs those that began when no other was under way.
    """
    apart = [
        samples for samples in blocks if not any(s.nbytes for s in samples if s.kind in STARTS)
    ]
    found = [s for samples in apart for s in _cold(samples, first=first)]
    if len(found) > _FEW:
        return found
    return [s for samples in blocks for s in _cold(samples, first=first) if not s.nbytes]


def _crowd(blocks: _Blocks, cold: float, start: float) -> list[tuple[float, float]]:
    """By how much a cold start is longer with so many others beside it: 1, 2 or 3, 4 to 7, ...

    That is the mean of a run, and of all runs the median: some also do other things meanwhile. A
    start by the client waits until large constants are saved, which has nothing to do with it.
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
    """The large transfers."""
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
    """The seconds of a byte, of transfers that had no others beside them."""
    alone = [move.seconds / move.nbytes for move in moves if move.others < _HARDLY]
    return max(0.0, median(alone)) if len(alone) > _FEW else otherwise


def _sharing(found: Iterable[tuple[Sequence[_Move], float]], otherwise: float) -> float:
    """By what share transfers are slower for each other beside them."""
    slower = [
        (move.seconds / move.nbytes / each - 1) / move.others
        for moves, each in found
        for move in moves
        if each and move.others >= _HARDLY
    ]
    return max(0.0, median(slower)) if len(slower) > _FEW else otherwise


def _constants_cost(
    blocks: _Blocks, launch: float, start: float, known: Platform
) -> tuple[float, float]:
    """Seconds for each byte of constants: of a longer launch, and of longer first starts."""
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
