"""The zygote: a process with everything imported that forks itself into sandboxes.

It has one thread and obeys the gateway over a socket: `preload` packages, `branch` into another
zygote with a socket of its own, `fork` a sandbox, `kill` one. It says when a sandbox has ended and
why. When the gateway's end of the socket closes, however that came about, it kills every sandbox
and ends, and its branches end with it.

A session's sandboxes are forked from a branch of its own; where that is possible, it and each of
them have namespaces of their own (see `isolation.py`). Each has a folder, which goes with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shoal import system
from shoal.platform import limits
from shoal.platform.housing import home_of, remove, sweep
from shoal.platform.isolation import Forked, Isolation
from shoal.platform.sandbox import Entry, receive_frame, send_frame, serve
from shoal.types import Resources

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT_SHARE = 3
"""An allocator keeps up to this part of a sandbox's memory."""
_END_SECONDS = 2.0
"""How long branches may take to end by themselves."""
_PAUSE = 0.002


class Zygote:
    """The state of the zygote's process."""

    def __init__(
        self,
        gateway: socket.socket,
        entry: Entry,
        isolation: Isolation,
        limited: limits.Limits,
        number: int,
    ) -> None:
        self._gateway = gateway
        self._entry = entry
        self._isolation = isolation
        self._limits = limited
        self._number = number
        """That of its process, outside of namespaces."""
        self._home = home_of(isolation.hidden, number)
        self._parent = os.getppid()
        self._process = os.getpid()
        self._branches: set[int] = set()
        self._children: dict[int, tuple[int, Forked]] = {}
        """Sandboxes' numbers, and what they are, by process id."""
        self._wake, wake = socket.socketpair()
        self._wake.setblocking(False)
        wake.setblocking(False)
        self._wakers = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def greet(self) -> None:
        """Say what is possible here."""
        self._say(
            op="ready",
            limits=self._limits.kind,
            warning=self._limits.warning,
            isolation=self._isolation.reason or "namespaces",
        )

    def run(self) -> None:
        """Obey until the gateway hangs up, or the parent ends."""
        listening = [self._gateway, self._wake]
        try:
            while os.getppid() == self._parent:
                readable, _, _ = select.select(listening, [], [], system.LOOK_SECONDS)
                if self._wake in readable:
                    with contextlib.suppress(BlockingIOError):
                        self._wake.recv(4096)
                    self._reap()
                if self._gateway in readable and not self._obey():
                    return
        finally:
            self._end()

    def _say(self, **message: Any) -> None:
        with contextlib.suppress(OSError):
            send_frame(self._gateway, json.dumps(message).encode())

    def _obey(self) -> bool:
        try:
            first, descriptors, _, _ = socket.recv_fds(self._gateway, 1, 8)
        except OSError:
            return False
        data = receive_frame(self._gateway) if first else None
        if data is None:
            return False
        if descriptors:
            self._say(op="received")
        message = json.loads(data)
        if message["op"] == "preload":
            self._preload(message["modules"])
        elif message["op"] == "branch":
            self._branch(descriptors[0])
        elif message["op"] == "fork":
            self._fork(message, descriptors)
        elif message["op"] == "kill":
            self._kill(message["sandbox"])
        return True

    def _preload(self, modules: list[str]) -> None:
        for module in modules:
            with contextlib.suppress(BaseException):  # a module that exits ends no sandboxes
                importlib.import_module(module)
        gc.collect()
        gc.freeze()

    def _branch(self, descriptor: int) -> None:
        within, number = self._isolation.branch()
        if not within:
            os.close(descriptor)
            if number:  # else it has ended already
                self._branches.add(number)
            return
        try:
            for stale in (self._gateway, self._wake, self._wakers):
                stale.close()
            gateway = socket.socket(fileno=descriptor)
            Zygote(gateway, self._entry, self._isolation, self._limits, number).run()
        except BaseException:  # noqa: BLE001 - the outermost edge
            traceback.print_exc()
        finally:
            os._exit(0)

    def _group(self, sandbox: int) -> str:
        return f"shoal-{self._number}-{sandbox}"

    def _fork(self, message: dict[str, Any], descriptors: list[int]) -> None:
        number: int = message["sandbox"]
        home = self._home / str(number)
        home.mkdir(mode=0o700)
        forked = self._isolation.fork(home, descriptors, partial(self._say_paused, number))
        if forked is None:
            code = 1
            try:
                code = self._become_sandbox(message, descriptors, str(home))
            except BaseException:  # noqa: BLE001 - the outermost edge: it goes to the run's log
                traceback.print_exc()
            finally:
                os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[forked.pid] = number, forked
        outside = forked.pid if self._isolation.reason else 0  # which nobody could kill in here
        self._say(op="forked", sandbox=number, pid=outside)

    def _say_paused(self, sandbox: int, paused: bool) -> None:
        self._say(op="paused", sandbox=sandbox, paused=paused)

    def _become_sandbox(self, message: dict[str, Any], descriptors: list[int], home: str) -> int:
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
        group = self._group(message["sandbox"])
        self._limits.enter(group, Resources(message["memory_mb"], message["cpus"]))
        _keep_freed_memory(message["memory_mb"] * 2**20 // _KEPT_SHARE)
        _reseed()
        gc.enable()
        self._isolation.confine()
        os.environ["TMPDIR"] = home
        tempfile.tempdir = home
        return serve(control, page, self._entry, home)

    def _kill(self, sandbox: int) -> None:
        for pid, (number, _) in self._children.items():
            if number == sandbox:
                _kill_group(pid)

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
                    self._say_paused(self._children[pid][0], os.WIFSTOPPED(status))
                continue
            if pid in self._branches:
                self._forget(pid)
            if pid not in self._children:
                continue
            sandbox, forked = self._children.pop(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            remove(self._home / str(sandbox))
            group = self._group(sandbox)
            out_of_memory = self._limits.ran_out_of_memory(group)
            self._limits.remove(group)
            self._say(
                op="exited",
                sandbox=sandbox,
                code=forked.code(status),
                out_of_memory=out_of_memory,
            )

    def _forget(self, branch: int) -> None:
        self._branches.discard(branch)
        remove(home_of(self._isolation.hidden, branch))

    def _end(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while self._branches:  # the gateway has hung up on them, too
            self._reap()
            if time.monotonic() > deadline:
                for branch in self._branches:
                    _kill_group(branch)
            time.sleep(_PAUSE)
        for pid in self._children:
            _kill_group(pid)
        for pid, (sandbox, _) in self._children.items():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self._limits.remove(self._group(sandbox))
        remove(self._home)


def _kill_group(pid: int) -> None:
    """Kill a sandbox and what it started; it may not have made its group yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _keep_freed_memory(nbytes: int) -> None:
    """Have the allocator keep freed memory for the next array, up to a limit.

    Arrays that are mapped and unmapped one by one cost a page fault for every page, each time.
    """
    mallopt = system.call("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, min(nbytes, 2**31 - 1))


def _reseed() -> None:
    """Sandboxes must not draw the same random numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def main(descriptor: int, entry: str, hidden: str, isolated: bool) -> None:
    """Run a zygote.

    Args:
        descriptor: Its end of the socket to the gateway.
        entry: `module:function` of what a sandbox does with an invocation.
        hidden: The folder that sandboxes have theirs in, and don't see otherwise.
        isolated: Whether sandboxes are to be kept apart where that is possible.
    """
    module, _, name = entry.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    gc.collect()
    gc.freeze()
    gc.disable()
    limited = limits.detect(Path(hidden))
    limited.sweep()
    sweep(hidden)
    isolation = Isolation(hidden, isolated)
    zygote = Zygote(socket.socket(fileno=descriptor), function, isolation, limited, os.getpid())
    zygote.greet()
    zygote.run()
