"""The samples of one cost, brought to the same size and the same resources.

1. A group's samples are divided by what its fit says for their sizes and constants (`fits.py`), so
   what is left of each is a factor around 1. A prediction is such a factor, times what the fit says
   for the asked size.
2. If there are enough samples of the same resources, only those count. Otherwise all do, converted
   by how fast each configuration computes.
3. A part of the group is the samples of one task of a workflow, or the transfers of one task's
   outputs. With enough samples, a part counts alone. Of one task's samples the latest count most.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

from shoal.metadata.draws import Value
from shoal.metadata.features import TOTAL, features_of
from shoal.metadata.fits import NOISE, Features, Fit, Point, fit
from shoal.metadata.samples import Sample
from shoal.types import MB_PER_CPU, Resources

ENOUGH = 6
"""With this many samples of the same resources, samples of other resources are ignored."""
MOST = 100
"""The most samples that a prediction uses."""
OF_ITS_OWN = 3
"""With this many samples of a part, those of other parts are ignored."""
PARALLEL_GAIN = 0.3
"""The exponent by which a task that uses several CPUs speeds up with more of them."""
_DECAY = 0.7
"""The weight of a part's sample, relative to one from the following run."""
_FIXED_NBYTES = 64 * 1024
"""The fixed cost of a transfer, expressed in bytes."""
_MOST_FITTED = 300
"""The most samples that a fit uses."""
_LEAST_AMOUNT = 1e-7
_OUTPUT_NOISE = 0.01
"""The deviation to assume of outputs: the same input nearly always gives as large an output."""
_REFERENCE = Resources(MB_PER_CPU)
_SIZED = ("execute", "output", "fetch", "save", "launch", "hand in")
"""The kinds of costs that depend on sizes."""
TRANSFERS = ("fetch", "save")
_LASTING = ("execute", "output", *TRANSFERS)
"""Those of which early samples count as much as late ones, except for parts."""


class _SampleRow(NamedTuple):
    """A sample, and the index of its run: 0 is the latest."""

    run: int
    sample: Sample
    part: int | str
    features: Features


class Known(NamedTuple):
    """What a prediction is made from."""

    values: list[Value]
    """Each sample's factor, smallest first."""
    where: tuple[float, ...]
    """The mean of the features that the fit depends on."""
    height: float
    """The mean of what the fit says for the samples."""


