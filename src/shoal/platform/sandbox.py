"""`Sandbox`: the gateway's side of a sandbox: how it is made, what it is sent and what it answers.

1. A sandbox runs users' code, so its answers are checked. One that sends anything but an answer to
   its invocation is no longer used.
2. The gateway never blocks on a sandbox: what a sandbox doesn't read at once is sent later.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.platform.invocation import Invocation
from shoal.platform.logs import Logs
from shoal.platform.sandbox_main import LENGTH, MAX_ANSWER, PAGE, RunningTasks
from shoal.platform.sandbox_messages import SandboxAnswer, answer_of
from shoal.platform.sandbox_output import SandboxOutput
from shoal.platform.zygotes import ZygoteKey, Zygotes
from shoal.system import kill_group, shared_page
from shoal.types import Resources

PoolKey = tuple[Resources, str]
"""What sandboxes must have in common to be exchangeable: resources and session."""

BEGIN_SECONDS = 5.0
"""How long a warm sandbox may take to begin an invocation."""
_READ = 1 << 16


@dataclass
class Sandbox:
    """A sandbox, as its gateway knows it."""

    number: int
    pool_key: PoolKey
    control: socket.socket
    """Never blocks."""
    output: SandboxOutput
    running: RunningTasks
    zygote: ZygoteKey
    pid: int = 0
    """Once the zygote has reported it; 0 in a namespace, where the system kills what is left."""
    invocation: Invocation | None = None
    """What it works on."""
    given: int = 0
    """How many invocations it has been given."""
    began: float = 0.0
    """When it was given the current one."""
    ends: float = float("inf")
    """When to kill it if it hasn't ended by itself."""
    late: bool = False
    """Its invocation took longer than a function may."""
    paused: bool = False
    """Its process has been stopped, and hasn't continued."""
    fault: str = ""
    """The protocol violation that it is killed for."""
    doomed: bool = False
    """It is being killed on purpose, which isn't reported."""
    _received: bytearray = field(default_factory=bytearray)
    _unsent: memoryview = field(default_factory=lambda: memoryview(b""))

    @classmethod
    def create(
        cls,
        number: int,
        pool_key: PoolKey,
        preload: Sequence[str],
        zygotes: Zygotes,
        logs: Logs,
    ) -> Sandbox:
        """Have a zygote fork a sandbox; raises `OSError` if the system refuses."""
        resources, session = pool_key
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            control, inside = socket.socketpair()
            ours.callback(control.close)
            theirs.callback(inside.close)
            out, out_inside = _pipe(ours, theirs)
            err, err_inside = _pipe(ours, theirs)
            page = shared_page(PAGE)
            theirs.callback(os.close, page)
            running = RunningTasks(mmap.mmap(page, PAGE))
            key = (min(resources.slots, os.cpu_count() or 1), session)
            zygote = zygotes.get(key, preload)
            zygote.fork(number, resources, (inside.fileno(), out_inside, err_inside, page))
            ours.pop_all()
        control.setblocking(False)
        for descriptor in (out, err):
            os.set_blocking(descriptor, False)
        output = SandboxOutput({"stdout": out, "stderr": err}, logs)
        return cls(number, pool_key, control, output, running, key)

    @property
    def unbegun(self) -> bool:
        """Whether it hasn't begun its current invocation, though it has run others before."""
        return self.invocation is not None and self.given > 1 and self.running.begun() < self.given

    def give(self, invocation: Invocation, message: bytes, now: float) -> bool:
        """Send an invocation; whether all of it has been sent."""
        self.invocation = invocation
        self.output.assign(invocation.run, invocation.worker)
        self.began, self.late = now, False
        self.given += 1
        return self.send(message)

    def due(self, limit: float | None) -> float:
        """When to kill it if nothing changes; `limit` is how long an invocation may take."""
        limit = float("inf") if self.invocation is None or limit is None else limit
        return min(
            self.ends,
            self.began + limit,
            self.began + BEGIN_SECONDS if self.unbegun else float("inf"),
        )

    def send(self, message: bytes) -> bool:
        """Send a message; True if all of it has been sent, or the sandbox has ended."""
        self._unsent = memoryview(LENGTH.pack(len(message)) + message)
        return self.flush()

    def flush(self) -> bool:
        """Send the rest of a message; True if nothing is left to send."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.control.send(self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:  # it has ended, which its zygote reports
            self._unsent = memoryview(b"")
        return True

    def receive(self) -> SandboxAnswer | None:
        """The sandbox's answer; None if it hasn't arrived yet.

        Raises `EOFError` if the sandbox has hung up, `ValueError` if it sent something else.
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
        if self.invocation is None or self._unsent:
            raise ValueError("it spoke to its gateway without being asked")
        if len(self._received) < LENGTH.size:
            return None
        length = LENGTH.unpack_from(self._received)[0]
        if not length <= MAX_ANSWER or len(self._received) > LENGTH.size + length:
            raise ValueError("it sent its gateway more than an answer")
        if len(self._received) < LENGTH.size + length:
            return None
        body = bytes(self._received[LENGTH.size :])
        self._received.clear()
        return answer_of(body)

    def kill_group(self) -> None:
        """Kill the processes of a sandbox whose zygote has ended and can't."""
        if self.pid:
            kill_group(self.pid)

    def close(self) -> None:
        """Close the gateway's side."""
        self.control.close()
        self.output.close()


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with the two stacks."""
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write
