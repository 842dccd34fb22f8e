"""Run joblib batches on a worker, where the backend "shoal" runs calls sequentially.

Workers import this module, so it imports little itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def perform_batch(batch: Callable[[], Any]) -> Any:
    """Run the calls of a batch and return their results."""
    from joblib.parallel import BACKENDS, SequentialBackend, register_parallel_backend

    if "shoal" not in BACKENDS:
        register_parallel_backend("shoal", SequentialBackend)
    return batch()
