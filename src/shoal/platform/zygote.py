"""The zygote: a process that has imported everything and forks sandboxes.

It has one thread, and takes commands from the gateway over a socket: `preload` packages, `branch`
into another zygote with its own socket, `fork` a sandbox, `kill` one. It reports when and why a
sandbox ends. When the gateway's end of the socket closes, for whatever reason, the zygote kills its
sandboxes and ends, and its branches end with it.

Each session has a branch, from which its sandboxes are forked. Where the system permits, the branch
and each sandbox have their own namespaces (see `isolation.py`). Each has a folder, which is deleted
with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from shoal import system
from shoal.platform import limits
from shoal.platform.invocation import SandboxMessage, prepare
from shoal.platform.isolation import Forked, Isolation
from shoal.platform.sandbox_env import home_of, remove, sweep
from shoal.platform.sandbox_main import Entry, receive_frame, send_frame, serve
from shoal.platform.sandbox_messages import (
    FilesReceived,
    ForkBranch,
    ForkSandbox,
    KillSandbox,
    Preload,
    SandboxExited,
    SandboxForked,
    SandboxPaused,
    ZygoteReady,
    ZygoteReport,
    command_of,
    encoded,
    printable,
)
from shoal.types import Resources

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_FREED_SHARE = 3
"""The allocator holds on to at most one third of a sandbox's memory after it is freed."""
_END_SECONDS = 2.0
"""How long branches may take to end before they are killed."""
_PAUSE = 0.002
_THRESHOLDS = gc.get_threshold()
"""When a sandbox collects garbage; a zygote doesn't."""


