"""Functions that workers import by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any


def add(*numbers: Any, start: Any = 0) -> Any:
    return sum(numbers, start)


def divide(one: float, other: float) -> float:
    return one / other


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def note(folder: str, name: str) -> str:
    """Append a line to a file."""
    Path(folder, name).touch()
    return name


def wait_for(folder: str, name: str, seconds: float = 60) -> bool:
    """Wait until a file exists."""
    until = time.monotonic() + seconds
    while not Path(folder, name).exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def note_and_wait_for(folder: str, mine: str, other: str) -> bool:
    note(folder, mine)
    return wait_for(folder, other)


class Stubborn:
    """A value that can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return divide, (1, 0)


class Finicky(Exception):
    """A value that can be pickled but not unpickled."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def raise_finicky() -> None:
    raise Finicky(1, 2)


def stubborn() -> Stubborn:
    return Stubborn()


def unpicklable() -> Any:
    return threading.Lock()


class Held:
    """A result that supports weak references."""

    def __init__(self, number: int) -> None:
        self.number = number
