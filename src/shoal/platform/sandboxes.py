"""`Sandbox`: the gateway's side of a sandbox: what it is told and what it answers.

1. A sandbox runs users' code, so its answers are checked: one that says anything but an answer to
   the job that it has is no sandbox any more.
2. Nobody waits for a sandbox: what it doesn't take at once is sent when it does.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from typing import Any

from shoal.platform.base import Invocation
from shoal.platform.sandbox import LENGTH, MOST_ANSWERED, RunningTasks
from shoal.platform.zygotes import Key
from shoal.types import Resources, RunId

Kind = tuple[Resources, str]
"""What sandboxes must have in common to be exchangeable: resources and session."""

BEGIN_SECONDS = 5.0
"""How long a warm sandbox may take to begin a job."""
_READ = 1 << 16


@dataclass
class Sandbox:
    """A sandbox, as its gateway knows it."""

    number: int
    kind: Kind
    control: socket.socket
    """Never blocks."""
    streams: dict[str, int]
    """The pipes that its stdout and stderr come out of."""
    running: RunningTasks
    zygote: Key
    pid: int = 0
    """Once the zygote has told it; 0 in a namespace, where the system sees to the end."""
    job: Invocation | None = None
    jobs: int = 0
    """How many it has been given."""
    last_run: tuple[RunId, str] = (RunId(""), "")
    """Whose lines come out of it."""
    began: float = 0.0
    ends: float = float("inf")
    """When it is ended, should it not have by then."""
    rest: dict[str, bytes] = field(default_factory=dict)
    """Unfinished lines."""
    late: bool = False
    """Its job took longer than a function may."""
    paused: bool = False
    """Somebody has stopped its process, and not let it go on."""
    fault: str = ""
    """What it has done that a sandbox must not."""
    doomed: bool = False
    """It is being killed, and nobody is to be told."""
    _received: bytearray = field(default_factory=bytearray)
    _unsent: memoryview = field(default_factory=lambda: memoryview(b""))

    @property
    def unbegun(self) -> bool:
        """Whether it hasn't begun the job that it has been given, though it had others before."""
        return self.job is not None and self.jobs > 1 and self.running.begun() < self.jobs

    def due(self, limit: float | None) -> float:
        """When it is to be ended if it goes on as it does; `limit` is what its job may take."""
        limit = float("inf") if self.job is None or limit is None else limit
        return min(
            self.ends,
            self.began + limit,
            self.began + BEGIN_SECONDS if self.unbegun else float("inf"),
        )

    def send(self, message: bytes) -> bool:
        """Tell it something; whether it has all of it, or nothing more can be told to it."""
        self._unsent = memoryview(LENGTH.pack(len(message)) + message)
        return self.flush()

    def flush(self) -> bool:
        """Send what it hasn't taken so far; True if nothing is left to be sent."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.control.send(self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:  # it has ended, which is reported as such
            self._unsent = memoryview(b"")
        return True

    def receive(self) -> dict[str, Any] | None:
        """Its answer, if that is there; `EOFError` if it has hung up, `ValueError` if it isn't one.

        An answer says whether the sandbox is `reusable`, and may tell of an `error`.
        """
        try:
            data = self.control.recv(_READ)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self._received += data
        if self.job is None or self._unsent:
            raise ValueError("it spoke to its gateway without being asked")
        if len(self._received) < LENGTH.size:
            return None
        length = LENGTH.unpack_from(self._received)[0]
        if not length <= MOST_ANSWERED or len(self._received) > LENGTH.size + length:
            raise ValueError("it told its gateway more than an answer")
        if len(self._received) < LENGTH.size + length:
            return None
        body = bytes(self._received[LENGTH.size :])
        self._received.clear()
        return _checked(body)


def _checked(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("its answer to its gateway isn't JSON") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("reusable"), bool):
        raise ValueError("its answer to its gateway lacks what it must say")
    if not all(isinstance(answer.get(name, ""), str) for name in ("error", "changed")):
        raise ValueError("its answer to its gateway is ill-typed")
    return answer
