"""Threads that are kept for the next worker of a process.

Who starts a thread waits until it runs, which takes long where many processes want few cores; who
wakes one doesn't wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_MOST = 4
"""Threads that are kept: a sandbox has one worker at a time."""

_Calls = SimpleQueue[Callable[[], None]]

_idle: list[_Calls] = []
"""The queues of threads that wait for a call."""


def in_background(call: Callable[[], None]) -> None:
    """Have something called by another thread; it must not raise."""
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
