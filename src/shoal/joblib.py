"""joblib on Shoal: `joblib.parallel_config("shoal")` for `joblib.Parallel` and what is built on it.

Importing this module registers the backend with joblib.
"""

from __future__ import annotations

from shoal.errors import UsageError

try:
    from joblib import register_parallel_backend
except ImportError as error:
    raise UsageError(
        "shoal.joblib needs joblib, which isn't installed: pip install 'shoal[joblib]'."
    ) from error

from shoal.integrations.joblib import ShoalBackend

__all__ = ["ShoalBackend"]

register_parallel_backend("shoal", ShoalBackend)
