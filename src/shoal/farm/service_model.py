"""Define `ServiceModel`, which predicts how long a task takes from the size of its input.

The time is a constant plus a term quadratic in the size, as for images whose size is the length of
a side (the farm paper's model). The fit minimizes relative errors.
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
    """The seconds that a task takes, by the size of its input."""

    quadratic: float
    """Seconds per unit of the squared size."""
    constant: float

    def seconds(self, size: float) -> float:
        """Return how long a task with an input of this size takes."""
        return self.quadratic * size * size + self.constant

    def size(self, seconds: float) -> float:
        """Return the input size of a task that takes this long; 0 if every task takes longer."""
        return sqrt(max(0.0, seconds - self.constant) / self.quadratic)

    @staticmethod
    def fitted(samples: Iterable[tuple[float, float]]) -> ServiceModel:
        """Fit a model to pairs of size and seconds."""
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
            raise UsageError("Fitting a service-time model needs at least two different sizes.")
        quadratic = (n * xy - x * y) / (n * xx - x * x)
        constant = (y - quadratic * x) / n
        if constant < 0:
            quadratic, constant = xy / xx, 0.0
        if quadratic <= 0:
            raise UsageError(
                "Larger inputs don't take longer, so the times don't depend on the size."
            )
        return ServiceModel(quadratic, constant)

    def save(self, path: Path) -> None:
        """Write the model to a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> ServiceModel:
        """Load a model from a file."""
        try:
            found = json.loads(path.read_text())
            return ServiceModel(float(found["quadratic"]), float(found["constant"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} is not a service-time model ({error!r}). Create one with "
                "`shoal farm calibrate --file`."
            ) from error


PAPER_SERVICE = ServiceModel(1.7099013e-7, 0.00166548)
"""The farm paper's model of its images and machine; the size is the side length in pixels."""
