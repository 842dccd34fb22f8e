"""Hides Linux-only features from a process, and reports when Shoal uses one.

`SHOAL_PORTABLE=1` makes Shoal do without these features. This module checks that it does, in every
process of the tests: it removes what is missing on macOS, and Shoal's own code that opens, inspects
or calls something that only Linux has fails and is recorded. Tests and packages aren't restricted.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

NOTES = "PYTHON_LINUX_ONLY"
"""The variable with the name of the file for notes; sandboxes get variables with its prefix."""
_SHOAL = str(Path(__file__).parents[1] / "src" / "shoal")
_STANDARD = (sysconfig.get_path("stdlib"), "<frozen ", __file__)
_PLACES = ("/proc", "/sys", "/dev/shm")
_MISSING = (
    "copy_file_range", "eventfd", "eventfd_read", "eventfd_write", "fdatasync", "getrandom",
    "getresuid", "getxattr", "memfd_create", "O_PATH", "O_TMPFILE", "pidfd_open", "pipe2",
    "posix_fadvise", "posix_fallocate", "process_cpu_count", "sched_getaffinity",
    "sched_setaffinity", "setns", "setresuid", "splice", "unshare", "waitid",
)  # fmt: skip
_CALLS = frozenset(("capset", "mallopt", "mount", "prctl", "setns", "unshare"))
_FILES = frozenset(
    ("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rmdir", "os.rename",
     "os.link", "os.symlink", "os.chmod", "shutil.rmtree")
)  # fmt: skip
_LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_AS)
_SMALL_BUFFER = 8192


class LinuxOnly(RuntimeError):
    """Shoal used a feature that only Linux has."""


def install() -> None:
    """Start hiding Linux-only features."""
    for name in _MISSING:
        if hasattr(os, name):
            delattr(os, name)
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
    for name in ("stat", "lstat", "readlink", "access", "statvfs"):
        _guard(name)
    socket.socketpair = _small_pair
    socket.socket.shutdown = _shutdown  # type: ignore[method-assign]
    sys.addaudithook(_audit)


def _guard(name: str) -> None:
    original = getattr(os, name)

    def guarded(path: Any, *args: Any, **options: Any) -> Any:
        _check_place(path, name)
        return original(path, *args, **options)

    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in known:
            known.add(guarded)
    setattr(os, name, guarded)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event in _FILES:
        _check_place(args[0], event)
    elif event == "ctypes.dlsym" and args[1] in _CALLS:
        _refuse(f"the call {args[1]}")
    elif event == "resource.setrlimit" and args[0] in _LIMITS:
        _refuse("a limit on memory that isn't enforced")
    elif event == "socket.__new__" and args[2] == socket.SOCK_SEQPACKET:
        _refuse("a socket of packets")


def _check_place(path: Any, event: str) -> None:
    if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(_PLACES):
        _refuse(f"{os.fsdecode(path)} ({event})")


def _refuse(what: str) -> None:
    frame = _nearest()
    if frame is None or not frame.f_code.co_filename.startswith(_SHOAL):
        return
    said = f"{frame.f_code.co_filename}:{frame.f_lineno} uses {what}"
    if NOTES in os.environ:
        with open(os.environ[NOTES], "a") as file:
            file.write(said + "\n")
    raise LinuxOnly(said)


def _nearest() -> FrameType | None:
    """Return the innermost code outside the standard library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_STANDARD) or "site-packages" in file:
            return frame
        frame = frame.f_back
    return None


_socketpair = socket.socketpair
_shut = socket.socket.shutdown


def _small_pair(*args: Any, **options: Any) -> tuple[socket.socket, socket.socket]:
    """Create a socket pair with buffers as small as the default on macOS."""
    pair = _socketpair(*args, **options)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL_BUFFER)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    return pair


def _shutdown(self: socket.socket, how: int) -> None:
    """Refuse to shut down a listening socket, which wakes no thread on macOS."""
    if self.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        _refuse("shutdown of a socket that accepts")
    _shut(self, how)
