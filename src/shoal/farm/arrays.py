"""numpy for workloads and trained policies; without it, an error that says how to get it."""

from __future__ import annotations

from shoal.errors import UsageError

try:
    import numpy as np
    from numpy.typing import NDArray
except ModuleNotFoundError as error:
    raise UsageError(f"Simulated farms need {error.name}: pip install 'shoal[farm]'.") from error

__all__ = ["NDArray", "np"]
