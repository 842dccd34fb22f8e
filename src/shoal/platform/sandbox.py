"""Inside a sandbox: take an invocation, run a worker, say that it is done, wait for the next.

The page is memory shared with the gateway. It holds the numbers of the tasks that are running, so
that the gateway can say which task a sandbox died of, and how many jobs have begun, so that it
knows of a sandbox that can't begin another.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import mmap
import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from shoal.platform.condition import Condition
from shoal.platform.nesting import become_sandbox

LENGTH = struct.Struct("<I")
MOST_ANSWERED = 1024 * 1024
"""Bytes of an answer."""
_MOST_TOLD = 64 * 1024
"""Characters of an error; of a longer one the end is told, which names it."""
PAGE = mmap.PAGESIZE
_SLOT = struct.Struct("<q")
_SLOTS = PAGE // _SLOT.size - 1
_BEGUN = _SLOTS * _SLOT.size
"""Where the number of jobs is, behind the slots."""

Entry = Callable[[dict[str, Any], "RunningTasks"], bool]
"""Runs a worker for a job; whether the sandbox can be used again."""


class RunningTasks:
    """The tasks that run in a sandbox, as numbers in memory that outlives it."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page

    def set(self, slot: int, number: int) -> None:
        """Task `number` begins to run in a slot."""
        _SLOT.pack_into(self._page, slot % _SLOTS * _SLOT.size, number + 1)

    def clear(self, slot: int) -> None:
        """Nothing runs in a slot."""
        _SLOT.pack_into(self._page, slot % _SLOTS * _SLOT.size, 0)

    def numbers(self) -> list[int]:
        """What runs, in all slots."""
        found = (_SLOT.unpack_from(self._page, i * _SLOT.size)[0] for i in range(_SLOTS))
        return [number - 1 for number in found if number > 0]

    def begin(self, job: int) -> None:
        """The sandbox has got as far as beginning its first, second, … job."""
        _SLOT.pack_into(self._page, _BEGUN, job)

    def begun(self) -> int:
        """How many jobs have begun."""
        found: int = _SLOT.unpack_from(self._page, _BEGUN)[0]
        return found


def send_frame(sock: socket.socket, message: bytes) -> None:
    """Write a message behind its length."""
    sock.sendall(LENGTH.pack(len(message)) + message)


def receive_frame(sock: socket.socket) -> bytes | None:
    """The next message, or None when the other side is gone."""
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
    """Serve invocations, each beginning in the sandbox's folder, until the gateway hangs up."""
    become_sandbox()
    sock = socket.socket(fileno=control)
    running = RunningTasks(mmap.mmap(page, PAGE))
    os.close(page)
    condition = Condition()
    for job in itertools.count(1):
        frame = receive_frame(sock)
        if frame is None:
            return 0
        _open_streams()
        os.chdir(home)
        running.begin(job)
        answer: dict[str, Any] = {"reusable": False}
        try:
            answer["reusable"] = entry(json.loads(frame), running)
        except BaseException:  # noqa: BLE001 - the outermost edge: reported by the gateway
            answer["error"] = traceback.format_exc()[-_MOST_TOLD:]
        _flush_streams()
        changed = condition.changed()
        if changed:
            answer |= {"reusable": False, "changed": ", ".join(changed)}
        try:
            send_frame(sock, json.dumps(answer).encode())
        except OSError:
            return 0
    raise AssertionError


class _Printing(io.FileIO):
    """A pipe to the gateway.

    A gateway that is killed takes its sandboxes with it, but a moment later. Were printing an error
    then, a task would fail for good that is only to be started again.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


_streams: list[TextIO] = []
"""Standard output and error as the job before was given them."""


def _open_streams() -> None:
    """What a job prints goes to the gateway, whatever the one before did to the streams."""
    with contextlib.suppress(ValueError):  # detached from what is below
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
