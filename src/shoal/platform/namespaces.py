"""Linux's calls for namespaces, mounts and capabilities, which Python lacks.

Each raises `OSError` if the system refuses. An ordinary user needs a user namespace for all this;
root doesn't.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_REC, _PRIVATE = 16384, 1 << 18
_NEWNS, _NEWUSER, _NEWPID = 0x00020000, 0x10000000, 0x20000000
_CAPABILITY_VERSION = 0x20080522
_KEPT = (0, 1, 2, 3, 4, 5, 6, 7, 10, 13, 14, 23)
"""What root keeps: to own and read files, to become other users, to bind low ports, to lock memory
and to set priorities; not to mount, to trace or to load modules."""
_APART = 16
"""How far apart the numbers of two namespaces' processes begin, at least."""
_libc = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Have own mounts, and the next child be the first process of a namespace of its own."""
    uid, gid = os.getuid(), os.getgid()
    _checked(_libc.unshare(_NEWNS | _NEWPID | (_NEWUSER if uid else 0)))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", "/", "", _REC | _PRIVATE)


def next_child_apart() -> None:
    """Have the next child be the first process of a namespace of its own."""
    _checked(_libc.unshare(_NEWPID))


def next_child_beside(own: int) -> None:
    """Have further children be where this process is; `own` is its namespace, as a file."""
    _checked(_libc.setns(own, _NEWPID))


def outer_number() -> int:
    """This process's number where /proc was mounted: not here, in namespaces of its own."""
    return int(os.readlink("/proc/self"))


def own_processes() -> int:
    """The namespace of this process's children, as a file for `next_child_beside`."""
    return os.open("/proc/self/ns/pid", os.O_RDONLY)


def own_mounts() -> None:
    """Have own mounts, which nobody else sees."""
    _checked(_libc.unshare(_NEWNS))


def show_only(folder: Path, hidden: str, number: int) -> None:
    """Show only the own processes, and of a hidden folder only one folder in it.

    Whoever writes to another's folder there is refused, rather than heard by nobody.

    Args:
        folder: The one to be seen.
        hidden: Of which nothing else is seen.
        number: From which the numbers of processes here follow, differing between namespaces as
            programs that name files after them expect, and from what processes outside have.
    """
    own = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    system = Path("/proc/sys/kernel")  # of the old mount, which has these at hand
    half = int((system / "pid_max").read_text()) // 2
    (system / "ns_last_pid").write_text(str(half + number * _APART % half))
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    _mount("tmpfs", hidden, "tmpfs", _NOSUID | _NODEV, "mode=700,size=64k")
    folder.mkdir(mode=0o700, parents=True)
    _mount(f"/proc/self/fd/{own}", str(folder), "", _BIND)
    _mount("none", hidden, "", _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.close(own)


def make_read_only(point: Path) -> None:
    """Let nobody in these mounts write to what is mounted there."""
    kept = os.statvfs(point).f_flag & (_NOSUID | _NODEV | _NOEXEC)  # which only others may lift
    _mount("none", str(point), "", _REMOUNT | _BIND | _RDONLY | kept)


def drop_capabilities() -> None:
    """Give up what an administrator may do, but for what root keeps; nothing here regains it."""
    mask = 0 if os.getuid() else sum(1 << number for number in _KEPT)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    words = (mask & 0xFFFFFFFF, mask & 0xFFFFFFFF, 0, mask >> 32, mask >> 32, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)(*words)))


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _checked(
        _libc.mount(
            *(os.fsencode(text) or None for text in (source, target, kind)),
            ctypes.c_ulong(flags),
            os.fsencode(options) or None,
        )
    )


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
