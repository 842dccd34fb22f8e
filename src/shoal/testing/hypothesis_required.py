"""Hypothesis, for the suite that compares a store with the model."""

from __future__ import annotations

from shoal.errors import UsageError

try:
    import hypothesis
    from hypothesis import strategies
except ImportError as error:
    raise UsageError(
        "StoreModelContract needs Hypothesis, which isn't installed: pip install 'shoal[testing]'."
    ) from error

__all__ = ["hypothesis", "strategies"]
