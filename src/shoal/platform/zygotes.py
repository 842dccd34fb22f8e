"""`Zygotes`: the gateway's side of its zygotes, one for each number of threads that libraries use.

A library such as OpenBLAS reads how many threads to use when it is loaded, so sandboxes with other
numbers of slots are forked from another zygote.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.types import Resources

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from shoal.platform.zygote import main; main({fd}, {entry!r})"
)
_END_SECONDS = 5.0


class ZygoteProcess:
    """A running zygote."""

    def __init__(self, entry: str, slots: int) -> None:
        self.slots = slots
        self.socket, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = [os.path.abspath(item) if item else os.getcwd() for item in sys.path]
        program = _PROGRAM.format(path=path, fd=inside.fileno(), entry=entry)
        self._preloaded: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=(inside.fileno(),),
            start_new_session=True,
            env={name: str(slots) for name in _THREADS} | dict(os.environ),
        )
        inside.close()

    def preload(self, modules: Sequence[str]) -> None:
        """Have packages imported before the next fork."""
        new = [module for module in modules if module not in self._preloaded]
        if new:
            self._preloaded.update(new)
            with contextlib.suppress(ConnectionError):
                self._send({"op": "preload", "modules": new})

    def fork(self, number: int, resources: Resources, descriptors: Sequence[int]) -> None:
        """Have a sandbox made that uses these files."""
        message = {
            "op": "fork",
            "sandbox": number,
            "memory_mb": resources.memory_mb,
            "cpus": resources.cpu_share,
        }
        with contextlib.suppress(ConnectionError):  # it has ended, which is reported as such
            socket.send_fds(self.socket, [json.dumps(message).encode()], list(descriptors))

    def kill(self, number: int) -> None:
        """Have a sandbox killed."""
        with contextlib.suppress(OSError):
            self._send({"op": "kill", "sandbox": number})

    def _send(self, message: dict[str, Any]) -> None:
        self.socket.send(json.dumps(message).encode())

    def close(self) -> None:
        """Hang up, which ends it, and wait until it has ended."""
        self.socket.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Zygotes:
    """Every zygote of a gateway, started when first needed."""

    def __init__(self, entry: str, selector: selectors.BaseSelector) -> None:
        self.limits = "unknown"
        """How sandboxes are limited, once a zygote has said so."""
        self._entry = entry
        self._selector = selector
        self._running: dict[int, ZygoteProcess] = {}
        self._ended: list[ZygoteProcess] = []
        self._messages: deque[dict[str, Any]] = deque()

    def get(self, slots: int) -> ZygoteProcess:
        """The zygote for sandboxes with so many slots."""
        zygote = self._running.get(slots)
        if zygote is None:
            zygote = self._running[slots] = ZygoteProcess(self._entry, slots)
            started = zygote
            self._selector.register(
                zygote.socket, selectors.EVENT_READ, lambda: self._on_message(started)
            )
        return zygote

    def kill(self, slots: int, number: int) -> None:
        """Have a sandbox killed, if its zygote hasn't done so already by ending."""
        zygote = self._running.get(slots)
        if zygote is not None:
            zygote.kill(number)

    def _on_message(self, zygote: ZygoteProcess) -> None:
        try:
            data = zygote.socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            message = json.loads(data)
            if message["op"] == "ready":
                self.limits = message["limits"]
            self._messages.append(message)
        elif self._running.get(zygote.slots) is zygote:
            del self._running[zygote.slots]
            self._selector.unregister(zygote.socket)
            self._ended.append(zygote)
            self._messages.append({"op": "gone", "slots": zygote.slots})

    def messages(self) -> Iterator[dict[str, Any]]:
        """What zygotes have said since the last time."""
        while self._messages:
            yield self._messages.popleft()

    def close(self) -> None:
        """End all of them."""
        for zygote in (*self._running.values(), *self._ended):
            zygote.close()
        self._running.clear()
        self._ended.clear()
