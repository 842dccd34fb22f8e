"""Linux's system calls for namespaces, mounts and capabilities, which Python doesn't have.

Each raises `OSError` if the system refuses. Ordinary users need a user namespace for them; root
doesn't.
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
"""Capabilities that root keeps: to own and read files, become other users, bind low ports, lock
memory and set priorities; not to mount, trace or load modules."""
_APART = 16
"""The least distance between the first process ids of two namespaces."""
_libc = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Enter new mount and user namespaces; the next child starts a new process namespace."""
    uid, gid = os.getuid(), os.getgid()
    _checked(_libc.unshare(_NEWNS | _NEWPID | (_NEWUSER if uid else 0)))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", "/", "", _REC | _PRIVATE)


def next_child_apart() -> None:
    """Make the next child the first process of a new namespace."""
    _checked(_libc.unshare(_NEWPID))


def next_child_beside(own: int) -> None:
    """Start further children in this process's namespace; `own` is that namespace, as a file."""
    _checked(_libc.setns(own, _NEWPID))


def outer_number() -> int:
    """This process's id in the namespace where /proc was mounted, outside of its own."""
    return int(os.readlink("/proc/self"))


def own_processes() -> int:
    """This process's namespace, as a file for `next_child_beside`."""
    return os.open("/proc/self/ns/pid", os.O_RDONLY)


def own_mounts() -> None:
    """Enter a new mount namespace: other processes don't see its mounts."""
    _checked(_libc.unshare(_NEWNS))


def show_only(folder: Path, hidden: str, number: int) -> None:
    """Show only the namespace's processes, and only one folder in the hidden folder.

    The rest is read-only, so that writing to another folder fails instead of getting lost.

    Args:
        folder: The folder that stays visible.
        hidden: The folder that contains it.
        number: Determines the process ids here. They differ between namespaces, and from those
            outside, because programs name files after them.
    """
    own = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    system = Path("/proc/sys/kernel")  # in the old mount: the new one lacks it
    half = int((system / "pid_max").read_text()) // 2
    (system / "ns_last_pid").write_text(str(half + number * _APART % half))
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    _mount("tmpfs", hidden, "tmpfs", _NOSUID | _NODEV, "mode=700,size=64k")
    folder.mkdir(mode=0o700, parents=True)
    _mount(f"/proc/self/fd/{own}", str(folder), "", _BIND)
    _mount("none", hidden, "", _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.close(own)


def make_read_only(point: Path) -> None:
    """Make a mount read-only in this namespace."""
    # This namespace may not clear the flags that the mount has.
    flags = os.statvfs(point).f_flag & (_NOSUID | _NODEV | _NOEXEC)
    _mount("none", str(point), "", _REMOUNT | _BIND | _RDONLY | flags)


def drop_capabilities() -> None:
    """Give up all capabilities but those that root keeps; they can't be regained."""
    mask = 0 if os.getuid() else sum(1 << number for number in _KEPT)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    words = (mask & 0xFFFFFFFF, mask & 0xFFFFFFFF, 0, mask >> 32, mask >> 32, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)(*words)))


def _mount(source: str, target: str, filesystem: str, flags: int, options: str = "") -> None:
    _checked(
        _libc.mount(
            *(os.fsencode(text) or None for text in (source, target, filesystem)),
            ctypes.c_ulong(flags),
            os.fsencode(options) or None,
        )
    )


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
