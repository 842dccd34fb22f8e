"""`PostRunProcess`: a child process of low priority that files ended runs and learns from them.

1. What runs there takes no time from this interpreter, and on a busy machine almost none from the
   workers.
2. It ends when its session hangs up, or is gone without having hung up.
3. It gets nothing that needs the user's modules. It starts with an empty interpreter, so it neither
   repeats a script nor inherits locks and threads, as a fork would.
4. It lets runs gather for a moment, unless the session waits or a workflow is due to be planned
   anew. Of those that history would delete again for the latest, it files none.
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
from collections.abc import Callable
from functools import partial

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
    framed,
    received,
)
from shoal.client.post_run_work import Answer, PostRunWork, unpacked_plan
from shoal.errors import ShoalError
from shoal.import_path import import_path
from shoal.metadata.history import History
from shoal.planning.plan_cache import PlanName

log = logging.getLogger(__name__)

_PROGRAM = (
    "import os; os.nice(19); import sys; sys.path[:] = {path!r}; "
    "from shoal.client.post_run_process import main; main({fd}, {parent})"
)
_GATHER_SECONDS = 1.0
"""How long runs gather before they are filed."""
_MOST_BEHIND = 20
"""How many runs may wait while one teaches; if more do, filing comes first."""
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
        self.successful = False
        """Whether it has filed anything."""
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

    def note(self, report: Ready | Done) -> int:
        """Note what it reports; returns how many runs it has dropped since the last report."""
        if isinstance(report, Ready):
            self.ready = True
            return 0
        self.successful = True
        while self.sent and self.sent[0].number <= report.number:
            self.sent.popleft()
        dropped, self.dropped = report.dropped - self.dropped, report.dropped
        return dropped

    def tell(self, name: PlanName, plan: bytes) -> None:
        """Tell it of a cached plan."""
        self.send(Told(name, plan))

    def ask(self) -> None:
        """Ask for a report as soon as all runs so far are filed."""
        self.send(Settle())

    def hurry(self) -> None:
        """Have it learn nothing more, and not wait for a server that doesn't answer."""
        self.send(Hurry())

    def listen(
        self, noted: Callable[[Ready | Done], None], learnt: Callable[[Answer], None]
    ) -> None:
        """Listen to it until it has ended.

        Args:
            noted: Called when it is ready, and when it has filed runs.
            learnt: Called with what it has learnt.
        """
        while (message := received(self._socket)) is not None:
            match message:
                case Ready() | Done():
                    noted(message)
                case Said(logger, level, text):
                    logging.getLogger(logger).log(level, "%s", text)
                case _:
                    learnt(message)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the process, whatever it is doing: history is never left half written."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()
        self._socket.close()


class Inbox:
    """What has arrived from the session; safe to use from several threads."""

    def __init__(self, kept: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty one.

        Args:
            kept: How many runs of each workflow history keeps.
            clock: Returns seconds.
        """
        self.hurried = False
        """Nothing more is to be learnt, for the session is being closed."""
        self._clock = clock
        self._changed = threading.Condition()
        self._backlog = Backlog(kept)
        self._told: list[Told] = []
        self._settle = False
        """Whether the session waits."""
        self._received = 0
        """The number of the latest run that has arrived."""
        self._released = 0
        """The number of the latest run that has gathered for long enough."""
        self._since: float | None = None
        """When the oldest run arrived that hasn't."""
        self._replan = False
        """Whether one of those is due to be planned anew."""

    def put(self, message: ToProcess) -> None:
        """Add what has arrived."""
        with self._changed:
            match message:
                case WaitingRun():
                    self._backlog.add(message)
                    self._received = message.number
                    self._since = self._clock() if self._since is None else self._since
                    self._replan = self._replan or message.replan
                case Told():
                    self._told.append(message)
                case Settle():
                    self._settle = True
                case Hurry():
                    self.hurried = True
            self._changed.notify()

    def next(self, seconds: float | None) -> tuple[list[Told], WaitingRun | None, bool]:
        """What the session tells, the next run, and whether nothing is to be learnt from it yet.

        Args:
            seconds: How long to wait for a run; None: until there is one, or the session waits.
        """
        until = None if seconds is None else self._clock() + seconds
        with self._changed:
            while not self._ready():
                wait = self._wait(until)
                if wait is not None and wait <= 0:
                    break
                self._changed.wait(wait)
            told, self._told = self._told, []
            if self._backlog.first is None or self._backlog.first > self._released:
                return told, None, False
            run = self._backlog.take()
            behind = self._released - run.number > _MOST_BEHIND
            return told, run, self.hurried or behind or self._backlog.more(run, self._released)

    def _ready(self) -> bool:
        """Whether there is a run to file, or the session waits."""
        first = self._backlog.first
        if first is None or first <= self._released:
            return first is not None or self._settle
        gathered = self._since is not None and self._clock() >= self._since + _GATHER_SECONDS
        if not (gathered or self._settle or self.hurried or self._replan):
            return False
        self._released, self._since, self._replan = self._received, None, False
        return True

    def _wait(self, until: float | None) -> float | None:
        """How long to wait for what arrives; None: for as long as it takes."""
        gathered = None if self._since is None else self._since + _GATHER_SECONDS
        ends = [end for end in (until, gathered) if end is not None]
        return min(ends) - self._clock() if ends else None

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


def _listen(sock: socket.socket, inbox: Inbox, history: _OpenedHistory) -> None:
    """Receive what the session sends, and end the process with it."""
    while (message := received(sock)) is not None:
        inbox.put(message)  # type: ignore[arg-type]
        if isinstance(message, Hurry):
            history.hurry()
    os._exit(0)


def _watch(parent: int) -> None:
    """End the process when the session's is gone; a fork of it may hold the connection."""
    while os.getppid() == parent:
        time.sleep(_GLANCE)
    os._exit(0)


class _OpenedHistory:
    """The history, opened when it is first needed."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._opened: History | None = None

    def __call__(self) -> History:
        if self._opened is None:
            self._opened = pickle.loads(self._pickled)
        return self._opened

    def hurry(self) -> None:
        """Don't wait for a server that doesn't answer."""
        hurry = getattr(self._opened, "hurry", None)
        if hurry is not None:
            hurry()


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
    inbox, history = Inbox(hello.kept), _OpenedHistory(hello.history)
    for target in (partial(_listen, sock, inbox, history), partial(_watch, parent)):
        threading.Thread(target=target, daemon=True).start()
    sock.sendall(framed(Ready()))
    with contextlib.suppress(OSError):
        _serve(sock, inbox, PostRunWork(history))


def _serve(sock: socket.socket, inbox: Inbox, work: PostRunWork) -> None:
    """File what arrives."""
    done = reported = 0
    at = time.monotonic()
    while True:
        told, run, more = inbox.next(_REPORT_SECONDS if reported < done else None)
        for each in told:
            plan = unpacked_plan(each.plan)
            if plan is not None:
                work.know(each.name, plan)
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
