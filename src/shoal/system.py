"""What the operating system offers: the only module that tells Linux from other POSIX systems.

1. Each function works on every POSIX system, and uses what Linux does better where it can.
2. `SHOAL_PORTABLE=1` hides what only Linux has, as if this were macOS: `LINUX` is false then.
   Zygotes and their sandboxes inherit it.
3. No other module asks which system this is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PORTABLE = "SHOAL_PORTABLE"
"""The variable that hides what only Linux has."""
LINUX = sys.platform.startswith("linux") and os.environ.get(PORTABLE, "0") in ("", "0")
"""Whether what only Linux has may be used: /proc, control groups, namespaces, `prctl`."""
PRELOADS = LINUX
"""Whether packages may be loaded before a fork: frameworks of macOS don't survive one."""
LIMITS_DATA = LINUX
"""Whether the system refuses memory beyond `RLIMIT_DATA`."""
_LOOK = 0.5
LOOK_SECONDS = None if LINUX else _LOOK
"""How often to check for the parent's end, where the system doesn't end its children."""

_IOV_MAX = 512
MOST_AT_ONCE = 1 << 30
"""Bytes that every system accepts in one call; some refuse 2 GiB."""
_SHORT = 40
"""The length of a path, in bytes, that leaves room for a socket's name."""
_SHARED_MEMORY = Path("/dev/shm")
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNKNOWN_NBYTES = 4 << 30
"""The memory to assume if the machine doesn't say."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_KIBIBYTES = sys.platform.startswith("linux")
"""The unit of `ru_maxrss`: bytes on macOS."""


@functools.cache
def call(name: str) -> Callable[..., int] | None:
    """A function of the C library that Linux has; None elsewhere."""
    if not LINUX:
        return None
    import ctypes  # most clients never need it

    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


@functools.cache
def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 1


def processor() -> str:
    """The processor's name."""
    import platform

    lines: list[str] = []
    if LINUX:
        with contextlib.suppress(OSError):
            lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def memory_nbytes() -> int:
    """The machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return _UNKNOWN_NBYTES


def granted_nbytes() -> int:
    """The memory of the machine, or of this process's control group if that has less."""
    total = memory_nbytes()
    for path in _GROUP_LIMITS if LINUX else ():
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return total


def peak_nbytes() -> int:
    """The most memory that this process has used."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if _KIBIBYTES else 1)


def open_files() -> int:
    """How many files this process has open; newer Linux knows without listing them."""
    return (LINUX and os.stat("/proc/self/fd").st_size) or len(os.listdir("/dev/fd"))


def identity() -> tuple[int, ...]:
    """The users and groups that this process acts as."""
    if LINUX:
        return (*os.getresuid(), *os.getresgid(), *os.getgroups())
    return (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups())


def alive(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def ended(pid: int) -> bool:
    """Whether a process has ended; on Linux, even if its parent hasn't waited for it yet."""
    if not LINUX:
        return not alive(pid)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def temporary_folder() -> Path:
    """The folder for temporary files, with a path short enough for sockets in it.

    On macOS the usual path takes half the length that a socket's path may have.
    """
    found = Path(tempfile.gettempdir())
    return found if LINUX or len(os.fsencode(found)) <= _SHORT else Path("/tmp")


def shared_folder() -> Path:
    """Where this user's processes share large files: in memory if the system allows that."""
    if LINUX and os.access(_SHARED_MEMORY, os.W_OK):
        return _SHARED_MEMORY / f"shoal-{os.getuid()}"
    return Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}-shared"


def shared_page(nbytes: int) -> int:
    """An unnamed file for memory that processes share."""
    if LINUX:
        page = os.memfd_create("shoal")
    else:
        page, path = tempfile.mkstemp(prefix="shoal-")
        os.unlink(path)
    os.ftruncate(page, nbytes)
    return page


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants; on systems other than Linux, init does."""
    prctl = call("prctl")
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def refuse_privileges() -> None:
    """Gain no privileges from setuid programs, where the system can refuse them."""
    prctl = call("prctl")
    if prctl is not None:
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """Be killed when the parent ends; on systems other than Linux, with this process's group.

    Args:
        parent: The parent's process number; the parent may have ended already.
    """
    prctl = call("prctl")
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    threading.Thread(target=_await_end, args=(parent,), name="shoal-parent", daemon=True).start()


def _await_end(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.killpg(0, signal.SIGKILL)


def kill_group(pid: int, *, leader: bool = False) -> None:
    """Kill a process group, if it still exists.

    Args:
        pid: The number of its leader.
        leader: Whether to kill the leader on its own, too, in case it has no group yet. Only for
            a process that wasn't waited for: otherwise its number may belong to another one.
    """
    for kill in (os.killpg, os.kill) if leader else (os.killpg,):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def variables() -> dict[str, str]:
    """What a process that forks sandboxes needs in its environment."""
    if LINUX:
        return {}
    # Safe, because a zygote has one thread: no other can hold a lock during the fork.
    return {PORTABLE: "1", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}


def at_once(views: Sequence[memoryview]) -> Sequence[memoryview]:
    """The first of some views to write: as many as every system accepts in one call."""
    some = views[:_IOV_MAX]
    if sum(map(len, some)) <= MOST_AT_ONCE:
        return some
    return [views[0][:MOST_AT_ONCE]]
