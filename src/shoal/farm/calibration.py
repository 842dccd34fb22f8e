"""`ServiceModel`: how long a task takes by the size of its input, fitted to what was measured.

The time is a constant and a part that grows with the square of the size, as it does for images
whose size is the length of a side (the farm paper's model). What is far too long by a little counts
as much as what is a little too long by far: errors are relative.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path

from shoal.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """Seconds that a task takes, by the size of its input."""

    quadratic: float
    """Seconds for each unit of the size's square."""
    constant: float

    def seconds(self, size: float) -> float:
        """How long a task takes whose input has this size."""
        return self.quadratic * size * size + self.constant

    def size(self, seconds: float) -> float:
        """The size of an input whose task takes so long; 0 if even the smallest takes longer."""
        return sqrt(max(0.0, seconds - self.constant) / self.quadratic)

    @staticmethod
    def fitted(samples: Iterable[tuple[float, float]]) -> ServiceModel:
        """The model that fits sizes and seconds best."""
        n = x = y = xx = xy = 0.0
        sizes = set()
        for size, seconds in samples:
            weight, square = 1 / max(seconds, 1e-6) ** 2, size * size
            sizes.add(size)
            n += weight
            x += weight * square
            y += weight * seconds
            xx += weight * square * square
            xy += weight * square * seconds
        if len(sizes) < 2:
            raise UsageError("A service-time model is fitted to at least two sizes.")
        quadratic = (n * xy - x * y) / (n * xx - x * x)
        constant = (y - quadratic * x) / n
        if constant < 0:
            quadratic, constant = xy / xx, 0.0
        if quadratic <= 0:
            raise UsageError("Larger inputs take no longer: these times don't depend on the size.")
        return ServiceModel(quadratic, constant)

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> ServiceModel:
        """The model in a file."""
        try:
            found = json.loads(path.read_text())
            return ServiceModel(float(found["quadratic"]), float(found["constant"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} holds no service-time model ({error!r}): have one written by "
                "`shoal farm calibrate`."
            ) from error


PAPER_SERVICE = ServiceModel(1.7099013e-7, 0.00166548)
"""The farm paper's, for its images and its machine; the size is the length of a side in pixels."""
