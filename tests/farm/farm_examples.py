"""Functions for the workers of farms in tests."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def double(value: int) -> int:
    return 2 * value


def increase(value: int) -> int:
    return value + 1


def show(value: int) -> str:
    return f"<{value}>"


def fail_at_seven(value: int) -> int:
    if value == 7:
        raise ValueError("seven")
    return value


def die_at_seven(value: int) -> int:
    if value == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def crash_at_seven(value: int) -> int:
    if value == 7:
        os.abort()
    return value


def process(value: Any) -> int:
    time.sleep(0.05)
    return os.getpid()


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


class Unreadable:
    """A value that can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("this can't be read")


def unreadable(value: int) -> Any:
    return Unreadable()


def nap_a_moment(value: int) -> int:
    time.sleep(value % 5 / 1000)
    return value
