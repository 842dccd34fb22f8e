"""A stand-in for a machine whose clock is wrong: shifts the clocks that Python processes see.

`tests/skewed` has a `sitecustomize` that installs it, so a process whose environment is `skewed`
has such a clock, and so have those that it starts. A server in another language has the right one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", int, float)

AHEAD = "PYTHON_CLOCK_AHEAD"
"""Seconds by which the wall clock is ahead; sandboxes get variables that begin like this."""
_BOOTED = 1_000_000
"""Seconds by which the monotonic clock differs: another machine was started at another time."""
_FOLDER = Path(__file__).parent / "skewed"


def skewed(ahead: float) -> dict[str, str]:
    """The variables of a process whose clock is ahead by so many seconds; none if it is right."""
    if not ahead:
        return {}
    path = os.pathsep.join(filter(None, (str(_FOLDER), os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path, AHEAD: repr(ahead)}


def install() -> None:
    """Shift this process's clocks."""
    ahead = float(os.environ[AHEAD])
    real = time.clock_gettime

    def clock_gettime(clock: int) -> float:
        return real(clock) + (ahead if clock == time.CLOCK_REALTIME else 0.0)

    time.time = _shifted(time.time, ahead)
    time.time_ns = _shifted(time.time_ns, int(ahead * 1e9))
    time.monotonic = _shifted(time.monotonic, _BOOTED)
    time.monotonic_ns = _shifted(time.monotonic_ns, _BOOTED * 10**9)
    time.clock_gettime = clock_gettime


def _shifted(clock: Callable[[], T], ahead: T) -> Callable[[], T]:
    return lambda: clock() + ahead