class Group:
    """The samples of one cost: the executions of one name, the fetches, or the cold starts."""

    def __init__(self, kind: str, name: str) -> None:
        self.name = f"{kind} {name}"
        self.rows: list[_SampleRow] = []
        self._parts: dict[int | str, list[_SampleRow]] = {}
        self._known: dict[tuple[str, int | str | None, Resources | None, int, int], Known] = {}
        self._fits: dict[tuple[str, int | str | None], Fit] = {}

    def add(self, run: int, sample: Sample, part: int | str | None) -> None:
        """Add a sample, which may belong to a part."""
        row = _SampleRow(
            run, sample, f"{run} {sample.number}" if part is None else part, _features(sample)
        )
        self.rows.append(row)
        if part is not None:
            self._parts.setdefault(part, []).append(row)

    def part(self, part: int | str) -> int | str | None:
        """Return a part if it has enough samples of its own."""
        return part if len(self._parts.get(part, ())) >= OF_ITS_OWN else None

    def fit(self, kind: str, part: int | str | None = None) -> Fit:
        """Return how the amounts of a kind depend on sizes and constants.

        The transfers of each part have a fit of their own, because some kinds of values are copied
        byte by byte and others aren't. Tasks of one name share one: they call the same function.
        """
        key = kind, part if kind in TRANSFERS else None
        found = self._fits.get(key)
        if found is None:
            found = self._fits[key] = self._fitted(*key)
        return found

    def _fitted(self, kind: str, part: int | str | None) -> Fit:
        if kind not in _SIZED:
            return Fit()
        slope = 1.0 if part is None else self.fit(kind).slope
        rows = self.rows if part is None else self._parts[part]
        if len(rows) > _MOST_FITTED:
            step = len(rows) / _MOST_FITTED
            rows = [rows[int(n * step)] for n in range(_MOST_FITTED)]
        points = [
            Point(
                log(max(_amount(kind, row.sample, _REFERENCE), _LEAST_AMOUNT)), row.part,
                row.features,
            )
            for row in rows
        ]  # fmt: skip
        noise = _OUTPUT_NOISE if kind == "output" else NOISE
        return fit(points, TOTAL, {TOTAL: slope}, noise)

    def known(
        self, kind: str, part: int | str | None, resources: Resources | None, latest: int,
        features: Features,
    ) -> Known:  # fmt: skip
        """Return the factors of the samples that a prediction uses.

        Args:
            kind: The group's kind, or `output`.
            part: The part that counts alone; None for all samples.
            resources: The resources to convert to; None if they don't matter.
            latest: How many of the latest samples count, if the cost varies only with time.
            features: What the cost is asked for.
        """
        many = part is None and len(self.rows) > MOST and kind in _LASTING
        near = round(_number(features, TOTAL) / log(2)) if many else 0
        key = (kind, part, resources, latest, near)
        found = self._known.get(key)
        if found is None:  # keep the first thread's: lists are compared by identity
            rows = self._selected(kind, part, resources, latest, near if many else None)
            found = self._known.setdefault(key, self._brought(kind, rows, resources, part))
        return found

    def _selected(
        self, kind: str, part: int | str | None, resources: Resources | None, latest: int,
        near: int | None,
    ) -> Sequence[_SampleRow]:  # fmt: skip
        rows = self.rows if part is None else self._parts[part]
        same = [row for row in rows if row.sample.resources == resources]
        rows = same if len(same) >= ENOUGH else rows
        if near is not None:
            return sorted(rows, key=lambda r: abs(_number(r.features, TOTAL) - near * log(2)))[
                :MOST
            ]
        if part is None and kind in _LASTING:
            return rows
        return sorted(rows, key=lambda row: row.run)[:latest]

    def _brought(
        self,
        kind: str,
        rows: Sequence[_SampleRow],
        resources: Resources | None,
        part: int | str | None,
    ) -> Known:
        known = self.fit(kind, part)
        heights = [known.at(row.features) for row in rows]
        places = [known.where(row.features) for row in rows]
        where = tuple(sum(each) / len(rows) for each in zip(*places, strict=True))
        decay = 1.0 if part is None and kind in _LASTING else _DECAY
        values = sorted(
            Value(_amount(kind, row.sample, resources) / exp(height), row.run, decay**row.run)
            for row, height in zip(rows, heights, strict=True)
        )
        return Known(values, where, sum(heights) / len(rows))


def _number(features: Features, name: str) -> float:
    value = features[name]
    assert isinstance(value, float)
    return value


def _features(sample: Sample) -> Features:
    if sample.kind == "execute":
        inputs, count, values = sample.about
        return features_of(sample.nbytes, inputs, count, values)
    return transfer_features(sample.nbytes)


def transfer_features(nbytes: int) -> Features:
    """Return what a transfer depends on."""
    return {TOTAL: log(_FIXED_NBYTES + nbytes)}


def _amount(kind: str, sample: Sample, resources: Resources | None) -> float:
    """Return a sample's seconds with other resources, or the size of its output."""
    if kind == "output":
        return float(sample.output_nbytes)
    if resources is None or resources == sample.resources:
        return sample.seconds
    if kind == "execute":
        return _converted(sample, resources)
    if kind in TRANSFERS:
        there, here = (_speed(r, parallel=False) for r in (sample.resources, resources))
        return sample.seconds * there / here
    return sample.seconds


def _converted(sample: Sample, resources: Resources) -> float:
    """Convert a task's computing time to other resources; its waiting time stays the same."""
    busy = min(1.0, sample.cpu / sample.seconds) if sample.seconds else 1.0
    parallel = sample.cpu > 1.05 * sample.seconds
    there, here = (_speed(r, parallel=parallel) for r in (sample.resources, resources))
    return sample.seconds * (1 - busy + busy * there / here)


def _speed(resources: Resources, *, parallel: bool) -> float:
    """Return how fast a configuration computes.

    Below one CPU, speed is proportional to the CPU share. Above, only parallel tasks gain, with
    diminishing returns.
    """
    share = resources.cpu_share
    if share <= 1:
        return share
    return float(share**PARALLEL_GAIN) if parallel else 1.0
