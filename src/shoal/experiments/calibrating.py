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
_LEAST = 1e-4
"""Seconds that a rest has at least."""


def fitted(records: Records) -> Platform:
    """What the real runs of an experiment say."""
    experiment = records.experiment()
    if experiment.mode != "real":
        raise UsageError(f"{records.folder} has virtual runs: only real ones tell.")
    latency = float(experiment.settings["latency"])
    samples = [s for block in records.lessons() for s in undistilled(block).samples]
    default = Platform()

    def of(kind: str, first: bool | None = None) -> list[Sample]:
        return [
            s for s in samples if s.kind == kind and (first is None or (s.name == FIRST) is first)
        ]

    def rest(found: Sequence[Sample], otherwise: Varying) -> Varying:
        small = [max(_LEAST, s.seconds - latency) for s in found if s.nbytes < _LARGE]
        return _varying(small) if len(small) > 3 else otherwise

    def per_byte(found: Sequence[Sample], base: Varying, otherwise: float) -> float:
        large = [
            max(0.0, s.seconds - latency - base.median) / s.nbytes
            for s in found
            if s.nbytes >= _LARGE
        ]
        return median(large) if len(large) > 3 else otherwise

    launch = rest(of("launch"), default.launch)
    save, fetch = rest(of("save"), default.save), rest(of("fetch"), default.fetch)
    hand_in = rest(of("hand in"), default.hand_in)
    return Platform(
        launch=launch,
        cold=rest(of("cold start", True), default.cold),
        warm=rest(of("warm start", True), default.warm),
        start=rest(of("cold start", False), default.start),
        again=rest(of("warm start", False), default.again),
        message=rest(of("deliver"), default.message),
        save=save,
        fetch=fetch,
        hand_in=hand_in,
        uploading=per_byte(of("launch"), launch, default.uploading),
        saving=per_byte(of("save"), save, default.saving),
        fetching=per_byte(of("fetch"), fetch, default.fetching),
        handing_in=per_byte(of("hand in"), hand_in, default.handing_in),
    )


def _varying(rests: Sequence[float]) -> Varying:
    low, middle, high = quantiles(rests, n=4, method="inclusive")
    return Varying(round(middle, 6), round(log(high / low) / 1.349, 3))
