"""SIGTERM and SIGHUP end who waits for a run as Ctrl-C does: what is finished is kept first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `SystemExit` in the main thread where the system would end the process at once.

    Whoever handles or ignores these signals goes on doing so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_DFL]
    try:
        for each in ours:
            signal.signal(each, _end)
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
