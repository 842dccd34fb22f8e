"""A worker's entry point that saves coverage after each worker, because sandboxes are killed."""

from __future__ import annotations

import os
from typing import Any

import coverage

from shoal.worker import entry


def handle(*given: Any) -> Any:
    """Run the worker's entry point, and save its coverage."""
    measured = coverage.Coverage(
        config_file=os.environ["PYTHON_COVERAGE_CONFIG"], data_suffix=os.urandom(8).hex()
    )
    measured.start()
    try:
        return entry.handle(*given)
    finally:
        measured.stop()
        measured.save()
