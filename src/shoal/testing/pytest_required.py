"""pytest, for the contract suites; the fakes do without it."""

from __future__ import annotations

from shoal.errors import UsageError

try:
    import pytest
except ImportError as error:
    raise UsageError(
        "Contract suites need pytest, which isn't installed: pip install 'shoal[testing]'."
    ) from error

__all__ = ["pytest"]
