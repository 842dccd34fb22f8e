"""`PostRunProcess`: a child process of low priority that files ended runs and learns from them.

1. What runs there takes no time from this interpreter, and on a busy machine almost none from the
   workers.
2. It ends when its session hangs up, or is gone without having hung up.
3. It gets nothing that needs the user's modules. It starts with an empty interpreter, so it neither
   repeats a script nor inherits locks and threads, as a fork would.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

from shoal.client.backlog import Backlog, WaitingRun
from shoal.client.post_run_frames import (
    Done,
    Hello,
    Hurry,
    Ready,
    Said,
    Settle,
    Told,
    ToProcess,
    ToSession,
    framed,
    received,
)
from shoal.client.post_run_work import PostRunWork
from shoal.errors import ShoalError
from shoal.import_path import import_path
from shoal.metadata.history import History
from shoal.planning.plan_cache import PlanName

log = logging.getLogger(__name__)

_PROGRAM = (
    "import os; os.nice(19); import sys; sys.path[:] = {path!r}; "
    "from shoal.client.post_run_process import main; main({fd}, {parent})"
)
_END_SECONDS = 5.0
_GLANCE = 1.0
"""Seconds between two checks that the session's process is still there."""
_REPORT_SECONDS = 0.1
"""Seconds between two reports of what is filed: each wakes the session."""
_SMALL = 1 << 16
"""The largest frame that is sent by the thread that has it, in bytes."""
_BUFFER = 1 << 20
"""The size of the socket's buffers, in bytes."""


class PostRunProcess:
    """The session's side of the process."""

    def __init__(self, history: History, kept: int) -> None:
        """Start it; raises `OSError` if that isn't possible."""
        self.ready = False
        """Whether it can file runs."""
        self.sent: deque[WaitingRun] = deque()
        """What it hasn't reported as filed."""
        self.told: set[PlanName] = set()
        """The cached plans that it knows."""
        self.dropped = 0
        """How many runs it has dropped that history would have kept."""
        self._socket, inside = socket.socketpair()
        for end in (self._socket, inside):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        program = _PROGRAM.format(path=[*import_path()], fd=inside.fileno(), parent=os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(inside.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            inside.close()
        self.send(Hello(pickle.dumps(history), kept))

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, message: ToProcess) -> None:
        """Send a message; if that fails, the process has ended, which `messages` shows."""
        with contextlib.suppress(OSError):
            self._socket.sendall(framed(message))

    def file(self, run: WaitingRun) -> None:
        """Send a run."""
        self.sent.append(run)
        self.send(run)

    def filed_at_once(self, run: WaitingRun) -> bool:
        """Send a run unless that takes time; whether it was sent."""
        frame = framed(run)
        if len(frame) > _SMALL:
            return False
        try:
            count = self._socket.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            count = len(frame)  # it has ended
        self.sent.append(run)
        if count < len(frame):
            with contextlib.suppress(OSError):
                self._socket.sendall(frame[count:])
        return True

    def done(self, report: Done) -> int:
        """Forget the runs that are filed; returns how many were dropped since the last report."""
        while self.sent and self.sent[0].number <= report.number:
            self.sent.popleft()
        dropped, self.dropped = report.dropped - self.dropped, report.dropped
        return dropped

    def messages(self) -> Iterator[ToSession]:
        """What the process says, until it has ended."""
        while (message := received(self._socket)) is not None:
            yield message  # type: ignore[misc]

    def close(self) -> None:
        """Hang up, and wait until the process has ended."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()


class _Inbox:
    """What has arrived from the session, received by a thread of its own."""

    def __init__(self, sock: socket.socket, parent: int, hello: Hello) -> None:
        self._socket = sock
        self._parent = parent
        self._hello = hello
        self._opened: History | None = None
        self._changed = threading.Condition()
        self._backlog = Backlog(hello.kept)
        self._told: list[Told] = []
        self._settle = False
        self._hurried = False
        self._received = 0
        """The number of the latest run that has arrived."""

    def history(self) -> History:
        """The history, opened when it is first needed."""
        if self._opened is None:
            self._opened = pickle.loads(self._hello.history)
        return self._opened

    def listen(self) -> None:
        """Receive messages, and end the process with its session."""
        while (message := received(self._socket)) is not None:
            with self._changed:
                match message:
                    case WaitingRun():
                        self._backlog.add(message)
                        self._received = message.number
                    case Told():
                        self._told.append(message)
                    case Settle():
                        self._settle = True
                    case Hurry():
                        self._hurried = True
                        hurry = getattr(self._opened, "hurry", None)
                        if hurry is not None:
                            hurry()
                self._changed.notify()
        os._exit(0)

    def watch(self) -> None:
        """End the process when its session is gone; another process may hold the connection."""
        while os.getppid() == self._parent:
            time.sleep(_GLANCE)
        os._exit(0)

    def next(self, seconds: float | None) -> tuple[list[Told], WaitingRun | None, bool]:
        """What the session tells, the next run, and whether nothing is to be learnt from it yet.

        Args:
            seconds: How long to wait for a run; None: until there is one, or the session waits.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._backlog) or self._settle, seconds)
            told, self._told = self._told, []
            if not len(self._backlog):
                return told, None, False
            run = self._backlog.take()
            return told, run, self._hurried or self._backlog.more(run)

    def report(self, done: int) -> Done | None:
        """What to tell the session that waits; None: it doesn't, or not everything is done."""
        with self._changed:
            if not self._settle or done < self._received:
                return None
            self._settle = False
            return Done(done, self._backlog.dropped)

    @property
    def dropped(self) -> int:
        """How many runs were dropped that history would have kept."""
        with self._changed:
            return self._backlog.dropped


