"""Define how tasks damage their process, and how a task of a later run detects that.

A sandbox runs several workers in turn. A task may damage the process for its own run, but
not for a later one: a sandbox that can't be cleaned must not be reused.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_ELSEWHERE = "/usr"
_MASK = 0o777
_VARIABLE = "LABORATORY_DAMAGE"
_LEAKED = 300
_MANY = 200
"""File descriptors that no sandbox of the laboratory needs."""
_FILES = 1000
_TIMEOUT = 7.5
_GARBAGE = (
    b"\xff" * 64,  # the head of a message that never ends
    struct.pack("<I", 5) + b"{oops",
    struct.pack("<I", 4) + b"1234",
    struct.pack("<I", 18) + b'{"reusable": true}',  # as if the worker had ended
)


@dataclass(frozen=True, slots=True)
class Damage:
    """A way in which a task damages its process."""

    do: Callable[[], object]
    left: Callable[[], bool]
    """Returns whether the damage is detected."""


class Damaged(Exception):
    """A task detected that an earlier run damaged its process."""


def _leak() -> None:
    with contextlib.suppress(OSError):  # where fewer are allowed
        for _ in range(_LEAKED):
            os.open(os.devnull, os.O_RDONLY)


def _change_environment() -> None:
    os.environ[_VARIABLE] = "1"
    os.environ.pop("PATH", None)


def _lower_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES + 1, hard))


def _control_sockets() -> list[int]:
    """Return the descriptors of unnamed sockets, whose other end the gateway has."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as copy:
            if copy.family == socket.AF_UNIX and not (copy.getpeername() or copy.getsockname()):
                found.append(int(entry))
    return found


def _write_garbage() -> None:
    garbage = _GARBAGE[os.getpid() % len(_GARBAGE)]
    for descriptor in _control_sockets():
        with contextlib.suppress(OSError):
            os.write(descriptor, garbage)


def _is_no_pipe(descriptor: int) -> bool:
    try:
        return not stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return True


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


def _mask() -> set[int]:
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


DAMAGES = {
    "output": Damage(lambda: os.close(1), lambda: _is_no_pipe(1)),
    "descriptors": Damage(_leak, lambda: len(os.listdir("/proc/self/fd")) > _MANY),
    "folder": Damage(lambda: os.chdir(_ELSEWHERE), lambda: os.getcwd() == _ELSEWHERE),
    "umask": Damage(lambda: os.umask(_MASK), lambda: _umask() == _MASK),
    "environment": Damage(
        _change_environment, lambda: _VARIABLE in os.environ or "PATH" not in os.environ
    ),
    "signals": Damage(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}),
        lambda: signal.SIGUSR2 in _mask(),
    ),
    "limits": Damage(
        _lower_limit, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0] == _FILES + 1
    ),
    "collector": Damage(gc.disable, lambda: not gc.isenabled()),
    "timeout": Damage(
        lambda: socket.setdefaulttimeout(_TIMEOUT), lambda: socket.getdefaulttimeout() is not None
    ),
    "control": Damage(_write_garbage, lambda: False),  # a wrong result shows it later
}


def damage(kind: str, once: str) -> None:
    """Damage this process, unless the file `once` shows that a task has done so before."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        DAMAGES[kind].do()


def check_process() -> None:
    """Raise an error if a task of an earlier run damaged this process."""
    left = [kind for kind, each in DAMAGES.items() if each.left()]
    if left:
        raise Damaged(f"an earlier run damaged this process: {', '.join(left)}")
