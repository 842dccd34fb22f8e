"""`uncollected`: work that leaves no cycles behind, while the garbage collector looks for none."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_at_work = 0
_collecting = True
"""Whether the collector was on before the first of those who are at work began."""


@contextmanager
def uncollected() -> Iterator[None]:
    """The collector is off meanwhile, and as it was once nobody in any thread is at work so."""
    global _at_work, _collecting
    with _lock:
        if not _at_work:
            _collecting = gc.isenabled()
        _at_work += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _at_work -= 1
            if not _at_work and _collecting:
                gc.enable()
