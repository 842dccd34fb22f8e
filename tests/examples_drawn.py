"""How many cases a test generates: all of them in `make test`, a tenth in `make quick`."""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100
"""Hypothesis' default, which a profile scales."""


def examples(count: int) -> settings:
    """Generate so many examples, scaled by the profile."""
    return settings(max_examples=max(1, count * settings.default.max_examples // _USUAL))
