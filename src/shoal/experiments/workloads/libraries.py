"""Import Dask, or raise an error that says how to install it."""

from __future__ import annotations

from shoal.errors import UsageError

try:
    import dask.array as da
    from dask.array import Array
    from dask.delayed import Delayed, delayed
except ModuleNotFoundError as error:
    raise UsageError(
        f"This workload needs {error.name}: pip install 'shoal[experiments]'."
    ) from error

__all__ = ["Array", "Delayed", "da", "delayed"]
