"""Threads that the next worker of a process reuses.

Starting a thread blocks until it runs, which takes long when many processes share few cores. Waking
an idle thread doesn't block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_MOST = 4
"""The most idle threads to keep: a sandbox has one worker at a time."""

_Calls = SimpleQueue[Callable[[], None]]

_idle: list[_Calls] = []
"""The queues of idle threads."""


def in_background(call: Callable[[], None]) -> None:
    """Call a function in another thread; it must not raise."""
    try:
        calls = _idle.pop()
    except IndexError:
        calls = SimpleQueue()
        threading.Thread(target=_serve, args=(calls,), name="shoal-background", daemon=True).start()
    calls.put(call)


def _serve(calls: _Calls) -> None:
    while True:
        calls.get()()
        if len(_idle) >= _MOST:
            return
        _idle.append(calls)
