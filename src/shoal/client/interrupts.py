"""SIGTERM and SIGHUP interrupt a wait for a run as Ctrl-C does: completed outputs are kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_ENDING = (int(signal.SIGTERM), int(signal.SIGHUP))
_get: Callable[[int], Any] = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_set: Callable[[int, Any], Any] = getattr(signal.signal, "__wrapped__", signal.signal)
"""Without the conversion to enumerations, which takes as long as a small task does."""
_DEFAULT = int(signal.SIG_DFL)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `SystemExit` in the main thread where the signal would end the process at once.

    Signals that the program handles or ignores stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [each for each in _ENDING if _get(each) == _DEFAULT]
    try:
        for each in ours:
            _set(each, _end)
        yield
    finally:
        for each in ours:
            _set(each, _DEFAULT)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
