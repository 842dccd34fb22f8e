"""`Zygotes`: the gateway's side of its zygotes, one for each number of threads that libraries use.

A library such as OpenBLAS reads its number of threads when it is loaded, so there is one zygote for
each number of slots. Each session's sandboxes are forked from a branch of it, which ends with the
last of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from shoal import system
from shoal.import_path import import_path
from shoal.platform.listener import Listener
from shoal.platform.sandbox_env import SandboxEnv, hidden_folder, sweep_soon
from shoal.platform.sandbox_main import send_frame
from shoal.platform.sandbox_messages import (
    Command,
    FilesReceived,
    ForkBranch,
    ForkSandbox,
    KillSandbox,
    Preload,
    ZygoteReady,
    ZygoteReport,
    encoded,
    report_of,
)
from shoal.types import Resources

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_HASHES = {"PYTHONHASHSEED": "0"}
"""Strings hash alike on all workers, which programs that partition data by hash rely on."""
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from shoal.platform.zygote import main; main({fd}, {entry!r}, {hidden!r}, {isolated})"
)
_END_SECONDS = 5.0
_FIRST = b"!"
"""Precedes each message to a zygote, and carries its file descriptors."""
_HEAD = 4
"""Bytes of a message's length."""
_READ = 1 << 16
_BUFFER = 1 << 18
"""The size of a channel's buffers: gateway and zygote must not block on each other."""

ZygoteKey = tuple[int, str]
"""Identifies a branch: a number of slots and a session."""


@dataclass(frozen=True, slots=True)
class BranchLost:
    """A branch has ended by itself, and its sandboxes with it."""

    key: ZygoteKey


def _channel() -> tuple[socket.socket, socket.socket]:
    """A connection between a gateway and a zygote."""
    outside, inside = socket.socketpair()
    for end in (outside, inside):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    return outside, inside


