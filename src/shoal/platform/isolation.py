"""Isolation of sandboxes: namespaces for each session and each sandbox, where permitted.

1. A sandbox sees and signals only its own processes. In the hidden folder (the folders of other
   sandboxes, the gateway's token) it sees only its own folder. It sees the rest of the machine as
   its user does.
2. A zygote forks a branch into a session's namespaces through a *mover*, which enters them and
   exits. The branch is their first process: when it ends, for whatever reason, the system kills all
   other processes there.
3. A branch forks a *guard* into namespaces below its own, and the guard forks the sandbox. Because
   the guard is the first process there, the sandbox is an ordinary one. The guard reports when the
   sandbox is paused, reaps its orphans, and ends with it. Killing the guard kills the sandbox.
4. Processes that enter namespaces keep their capabilities, so that sandboxes can't trace them. A
   sandbox drops the capabilities that would let it undo its isolation.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shoal import system
from shoal.platform import namespaces
from shoal.platform.limits import group_mounts
from shoal.platform.sandbox_env import home_of

_NUMBER = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Forked:
    """A sandbox, as its zygote knows it."""

    pid: int
    """Of its guard, or its own if there is none; killing this process kills the sandbox."""
    ending: mmap.mmap | None = None
    """Where its guard leaves the exit code."""

    def code(self, status: int) -> int:
        """The sandbox's exit code; negative if a signal killed it."""
        code = os.waitstatus_to_exitcode(status)
        if code or self.ending is None:
            return code
        found: int = _NUMBER.unpack_from(self.ending)[0]
        return found


class Isolation:
    """Forks branches and sandboxes, isolated if possible."""

    def __init__(self, hidden: str, wanted: bool) -> None:
        """Find out what is possible.

        Args:
            hidden: The folder in which a sandbox sees only its own.
            wanted: Whether to isolate sandboxes at all.
        """
        self.hidden = hidden
        self.reason = problem(hidden) if wanted else "switched off"
        """Why sandboxes aren't isolated; empty if they are."""
        self._groups = [] if self.reason else [point for _, point, _ in group_mounts()]
        """Mounts of control groups, which a sandbox must not leave."""
        self._processes = -1
        """In a branch: its process namespace, as a file."""
        system.adopt_orphans()

    def branch(self) -> tuple[bool, int]:
        """Fork a branch, which ends with this process.

        Returns whether this is the branch, and the branch's process id outside of its namespace.
        """
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
            number = os.getpid() if self.reason else namespaces.outer_number()
            _adopt(inside, number)
        try:
            home = home_of(self.hidden, number)
            home.mkdir(mode=0o700, exist_ok=True)
            if not self.reason:
                namespaces.show_only(home, self.hidden, number)
                self._processes = namespaces.own_processes()
        except OSError:
            traceback.print_exc()
            os._exit(1)
        return True, number

    def fork(
        self, home: Path, files: Sequence[int], paused: Callable[[bool], None]
    ) -> Forked | None:
        """In a branch: fork a sandbox; None if this is the sandbox.

        Args:
            home: Its folder.
            files: Files that only the sandbox may hold open.
            paused: Called by the guard whenever the sandbox is stopped or continues.
        """
        if self.reason:
            pid = os.fork()
            return Forked(pid) if pid else None
        ending = mmap.mmap(-1, _NUMBER.size)
        namespaces.next_child_apart()
        try:
            guard = os.fork()
        except OSError:
            namespaces.next_child_beside(self._processes)
            raise
        if guard:
            namespaces.next_child_beside(self._processes)
            return Forked(guard, ending)
        sandbox = self._begin(home)
        if sandbox:
            for file in files:
                os.close(file)
            _guard(sandbox, ending, paused)
        ending.close()
        return None

    def _begin(self, home: Path) -> int:
        """As a guard: set up the sandbox's mounts and fork it; its pid, or 0 in the sandbox."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._processes)
            number = namespaces.outer_number()
            namespaces.own_mounts()
            namespaces.show_only(home, str(home.parent), number)
            return os.fork()
        except OSError:
            traceback.print_exc()
            os._exit(1)

    def confine(self) -> None:
        """In a sandbox: give up the means to undo the isolation or to leave its groups."""
        if self.reason:
            return
        for point in self._groups:
            with contextlib.suppress(OSError):  # mounted over, or locked: the user can't write
                namespaces.make_read_only(point)
        namespaces.drop_capabilities()


def _guard(sandbox: int, ending: mmap.mmap, paused: Callable[[bool], None]) -> NoReturn:
    """Wait until the sandbox ends, then exit, which kills all that it left."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED | os.WCONTINUED)
        if pid != sandbox:
            continue
        if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
            paused(os.WIFSTOPPED(status))
            continue
        _NUMBER.pack_into(ending, 0, os.waitstatus_to_exitcode(status))
        os._exit(0)


def _release(branch: socket.socket) -> int:
    """Let a branch continue as a child of this process; its pid, or 0 if it has ended."""
    with contextlib.suppress(OSError):
        branch.send(b"!")
        number = branch.recv(_NUMBER.size)
        if number:
            branch.send(b"!")
            found: int = _NUMBER.unpack(number)[0]
            return found
    return 0


def _move() -> None:
    """Continue as the first process of new namespaces."""
    try:
        namespaces.enter()
        if not os.fork():
            return
    except OSError:
        os._exit(1)
    os._exit(0)


def _adopt(zygote: socket.socket, number: int) -> None:
    """Wait until the mover has ended and the zygote is the parent; from then on, end with it."""
    if zygote.recv(1):
        if system.LINUX:  # elsewhere, a zygote polls its parent
            system.end_with_parent(os.getppid())
        zygote.send(_NUMBER.pack(number))
        if zygote.recv(1):
            return
    os._exit(1)  # the zygote has ended


def problem(hidden: str) -> str:
    """Why sandboxes can't be isolated here; empty if they can."""
    if not system.LINUX:
        return "only Linux has them"
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
        shutil.rmtree(home, ignore_errors=True)


def _try(hidden: str, number: int, report: int) -> NoReturn:
    """Do in a separate process what a branch and a guard do, and report what fails."""
    try:
        namespaces.enter()
        if not _first():
            home = home_of(hidden, number)
            namespaces.show_only(home, hidden, number)
            processes = namespaces.own_processes()
            namespaces.next_child_apart()
            if _first():
                namespaces.next_child_beside(processes)
            else:
                own = home / "probe"
                own.mkdir(mode=0o700)
                namespaces.own_mounts()
                namespaces.show_only(own, str(home), number)
    except BaseException as error:  # noqa: BLE001 - the outermost edge: the error is the answer
        os.write(report, str(error).encode())
    os._exit(0)


def _first() -> int:
    """Fork and wait until the child ends; 0 in the child."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return child
