"""Define the tasks of `engines.py`; workers need no package for them but Shoal."""

import os
import signal
import time
from contextlib import closing

from shoal import task
from shoal.storage.resp import Connection, parse_url


@task
def add(a: int, b: int, delay: float = 0.0) -> int:
    """Add two numbers."""
    if delay:
        time.sleep(delay)
    return a + b


@task
def noop(*_: object) -> None:
    """Return nothing, whatever the arguments."""


@task
def number(x: int) -> int:
    """Return the argument: what the peers' `map` calls, too."""
    return x


@task
def large(nbytes: int) -> bytes:
    """Return so many bytes."""
    return b"x" * nbytes


@task
def size(data: bytes) -> int:
    """Return how many bytes there are."""
    return len(data)


@task
def killed_once(store: str, key: str) -> float:
    """Kill the own process the first time; return the seconds since then the second time."""
    with closing(Connection(parse_url(store))) as connection:
        seconds, microseconds = map(int, connection.call("TIME"))
        now = seconds + microseconds / 1e6
        if connection.call("SET", key, repr(now), "NX", "EX", 600):
            os.kill(os.getpid(), signal.SIGKILL)
        return now - float(connection.call("GET", key))
