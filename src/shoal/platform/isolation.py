"""Keeping sandboxes apart: namespaces for each session, where the system permits it.

1. A session's sandboxes see and signal no processes but their own, and see nothing of the hidden
   folder (the folders of other sessions' sandboxes, the gateway's token) but their own folder. All
   else of the machine they see as their user does.
2. A zygote branches into namespaces by way of a *mover*, which enters them and leaves. The branch
   is the first process there: when it ends, however that comes about, the system kills whatever is
   left.
3. Processes in there have numbers that differ between sessions, as programs that name files after
   them expect, and that hardly any process outside has, should one be signalled from there.
4. An ordinary user needs a user namespace for that; root doesn't, but its sandboxes give up what
   would let them undo all this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import traceback
from pathlib import Path

from shoal.platform.housing import home_of

_NEWNS, _NEWUSER, _NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND = 2, 4, 8, 4096
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CAPABILITY_VERSION = 0x20080522
_KEPT = (0, 1, 2, 3, 4, 5, 6, 7, 10, 13, 14, 23)
"""What root keeps: to own and read files, to become other users, to bind low ports, to lock memory
and to set priorities; not to mount, to trace or to load modules."""
_NUMBER = struct.Struct("<i")
_APART = 16
"""How far apart the numbers of two branches' first processes are, at least."""
_libc = ctypes.CDLL(None, use_errno=True)


class Isolation:
    """Whether a zygote's branches are kept apart."""

    def __init__(self, hidden: str, wanted: bool) -> None:
        """Find out what is possible.

        Args:
            hidden: The folder of which a branch sees only its own.
            wanted: Whether branches are to be kept apart at all.
        """
        self.hidden = hidden
        self.reason = problem(hidden) if wanted else "it is switched off"
        """Why branches aren't kept apart; empty if they are."""
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def branch(self) -> tuple[bool, int]:
        """Fork a branch, which ends with this process; whether this is it, and its number."""
        zygote, inside = socket.socketpair()
        with zygote, inside:
            child = os.fork()
            if child:
                inside.close()
                if not self.reason:
                    os.waitpid(child, 0)
                return False, _release(zygote)
            zygote.close()
            if not self.reason:
                _move()
            number = int(os.readlink("/proc/self"))
            _adopt(inside, number)
        try:
            home_of(self.hidden, number).mkdir(mode=0o700, exist_ok=True)
            if not self.reason:
                _arrange(self.hidden, number)
        except OSError:
            traceback.print_exc()
            os._exit(1)
        return True, number

    def confine(self) -> None:
        """In a sandbox: give up what would let it undo the isolation."""
        if not self.reason:
            _drop_capabilities(() if os.getuid() else _KEPT)


def _release(branch: socket.socket) -> int:
    """Let a branch go on, now that nobody is between it and this process; its number, or 0."""
    with contextlib.suppress(OSError):
        branch.send(b"!")
        number = branch.recv(_NUMBER.size)
        if number:
            branch.send(b"!")
            found: int = _NUMBER.unpack(number)[0]
            return found
    return 0


def _move() -> None:
    """Go on as the first process in new namespaces."""
    try:
        _unshare()
        if not os.fork():
            return
    except OSError:
        os._exit(1)
    os._exit(0)


def _adopt(zygote: socket.socket, number: int) -> None:
    """Wait until the zygote is the parent, with no mover in between, and then end with it."""
    if zygote.recv(1):
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        zygote.send(_NUMBER.pack(number))
        if zygote.recv(1):
            return
    os._exit(1)  # the zygote has ended


def _unshare() -> None:
    uid, gid = os.getuid(), os.getgid()
    _checked(_libc.unshare(_NEWNS | _NEWPID | (_NEWUSER if uid else 0)))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _arrange(hidden: str, number: int) -> None:
    """Show only the own processes, and of the hidden folder only the own folder."""
    home = home_of(hidden, number)
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    own = os.open(home, os.O_PATH | os.O_DIRECTORY)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _number_from(number)
    _mount("tmpfs", hidden, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=700,size=64k")
    home.mkdir(mode=0o700, parents=True)
    _mount(f"/proc/self/fd/{own}", str(home), "", _MS_BIND)
    os.close(own)


def _number_from(number: int) -> None:
    """Number this namespace's processes from where few others are, by the number of the branch."""
    system = Path("/proc/sys/kernel")
    half = int((system / "pid_max").read_text()) // 2
    (system / "ns_last_pid").write_text(str(half + number * _APART % half))


def _drop_capabilities(kept: tuple[int, ...]) -> None:
    """Give up what an administrator may do, but for some; nothing that is started regains it."""
    mask = sum(1 << number for number in kept)
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


def problem(hidden: str) -> str:
    """Why branches can't be kept apart here; empty if they can."""
    reading, writing = os.pipe()
    number = os.getpid()
    home = home_of(hidden, number)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        probe = os.fork()
        if probe == 0:
            _try(hidden, number, writing)
        os.close(writing)
        os.waitpid(probe, 0)
        return os.read(reading, 1000).decode(errors="replace")
    finally:
        os.close(reading)
        with contextlib.suppress(OSError):
            home.rmdir()


def _try(hidden: str, number: int, told: int) -> None:
    """Do in a process of its own what a branch will do, and tell what went wrong."""
    try:
        _unshare()
        first = os.fork()
        if first:
            os.waitpid(first, 0)
        else:
            _arrange(hidden, number)
    except BaseException as error:  # noqa: BLE001 - the outermost edge: it is the answer
        os.write(told, str(error).encode())
    os._exit(0)
