"""`Condition`: what a sandbox was like before its first job, and what a job has changed for good.

1. What a task does to its process must not reach the next run. So after each job a sandbox compares
   what is cheap to look at with how it began, and isn't used again if it differs.
2. Libraries keep files and connections open; so descriptors may grow, but never to where a next job
   would lack them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal`'s takes fifty times as long
import gc
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable
from typing import Any

from shoal.platform.environment import SandboxEnvironment
from shoal.system import identity, open_files

_MORE_DESCRIPTORS = 128
"""How many may be open beside those that were at the beginning."""
_SIGNALS = [number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP)]
_LIMITS = [
    getattr(resource, f"RLIMIT_{name}")
    for name in ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
]
_PRIVATE = 0o077


class Condition:
    """How a sandbox began."""

    def __init__(self) -> None:
        """Look at this process, which is to be used again only as it is now."""
        self._environment = SandboxEnvironment.install()
        self._began = {name: look() for name, look in _LOOKS.items()}
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_descriptors = open_files() + _MORE_DESCRIPTORS
        if soft != resource.RLIM_INFINITY:
            self._most_descriptors = min(self._most_descriptors, soft // 2)

    def changed(self) -> list[str]:
        """What is no longer as it was."""
        try:
            found = [name for name, look in _LOOKS.items() if look() != self._began[name]]
            if self._environment.changed:
                found.append("environment")
            if open_files() > self._most_descriptors:
                found.append("open files")
        except Exception as error:  # noqa: BLE001 - whatever a task has done to what is used here
            return [repr(error)]
        return found


def _standard_streams() -> list[tuple[int, int]]:
    return [(found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2))]


def _umask() -> int:
    found = os.umask(_PRIVATE)  # for a moment, in which others' files are private
    os.umask(found)
    return found


_LOOKS: dict[str, Callable[[], Any]] = {
    "standard streams": _standard_streams,
    "user": identity,
    "umask": _umask,
    "niceness": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "signal mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "signal handlers": lambda: [_signal.getsignal(number) for number in _SIGNALS],
    "timer": lambda: signal.getitimer(signal.ITIMER_REAL),
    "limits": lambda: [resource.getrlimit(limit) for limit in _LIMITS],
    "socket timeout": socket.getdefaulttimeout,
    "garbage collector": lambda: (gc.isenabled(), gc.get_threshold()),
    "temporary folder": lambda: (tempfile.tempdir, os.path.isdir(os.environ.get("TMPDIR", ""))),
}
"""What must stay as it is, and how to look at it."""
