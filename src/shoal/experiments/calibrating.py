"""What store and gateway take, fitted to the real runs of an experiment.

Of each kind of cost the latency is taken off, and the rest is told by its median and its spread.
What depends on sizes has a rest for small ones, and seconds for each byte of large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median, quantiles

from shoal.errors import UsageError
from shoal.experiments.records import Records
from shoal.experiments.world import Platform, Varying
from shoal.metadata.samples import FIRST, Sample, undistilled

_LARGE = 256 * 1024
"""Bytes from which on a size tells in the time."""
_FEW = 3
"""Samples that say too little."""
_LEAST = 1e-4
"""Seconds that a rest has at least."""


def fitted(records: Records) -> Platform:
    """What the real runs of an experiment say."""
    experiment = records.experiment()
    if experiment.mode != "real":
        raise UsageError(f"{records.folder} has virtual runs: only real ones tell.")
    latency = float(experiment.settings["latency"])
    blocks = [undistilled(block).samples for block in records.lessons()]
    samples = [sample for block in blocks for sample in block]
    known = Platform()

    def of(kind: str, first: bool | None = None) -> list[Sample]:
        return [
            s for s in samples if s.kind == kind and (first is None or (s.name == FIRST) is first)
        ]

    def rest(found: Sequence[Sample], otherwise: Varying, off: float = latency) -> Varying:
        small = [max(_LEAST, s.seconds - off) for s in found if s.nbytes < _LARGE]
        return _varying(small) if len(small) > _FEW else otherwise

    def each_byte(found: Sequence[Sample], base: Varying, otherwise: float) -> float:
        large = [
            max(0.0, s.seconds - latency - base.median) / s.nbytes
            for s in found
            if s.nbytes >= _LARGE
        ]
        return median(large) if len(large) > _FEW else otherwise

    launch = rest(of("launch"), known.launch, 0.0)
    save, fetch = rest(of("save"), known.save), rest(of("fetch"), known.fetch)
    hand_in = rest(of("hand in"), known.hand_in)
    cold, each = _crowded(blocks, latency) or (known.cold, known.each)
    packing, uploading = _constants_cost(blocks, launch.median, latency + cold.median, known)
    return Platform(
        launch=launch,
        cold=cold,
        each=each,
        warm=rest(of("warm start", True), known.warm),
        start=rest(of("cold start", False), known.start),
        again=rest(of("warm start", False), known.again),
        message=rest(of("deliver"), known.message),
        save=save,
        fetch=fetch,
        hand_in=hand_in,
        packing=packing,
        uploading=uploading,
        saving=each_byte(of("save"), save, known.saving),
        fetching=each_byte(of("fetch"), fetch, known.fetching),
        handing_in=each_byte(of("hand in"), hand_in, known.handing_in),
    )


def _crowded(blocks: Sequence[Sequence[Sample]], latency: float) -> tuple[Varying, float] | None:
    """A client's first cold start of a run, and by how much each further one is later.

    Only of runs without large constants, for a start by the client waits until these are saved.
    """
    firsts, steps = [], []
    for samples in blocks:
        starts = _starts(samples)
        if starts and _constants(samples) < _LARGE:
            firsts.append(max(_LEAST, starts[0] - latency))
        if len(starts) > _FEW:
            steps.append((starts[-1] - starts[0]) / (len(starts) - 1))
    return (_varying(firsts), median(steps)) if len(firsts) > _FEW and steps else None


def _constants_cost(
    blocks: Sequence[Sequence[Sample]], launch: float, start: float, known: Platform
) -> tuple[float, float]:
    """Seconds for each byte of constants: of a longer launch, and of longer first starts."""
    packing, uploading = [], []
    for samples in blocks:
        starts, nbytes = _starts(samples), _constants(samples)
        if starts and nbytes >= _LARGE:
            took = next(s.seconds for s in samples if s.kind == "launch")
            packing.append(max(0.0, took - launch) / nbytes)
            uploading.append(max(0.0, starts[0] - start) / nbytes)
    if len(packing) <= _FEW:
        return known.packing, known.uploading
    return median(packing), median(uploading)


def _starts(samples: Sequence[Sample]) -> list[float]:
    return sorted(s.seconds for s in samples if s.kind == "cold start" and s.name == FIRST)


def _constants(samples: Sequence[Sample]) -> int:
    return next((s.nbytes for s in samples if s.kind == "launch"), 0)


def _varying(rests: Sequence[float]) -> Varying:
    low, middle, high = quantiles(rests, n=4, method="inclusive")
    return Varying(round(middle, 6), round(log(high / low) / 1.349, 3))