class Zygote:
    """A zygote's process."""

    def __init__(
        self,
        gateway: socket.socket,
        entry: Entry,
        isolation: Isolation,
        limited: limits.SandboxLimits,
        number: int,
    ) -> None:
        self._gateway = gateway
        self._entry = entry
        self._isolation = isolation
        self._limits = limited
        limited.prepare()
        self._number = number
        """Its process id, outside of namespaces."""
        self._home = home_of(isolation.hidden, number)
        self._parent = os.getppid()
        self._process = os.getpid()
        self._branches: set[int] = set()
        self._children: dict[int, tuple[int, Forked]] = {}
        """Sandboxes and their numbers, by process id."""
        self._wake, wake = socket.socketpair()
        self._wake.setblocking(False)
        wake.setblocking(False)
        self._wakers = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def greet(self) -> None:
        """Report how sandboxes are limited and isolated here."""
        isolation = printable(self._isolation.reason) or "namespaces"
        self._report(ZygoteReady(self._limits.kind, isolation, printable(self._limits.warning)))

    def run(self) -> None:
        """Take commands until the gateway hangs up or the parent ends."""
        listening = [self._gateway, self._wake]
        try:
            while os.getppid() == self._parent:
                readable, _, _ = select.select(listening, [], [], system.LOOK_SECONDS)
                if self._wake in readable:
                    with contextlib.suppress(BlockingIOError):
                        self._wake.recv(4096)
                    self._reap()
                if self._gateway in readable and not self._take_command():
                    return
        finally:
            self._end()

    def _report(self, report: ZygoteReport | FilesReceived) -> None:
        with contextlib.suppress(OSError):
            send_frame(self._gateway, encoded(report))

    def _take_command(self) -> bool:
        try:
            first, descriptors, _, _ = socket.recv_fds(self._gateway, 1, 8)
        except OSError:
            return False
        data = receive_frame(self._gateway) if first else None
        if data is None:
            return False
        if descriptors:
            self._report(FilesReceived())
        match command := command_of(data):
            case Preload(modules):
                self._preload(modules)
            case ForkBranch():
                self._branch(descriptors[0])
            case ForkSandbox():
                self._fork(command, descriptors)
            case KillSandbox(sandbox):
                self._kill(sandbox)
            case _:
                assert_never(command)
        return True

    def _preload(self, modules: Sequence[str]) -> None:
        for module in modules:
            with contextlib.suppress(BaseException):  # importing a module may even exit
                importlib.import_module(module)
        gc.collect()
        gc.freeze()

    def _branch(self, descriptor: int) -> None:
        within, number = self._isolation.branch()
        if not within:
            os.close(descriptor)
            if number:  # else it has already ended
                self._branches.add(number)
            return
        try:
            for stale in (self._gateway, self._wake, self._wakers):
                stale.close()
            gateway = socket.socket(fileno=descriptor)
            Zygote(gateway, self._entry, self._isolation, self._limits, number).run()
        except BaseException:  # noqa: BLE001 - the branch's outermost edge: its stderr has it
            traceback.print_exc()
        finally:
            os._exit(0)

    def _group(self, sandbox: int) -> str:
        return f"shoal-{self._number}-{sandbox}"

    def _fork(self, command: ForkSandbox, descriptors: list[int]) -> None:
        number = command.sandbox
        home = self._home / str(number)
        home.mkdir(mode=0o700)
        forked = self._isolation.fork(home, descriptors, partial(self._report_paused, number))
        if forked is None:
            code = 1
            try:
                code = self._become_sandbox(command, descriptors, str(home))
            except BaseException:  # noqa: BLE001 - the outermost edge: the run's log shows it
                traceback.print_exc()
            finally:
                os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[forked.pid] = number, forked
        # The gateway can't use a pid in a namespace.
        outside = forked.pid if self._isolation.reason else 0
        self._report(SandboxForked(number, outside))

    def _report_paused(self, sandbox: int, paused: bool) -> None:
        self._report(SandboxPaused(sandbox, paused))

    def _become_sandbox(self, command: ForkSandbox, descriptors: list[int], home: str) -> int:
        control, out, err, page = descriptors
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stale in (self._gateway, self._wake, self._wakers):
            stale.close()
        os.setsid()
        system.end_with_parent(self._process)
        system.refuse_privileges()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        group = self._group(command.sandbox)
        limited = self._limits.of_sandbox(Path(home))
        limited.enter(group, Resources(command.memory_mb, command.cpus))
        _keep_freed_memory(command.memory_mb * 2**20 // _FREED_SHARE)
        _reseed()
        gc.set_threshold(*_THRESHOLDS)
        self._isolation.confine()
        os.environ["TMPDIR"] = home
        tempfile.tempdir = home
        return serve(control, page, self._entry, home)

    def _kill(self, sandbox: int) -> None:
        for pid, (number, _) in self._children.items():
            if number == sandbox:
                system.kill_group(pid, leader=True)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if pid in self._children:
                    self._report_paused(self._children[pid][0], os.WIFSTOPPED(status))
                continue
            if pid in self._branches:
                self._remove_branch(pid)
            if pid not in self._children:
                continue
            sandbox, forked = self._children.pop(pid)
            system.kill_group(pid)
            home, group = self._home / str(sandbox), self._group(sandbox)
            limited = self._limits.of_sandbox(home)
            out_of_memory = limited.ran_out_of_memory(group)
            limited.remove(group)
            remove(home)
            self._report(SandboxExited(sandbox, forked.code(status), out_of_memory))

    def _remove_branch(self, branch: int) -> None:
        self._branches.discard(branch)
        remove(home_of(self._isolation.hidden, branch))

    def _end(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while self._branches:  # the gateway has closed their sockets, too
            self._reap()
            if time.monotonic() > deadline:
                for branch in self._branches:
                    system.kill_group(branch, leader=True)
            time.sleep(_PAUSE)
        for pid in self._children:
            system.kill_group(pid, leader=True)
        for pid, (sandbox, _) in self._children.items():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self._limits.of_sandbox(self._home / str(sandbox)).remove(self._group(sandbox))
        remove(self._home)


def _keep_freed_memory(nbytes: int) -> None:
    """Let the allocator reuse freed memory for the next array, up to a limit.

    Mapping and unmapping each array would cost a page fault for each of its pages.
    """
    mallopt = system.call("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, min(nbytes, 2**31 - 1))


def _reseed() -> None:
    """Reseed the random generators: sandboxes must not draw the same numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def main(descriptor: int, entry: str, hidden: str, isolated: bool) -> None:
    """Run a zygote.

    Args:
        descriptor: Its end of the socket to the gateway.
        entry: `module:function` that a sandbox calls with each message.
        hidden: The folder that contains those of the sandboxes, each of which sees only its own.
        isolated: Whether to isolate sandboxes, where the system permits it.
    """
    module, _, name = entry.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    prepare(SandboxMessage)
    gc.collect()
    gc.freeze()
    gc.set_threshold(0)  # not `gc.disable`: Dask remembers whether it was on at its import
    limited = limits.detect()
    limited.sweep()
    sweep(hidden)
    isolation = Isolation(hidden, isolated)
    zygote = Zygote(socket.socket(fileno=descriptor), function, isolation, limited, os.getpid())
    zygote.greet()
    zygote.run()
