"""The zygote: a process with everything imported that forks itself into sandboxes.

It has one thread and obeys the gateway over a socket: `preload` packages, `fork` a sandbox, `kill`
one. It says when a sandbox has ended and why. When the gateway's end of the socket closes, however
that came about, it kills every sandbox and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
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
import traceback
from collections.abc import Callable
from typing import Any

from shoal.platform import limits
from shoal.platform.sandbox import Entry, serve
from shoal.types import Resources

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT_SHARE = 3
"""An allocator keeps up to this part of a sandbox's memory."""
_MESSAGE = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


class Zygote:
    """The state of the zygote's process."""

    def __init__(self, gateway: socket.socket, entry: Entry) -> None:
        self._gateway = gateway
        self._entry = entry
        self._limits = limits.detect()
        self._limits.sweep()
        self._children: dict[int, int] = {}
        """Sandboxes' numbers by process id."""
        self._wake, wake = socket.socketpair()
        self._wake.setblocking(False)
        wake.setblocking(False)
        self._wakers = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Obey until the gateway hangs up."""
        self._say(op="ready", limits=self._limits.kind, reason=self._limits.reason)
        try:
            while True:
                readable, _, _ = select.select([self._gateway, self._wake], [], [])
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
            self._gateway.send(json.dumps(message).encode())

    def _obey(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._gateway, _MESSAGE, 8)
        except OSError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if message["op"] == "preload":
            self._preload(message["modules"])
        elif message["op"] == "fork":
            self._fork(message, descriptors)
        elif message["op"] == "kill":
            self._kill(message["sandbox"])
        return True

    def _preload(self, modules: list[str]) -> None:
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        gc.collect()
        gc.freeze()

    def _group(self, sandbox: int) -> str:
        return f"shoal-{os.getpid()}-{sandbox}"

    def _fork(self, message: dict[str, Any], descriptors: list[int]) -> None:
        group = self._group(message["sandbox"])
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = self._become_sandbox(message, descriptors, group)
            except BaseException:  # noqa: BLE001 - the outermost edge: it goes to the run's log
                traceback.print_exc()
            finally:
                os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[pid] = message["sandbox"]
        self._say(op="forked", sandbox=message["sandbox"], pid=pid)

    def _become_sandbox(self, message: dict[str, Any], descriptors: list[int], group: str) -> int:
        control, out, err, page = descriptors
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stale in (self._gateway, self._wake, self._wakers):
            stale.close()
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._limits.enter(group, Resources(message["memory_mb"], message["cpus"]))
        _keep_freed_memory(message["memory_mb"] * 2**20 // _KEPT_SHARE)
        _reseed()
        gc.enable()
        return serve(control, page, self._entry)

    def _kill(self, sandbox: int) -> None:
        for pid, number in self._children.items():
            if number == sandbox:
                _kill_group(pid)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            sandbox = self._children.pop(pid, None)
            if sandbox is None:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            group = self._group(sandbox)
            out_of_memory = self._limits.ran_out_of_memory(group)
            self._limits.remove(group)
            self._say(
                op="exited",
                sandbox=sandbox,
                code=os.waitstatus_to_exitcode(status),
                out_of_memory=out_of_memory,
            )

    def _end(self) -> None:
        for pid in self._children:
            _kill_group(pid)
        for pid, sandbox in self._children.items():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self._limits.remove(self._group(sandbox))


def _kill_group(pid: int) -> None:
    """Kill a sandbox and what it started; it may not have made its group yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _keep_freed_memory(nbytes: int) -> None:
    """Have the allocator keep freed memory for the next array, up to a limit.

    Arrays that are mapped and unmapped one by one cost a page fault for every page, each time.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_MAX, 0)
        _libc.mallopt(_M_TRIM_THRESHOLD, min(nbytes, 2**31 - 1))


def _reseed() -> None:
    """Sandboxes must not draw the same random numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def main(descriptor: int, entry: str) -> None:
    """Run a zygote.

    Args:
        descriptor: Its end of the socket to the gateway.
        entry: `module:function` of what a sandbox does with an invocation.
    """
    module, _, name = entry.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    gc.collect()
    gc.freeze()
    gc.disable()
    Zygote(socket.socket(fileno=descriptor), function).run()