class _SessionLog(logging.Handler):
    """Passes what is logged here to the session's log."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._socket = sock

    def emit(self, record: logging.LogRecord) -> None:
        """Send a message."""
        with contextlib.suppress(OSError):
            self._socket.sendall(framed(Said(record.name, record.levelno, self.format(record))))


def main(fd: int, parent: int) -> None:
    """Work for a session until it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    hello = received(sock)
    if not isinstance(hello, Hello):
        return
    root = logging.getLogger()
    root.addHandler(_SessionLog(sock))
    root.setLevel(logging.WARNING)
    inbox = _Inbox(sock, parent, hello)
    for target in (inbox.listen, inbox.watch):
        threading.Thread(target=target, daemon=True).start()
    sock.sendall(framed(Ready()))
    with contextlib.suppress(OSError):
        _serve(sock, inbox)


def _serve(sock: socket.socket, inbox: _Inbox) -> None:
    work = PostRunWork(inbox.history)
    done = reported = 0
    at = time.monotonic()
    while True:
        told, run, more = inbox.next(_REPORT_SECONDS if reported < done else None)
        for plan in told:
            _guard(sock, work, plan)
        if run is not None:
            _file(sock, work, run, more=more)
            done = run.number
        now = time.monotonic()
        report = inbox.report(done)
        if report is None and reported < done and now >= at + _REPORT_SECONDS:
            report = Done(done, inbox.dropped)
        if report is not None:
            sock.sendall(framed(report))
            reported, at = done, now


def _guard(sock: socket.socket, work: PostRunWork, told: Told) -> None:
    """Learn of a plan, unless it has something that can't be loaded here."""
    try:
        work.know(told.name, pickle.loads(told.plan))
    except Exception:  # the user's code, whose modules may be missing
        log.debug("plan %s can't be loaded", told.name, exc_info=True)


def _file(sock: socket.socket, work: PostRunWork, run: WaitingRun, *, more: bool) -> None:
    try:
        for answer in work.do(pickle.loads(run.data), replan=run.replan, more=more):
            sock.sendall(framed(answer))
    except ShoalError as error:
        log.warning("%s", error)
    except OSError:
        raise
    except Exception:  # the process's outermost edge: what comes next is done all the same
        log.exception("post-run work failed")
