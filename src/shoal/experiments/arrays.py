"""numpy for the workflows that need it; without it, an error that says how to get it."""

from __future__ import annotations

from shoal.errors import UsageError

try:
    import numpy as np
    from numpy.typing import NDArray
except ModuleNotFoundError as error:
    raise UsageError(
        f"This workflow needs {error.name}: pip install 'shoal[experiments]'."
    ) from error

__all__ = ["NDArray", "np"]
