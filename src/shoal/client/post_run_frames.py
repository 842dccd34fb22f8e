"""Frames between a session and its post-run process: what each tells the other.

Both sides run the same code, and one has started the other, so frames are pickles.
"""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass

from shoal.client.backlog import WaitingRun
from shoal.client.post_run_work import Answer
from shoal.planning.plan_cache import PlanName

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Hello:
    """The session's first frame."""

    history: bytes
    """The pickled history."""
    kept: int
    """How many runs of each workflow history keeps."""


@dataclass(frozen=True, slots=True)
class Told:
    """A cached plan that runs to come are carried out by."""

    name: PlanName
    plan: bytes
    """What `packed_plan` makes of it."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Report when all runs so far are filed."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """File what is left, but learn nothing, and don't wait for a server that doesn't answer."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The process can file runs."""


@dataclass(frozen=True, slots=True)
class Done:
    """All runs up to this one are filed, or dropped."""

    number: int
    dropped: int = 0
    """How many were dropped that history would have kept, since the process began."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message for the log."""

    logger: str
    level: int
    text: str


ToProcess = Hello | Told | WaitingRun | Settle | Hurry
ToSession = Ready | Done | Said | Answer


def framed(message: ToProcess | ToSession) -> bytes:
    """A message as a frame."""
    data = pickle.dumps(message, 5)
    return _LENGTH.pack(len(data)) + data


def received(sock: socket.socket) -> ToProcess | ToSession | None:
    """The next message; None if the other side has hung up."""
    head = _exactly(sock, _LENGTH.size)
    if head is None:
        return None
    data = _exactly(sock, _LENGTH.unpack(head)[0])
    if data is None:
        return None
    message: ToProcess | ToSession = pickle.loads(data)
    return message


def _exactly(sock: socket.socket, count: int) -> bytearray | None:
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
    return data
