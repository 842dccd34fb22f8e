"""joblib's batches on a worker, where the backend "shoal" runs calls one after the other.

A worker loads this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def perform_batch(batch: Callable[[], Any]) -> Any:
    """Make the calls of a batch."""
    from joblib.parallel import BACKENDS, SequentialBackend, register_parallel_backend

    if "shoal" not in BACKENDS:
        register_parallel_backend("shoal", SequentialBackend)
    return batch()
