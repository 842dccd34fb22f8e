"""Wait for what another thread or process does, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds after which something that should happen at once counts as not happening."""


def eventually(look: Callable[[], T], seconds: float = TIMEOUT) -> T:
    """Return what `look` finds as soon as it is true, or what it found last if it never is."""
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found