class Branch:
    """A zygote, as the gateway sees it."""

    def __init__(self, sock: socket.socket, preloaded: Iterable[str] = ()) -> None:
        self.socket = sock
        self._preloaded = set(preloaded)
        self._arriving = bytearray()
        """The beginning of an incomplete message."""
        self._sent: deque[contextlib.ExitStack] = deque()
        """Copies of descriptors in transit: macOS may drop those that no process has open."""

    def preload(self, modules: Sequence[str]) -> None:
        """Have packages imported before the next fork, on systems where they survive it."""
        wanted = modules if system.PRELOADS else ()
        new = [module for module in wanted if module not in self._preloaded]
        if new:
            self._preloaded.update(new)
            self._send(Preload(tuple(new)))

    def fork(self, number: int, resources: Resources, descriptors: Sequence[int]) -> None:
        """Have a sandbox forked that uses these files."""
        self._send(ForkSandbox(number, resources.memory_mb, resources.cpu_share), descriptors)

    def kill(self, number: int) -> None:
        """Have a sandbox killed."""
        self._send(KillSandbox(number))

    def branch(self) -> Branch:
        """Have another zygote forked from this one."""
        outside, inside = _channel()
        with inside:
            self._send(ForkBranch(), [inside.fileno()])
        return Branch(outside, self._preloaded)

    def _send(self, command: Command, descriptors: Sequence[int] = ()) -> None:
        with contextlib.ExitStack() as copies:
            for descriptor in descriptors:
                copies.callback(os.close, os.dup(descriptor))
            if descriptors:
                self._sent.append(copies.pop_all())
        with contextlib.suppress(OSError):  # it has ended, which `reports` notices
            if descriptors:
                socket.send_fds(self.socket, [_FIRST], list(descriptors))
            else:
                self.socket.sendall(_FIRST)
            send_frame(self.socket, encoded(command))

    def reports(self) -> Iterator[ZygoteReport] | None:
        """The reports that have arrived; None if the zygote has hung up."""
        try:
            data = self.socket.recv(_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return iter(())
        except OSError:
            return None
        self._arriving += data
        return self._complete() if data else None

    def _complete(self) -> Iterator[ZygoteReport]:
        while len(self._arriving) >= _HEAD:
            end = _HEAD + int.from_bytes(self._arriving[:_HEAD], "little")
            if len(self._arriving) < end:
                return
            report = report_of(self._arriving[_HEAD:end])
            del self._arriving[:end]
            if isinstance(report, FilesReceived):
                self._sent.popleft().close()
            else:
                yield report

    def close(self) -> None:
        """Hang up, which ends the zygote."""
        self.socket.close()
        while self._sent:
            self._sent.popleft().close()


class ZygoteProcess(Branch):
    """A zygote that is the gateway's own child."""

    def __init__(self, entry: str, slots: int, sandbox_env: SandboxEnv) -> None:
        outside, inside = _channel()
        super().__init__(outside)
        program = _PROGRAM.format(
            path=[*import_path()],
            fd=inside.fileno(),
            entry=entry,
            hidden=str(hidden_folder()),
            isolated=sandbox_env.isolation,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=(inside.fileno(),),
            start_new_session=True,
            env=_HASHES
            | dict.fromkeys(_THREADS, str(slots))
            | sandbox_env.environment(os.environ)
            | system.variables(),
        )
        inside.close()

    def discard(self) -> None:
        """Clean up after a zygote that has hung up."""
        super().close()
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Hang up, and wait until the zygote has ended."""
        super().close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Zygotes:
    """All zygotes of a gateway, each started when it is first needed."""

    def __init__(self, entry: str, listener: Listener, sandbox_env: SandboxEnv) -> None:
        self.limits = "unknown"
        """How sandboxes are limited, once a zygote has reported it."""
        self.isolation = "unknown"
        """How sandboxes are isolated, or why they aren't, once a zygote has reported it."""
        self._sandbox_env = sandbox_env
        self._entry = entry
        self._listener = listener
        self._started: dict[int, ZygoteProcess] = {}
        """By number of slots."""
        self._branches: dict[ZygoteKey, Branch] = {}
        self._reports: deque[ZygoteReport | BranchLost] = deque()

    def start(self, slots: int) -> ZygoteProcess:
        """The zygote for a number of slots, started if there is none yet."""
        zygote = self._started.get(slots)
        if zygote is None:
            zygote = self._started[slots] = ZygoteProcess(self._entry, slots, self._sandbox_env)
            self._listen(zygote, partial(self._lost_zygote, zygote, slots))
        return zygote

    def get(self, key: ZygoteKey, preload: Sequence[str]) -> Branch:
        """The branch for a number of slots and a session, with packages preloaded."""
        zygote = self.start(key[0])
        branch = self._branches.get(key)
        if branch is None:
            zygote.preload(preload)
            branch = self._branches[key] = zygote.branch()
            self._listen(branch, partial(self._lost, key))
        branch.preload(preload)
        return branch

    def release(self, key: ZygoteKey) -> None:
        """End a branch that has no sandboxes left."""
        branch = self._branches.pop(key, None)
        if branch is not None:
            self._listener.remove(branch.socket)
            branch.close()

    def kill(self, key: ZygoteKey, number: int) -> None:
        """Have a sandbox killed; nothing to do if its zygote has ended."""
        branch = self._branches.get(key)
        if branch is not None:
            branch.kill(number)

    def _listen(self, branch: Branch, lost: Callable[[], None]) -> None:
        self._listener.add(branch.socket, partial(self._on_reports, branch, lost))

    def _on_reports(self, branch: Branch, lost: Callable[[], None]) -> None:
        reports = branch.reports()
        if reports is None:
            lost()
            return
        for report in reports:
            if isinstance(report, ZygoteReady):
                self.limits = report.limits
                self.isolation = report.isolation
            self._reports.append(report)

    def _lost_zygote(self, zygote: ZygoteProcess, slots: int) -> None:
        """Clean up after a zygote; its branches end by themselves, but leave their folders."""
        del self._started[slots]
        self._listener.remove(zygote.socket)
        zygote.discard()
        sweep_soon(str(hidden_folder()))

    def _lost(self, key: ZygoteKey) -> None:
        self.release(key)
        self._reports.append(BranchLost(key))

    def reports(self) -> Iterator[ZygoteReport | BranchLost]:
        """What zygotes have reported since the last call."""
        while self._reports:
            yield self._reports.popleft()

    def close(self) -> None:
        """End all zygotes."""
        for branch in self._branches.values():
            branch.close()
        for zygote in self._started.values():
            zygote.close()
        self._branches.clear()
        self._started.clear()
