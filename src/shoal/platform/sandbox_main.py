"""Inside a sandbox: receive an invocation, run a worker, answer, wait for the next.

The sandbox shares a page of memory with its gateway. It holds the numbers of the running tasks, so
that the gateway can tell in which task a sandbox died, and the number of invocations begun, so that
the gateway notices a sandbox that can't begin another.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from shoal.platform.invocation import SandboxMessage, from_json
from shoal.platform.nesting import become_sandbox
from shoal.platform.sandbox_messages import SandboxAnswer, encoded, printable
from shoal.platform.sandbox_state import SandboxState

LENGTH = struct.Struct("<I")
MAX_ANSWER = 1024 * 1024
"""The most bytes of an answer."""
_MAX_ERROR = 64 * 1024
"""The most characters of an error; a longer one is cut at the front, as its end names it."""
PAGE = mmap.PAGESIZE
_SLOT = struct.Struct("<q")
_SLOTS = PAGE // _SLOT.size - 1
_BEGUN = _SLOTS * _SLOT.size
"""Where the number of invocations is, behind the slots."""

Entry = Callable[[SandboxMessage, "RunningTasks"], bool]
"""Runs a worker for a message; returns whether the sandbox can be reused."""


class RunningTasks:
    """The tasks that run in a sandbox, as numbers in memory that survives it."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page

    def set(self, slot: int, number: int) -> None:
        """Record that a task begins to run in a slot."""
        _SLOT.pack_into(self._page, slot % _SLOTS * _SLOT.size, number + 1)

    def clear(self, slot: int) -> None:
        """Record that nothing runs in a slot."""
        _SLOT.pack_into(self._page, slot % _SLOTS * _SLOT.size, 0)

    def numbers(self) -> list[int]:
        """The tasks that run in all slots."""
        found = (_SLOT.unpack_from(self._page, i * _SLOT.size)[0] for i in range(_SLOTS))
        return [number - 1 for number in found if number > 0]

    def begin(self, invocation: int) -> None:
        """Record that the sandbox begins its first, second, … invocation."""
        _SLOT.pack_into(self._page, _BEGUN, invocation)

    def begun(self) -> int:
        """How many invocations have begun."""
        found: int = _SLOT.unpack_from(self._page, _BEGUN)[0]
        return found


def send_frame(sock: socket.socket, message: bytes) -> None:
    """Send a message, preceded by its length."""
    sock.sendall(LENGTH.pack(len(message)) + message)


def receive_frame(sock: socket.socket) -> bytes | None:
    """The next message; None if the other side has hung up."""
    head = _exactly(sock, LENGTH.size)
    return None if head is None else _exactly(sock, LENGTH.unpack(head)[0])


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view = memoryview(data)
    taken = 0
    while taken < count:
        try:
            got = sock.recv_into(view[taken:])
        except OSError:
            return None
        if not got:
            return None
        taken += got
    return bytes(data)


def serve(control: int, page: int, entry: Entry, home: str) -> int:
    """Run invocations, each in the sandbox's folder at first, until the gateway hangs up."""
    become_sandbox()
    sock = socket.socket(fileno=control)
    running = RunningTasks(mmap.mmap(page, PAGE))
    os.close(page)
    state = SandboxState()
    for number in itertools.count(1):
        frame = receive_frame(sock)
        if frame is None:
            return 0
        _open_streams()
        os.chdir(home)
        running.begin(number)
        reusable, error = False, ""
        try:
            reusable = entry(from_json(frame, SandboxMessage), running)
        except BaseException:  # noqa: BLE001 - the sandbox's outermost edge: the gateway reports it
            error = printable(traceback.format_exc())[-_MAX_ERROR:]
        _flush_streams()
        changed = printable(", ".join(state.changed()))[-_MAX_ERROR:]
        answer = SandboxAnswer(reusable and not changed, error, changed)
        try:
            send_frame(sock, encoded(answer))
        except OSError:
            return 0
    raise AssertionError


class _Printing(io.FileIO):
    """A pipe to the gateway.

    A killed gateway takes its sandboxes with it, but only a moment later. If printing raised an
    error in between, a task would fail for good instead of being restarted.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


_streams: list[TextIO] = []
"""Standard output and error, as the previous invocation got them."""


def _open_streams() -> None:
    """Connect the standard streams to the gateway, whatever the last invocation did to them."""
    with contextlib.suppress(ValueError):  # its buffer has been detached
        if _streams == [sys.stdout, sys.stderr] and not any(s.closed for s in _streams):
            return
    _streams[:] = [
        io.TextIOWrapper(
            io.BufferedWriter(_Printing(number, "w", closefd=False)),
            errors="replace",
            line_buffering=True,
        )
        for number in (1, 2)
    ]
    sys.stdout, sys.stderr = _streams


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            AttributeError, ValueError, OSError
        ):  # the user's code may close it
            stream.flush()
