"""Run `joblib.Parallel`, and what is built on it, on Shoal: `joblib.parallel_config("shoal")`.

Importing this module is what makes the name known to joblib.
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
