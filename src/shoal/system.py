"""What the system offers: the one room that knows Linux from other POSIX systems.

1. Each function works on every POSIX system. Linux has a better way for some, which is used there.
2. `SHOAL_PORTABLE=1` hides those ways, so that Linux offers no more than macOS does; `LINUX` is
   false then. Zygotes and their sandboxes inherit it.
3. Nobody else asks which system this is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import secrets
import signal
import stat
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
"""How often to look whether the parent has ended, where the system doesn't end its children."""

_IOV_MAX = 512
MOST_AT_ONCE = 1 << 30
"""Bytes that every system takes in one call; some refuse 2 GiB."""
_SHORT = 40
"""Bytes of a path."""
_SHARED_MEMORY = Path("/dev/shm")
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNKNOWN_NBYTES = 4 << 30
"""What a machine is taken to have that doesn't tell."""
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
    """What the machine, or the control group that this process is in, has of memory."""
    total = memory_nbytes()
    for path in _GROUP_LIMITS if LINUX else ():
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return total


def peak_nbytes() -> int:
    """The most memory that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if _KIBIBYTES else 1)


def open_files() -> int:
    """How many files this process has open; newer Linux tells without listing them."""
    return (LINUX and os.stat("/proc/self/fd").st_size) or len(os.listdir("/dev/fd"))


def identity() -> tuple[int, ...]:
    """The users and groups that this process acts as."""
    if LINUX:
        return (*os.getresuid(), *os.getresgid(), *os.getgroups())
    return (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups())


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def ended(pid: int) -> bool:
    """Whether a process is gone; on Linux, also if its parent has yet to take note of that."""
    if not LINUX:
        return not alive(pid)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def temporary_folder() -> Path:
    """Where temporary files go, with a path that leaves room for sockets below it.

    That of macOS takes half of what a socket's path may have.
    """
    found = Path(tempfile.gettempdir())
    return found if LINUX or len(os.fsencode(found)) <= _SHORT else Path("/tmp")


def shared_folder() -> Path:
    """Where this user's processes share large files, in memory if the system has a place for it."""
    if LINUX and os.access(_SHARED_MEMORY, os.W_OK):
        return _SHARED_MEMORY / f"shoal-{os.getuid()}"
    return Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}-shared"


def shared_page(nbytes: int) -> int:
    """A file without a name for memory that processes share."""
    if LINUX:
        page = os.memfd_create("shoal")
    else:
        page, path = tempfile.mkstemp(prefix="shoal-")
        os.unlink(path)
    os.ftruncate(page, nbytes)
    return page


@functools.cache
def this_host() -> str:
    """A name that the processes on this machine, since it was started, have in common.

    Elsewhere than on Linux only those have it in common that share the folder for large files,
    which is what matters. A process that can't tell is alone.
    """
    try:
        if LINUX:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return _named_by(shared_folder())
    except OSError:
        return secrets.token_hex(16)


def _named_by(folder: Path) -> str:
    """What a file in the folder says; whoever is first writes it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} belongs to somebody else")
    descriptor, unfinished = tempfile.mkstemp(dir=folder, prefix=".host-")
    try:
        os.write(descriptor, secrets.token_hex(16).encode())
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, folder / ".host")
    finally:
        os.close(descriptor)
        os.unlink(unfinished)
    return (folder / ".host").read_text()


def adopt_orphans() -> None:
    """Become the parent of what descendants leave behind; elsewhere than on Linux init does."""
    prctl = call("prctl")
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def refuse_privileges() -> None:
    """Gain no rights from programs that grant some, where the system has a way to refuse them."""
    prctl = call("prctl")
    if prctl is not None:
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """Be killed when the parent ends, and elsewhere than on Linux this process's group with it.

    Args:
        parent: Its number, which it may have had for the last time by now.
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


def variables() -> dict[str, str]:
    """What a process that forks sandboxes has to have in its environment."""
    if LINUX:
        return {}
    # Safe, because a zygote has one thread: none can be in the middle of what the check is about.
    return {PORTABLE: "1", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}


def at_once(views: Sequence[memoryview]) -> Sequence[memoryview]:
    """Of views to be written, as many as every system takes in one call."""
    some = views[:_IOV_MAX]
    if sum(map(len, some)) <= MOST_AT_ONCE:
        return some
    return [views[0][:MOST_AT_ONCE]]
