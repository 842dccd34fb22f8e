"""`SandboxState`: detects what a task has changed in its process for good.

1. Changes that a task makes to its process must not affect the next run. After each invocation, a
   sandbox compares its state, as far as that is cheap, with the initial one. If they differ, it
   isn't reused.
2. Libraries keep files and connections open, so the number of descriptors may grow, but not so far
   that the next invocation would lack them.
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

from shoal.platform.sandbox_variables import SandboxVariables
from shoal.system import identity, open_files

_EXTRA_DESCRIPTORS = 128
"""How many may be open besides the initial ones."""
_SIGNALS = [number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP)]
_LIMITS = [
    getattr(resource, f"RLIMIT_{name}")
    for name in ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
]
_PRIVATE = 0o077


class SandboxState:
    """The initial state of a sandbox."""

    def __init__(self) -> None:
        """Record the state of this process."""
        self._environment = SandboxVariables.install()
        self._initial = {name: check() for name, check in _CHECKS.items()}
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_descriptors = open_files() + _EXTRA_DESCRIPTORS
        if soft != resource.RLIM_INFINITY:
            self._max_descriptors = min(self._max_descriptors, soft // 2)

    def changed(self) -> list[str]:
        """The names of what has changed."""
        try:
            found = [name for name, check in _CHECKS.items() if check() != self._initial[name]]
            if self._environment.changed:
                found.append("environment")
            if open_files() > self._max_descriptors:
                found.append("open files")
        except Exception as error:  # noqa: BLE001 - a task may have broken anything used here
            return [repr(error)]
        return found


def _standard_streams() -> list[tuple[int, int]]:
    return [(found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2))]


def _umask() -> int:
    found = os.umask(_PRIVATE)  # it can only be read by setting it
    os.umask(found)
    return found


_CHECKS: dict[str, Callable[[], Any]] = {
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
"""What must not change, and how to read it."""
