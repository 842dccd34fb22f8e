"""Import numpy, or raise an error that says how to install it."""

from __future__ import annotations

from shoal.errors import UsageError

try:
    import numpy as np
    from numpy.typing import NDArray
except ModuleNotFoundError as error:
    raise UsageError(
        f"This needs {error.name}: pip install 'shoal[experiments]', or 'shoal[farm]' for farms."
    ) from error

__all__ = ["NDArray", "np"]
