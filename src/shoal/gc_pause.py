"""`gc_paused`: turns the garbage collector off during work that creates no reference cycles."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
"""Blocks that are running, in any thread."""
_collecting = True
"""Whether the collector was on before the first of those blocks."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Turn the collector off for a block; the last block of all threads restores it."""
    global _pauses, _collecting
    with _lock:
        if not _pauses:
            _collecting = gc.isenabled()
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _collecting:
                gc.enable()
