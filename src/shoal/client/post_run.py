"""`PostRunQueue`: what a session does after its runs, while nobody waits for it.

1. A thread does it. If runs end faster than that, a child process takes over (`PostRunProcess`),
   because a busy thread keeps the interpreter from the next run. A program that computes now and
   then has no other process. When the session idles, the process ends.
2. Until the process is ready, runs wait. If somebody waits for them, the thread files them. So
   neither a result nor the end of a program waits for the process to start.
3. The process has the lowest priority. On a machine that is busy otherwise, the thread takes over
   what somebody waits for.
4. A process that dies is replaced, with a warning. The next one gets what hadn't been filed. If it
   dies of that too, those runs are dropped, and the thread goes on.
5. If no thread can be started, the caller does the work.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from shoal.client.backlog import Backlog, WaitingRun
from shoal.client.post_run_work import (
    Answer,
    EndedRun,
    KnownPlan,
    PostRunWork,
    Replanned,
    packed_plan,
)
from shoal.errors import ShoalError
from shoal.metadata.history import History
from shoal.planning.plan_cache import PlanName

if TYPE_CHECKING:
    from shoal.client.post_run_frames import Done, Ready
    from shoal.client.post_run_process import PostRunProcess

log = logging.getLogger(__name__)

_GLANCE = 0.1
"""Seconds between two checks that the thread is still alive."""
_PATIENCE = 0.5
"""How many seconds somebody waits for the process before the thread does its work."""
_CROWDED = 3
"""How many runs end while others are being filed before the process is started."""
_MOST_LOSSES = 2
"""How many processes may die before one has filed anything."""


class PostRunQueue:
    """A queue of ended runs, and the thread or the process that files them."""

    def __init__(
        self,
        history: Callable[[], History],
        kept: int,
        plan: Callable[[PlanName], tuple[PlanName, KnownPlan] | None],
        take: Callable[[Answer], None],
        idle_seconds: float,
        idle: Callable[[], None],
    ) -> None:
        """Create it; nothing is started yet.

        Args:
            history: Opens the history.
            kept: How many runs of each workflow history keeps.
            plan: Finds the latest version of a cached plan.
            take: Takes over what was learnt from a run.
            idle_seconds: How long after the last run to call `idle`.
            idle: Is also called when the queue is closed.
        """
        self._history = history
        self._kept = kept
        self._plan = plan
        self._take = take
        self._idle_seconds = idle_seconds
        self._idle = idle
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._work = PostRunWork(history)
        """What the thread knows."""
        self._told: set[PlanName] = set()
        """The cached plans that the thread knows."""
        self._calls: deque[tuple[int, Callable[[], None]]] = deque()
        self._backlog = Backlog(kept)
        self._last = 0
        """The number of the latest thing to do."""
        self._doing: int | None = None
        """The number of what the thread is doing."""
        self._crowded = 0
        """How many runs ended while others were being filed."""
        self._settling = 0
        """How many threads wait for everything to be done."""
        self._hurried = False
        """The session is being closed: nobody needs what could still be learnt."""
        self._closed = False
        self._process: PostRunProcess | None = None
        self._losses = 0
        """How many processes have died since one has filed anything."""
        self._touched: float | None = None
        """When the last run ended; None: not since `idle` was called."""

    def touch(self) -> None:
        """Note that a run has ended, so that `idle` is called some time after it."""
        self._touched = time.monotonic()
        self._begun()

    def call(self, what: Callable[[], None]) -> None:
        """Call a function of the session soon, in the thread."""
        if not self._begun():
            guarded(what)
            return
        with self._changed:
            self._last += 1
            self._calls.append((self._last, what))
            self._changed.notify_all()

    def file(self, run: EndedRun, *, replan: bool) -> None:
        """File a run soon, and learn from it.

        Args:
            run: The run.
            replan: Whether to plan its workflow anew if that may pay.
        """
        self._touched = time.monotonic()
        begun = self._begun()
        group = run.record.key, run.plan or run.record.tasks
        data = pickle.dumps(run, 5)
        with self._changed:
            self._last += 1
            waiting = WaitingRun(self._last, run.plan, group, replan, data)
            if not begun:
                guarded(lambda: self._file_here(waiting))
            elif not self._passed_on(waiting):
                self._crowded += self._doing is not None or len(self._backlog) > 0
                self._backlog.add(waiting)
                self._changed.notify_all()

    def _passed_on(self, run: WaitingRun) -> bool:
        """Send a run to the process at once, if that is possible without waiting."""
        process = self._process
        if process is None or not process.ready or self._doing is not None or len(self._backlog):
            return False
        if run.plan is not None and run.plan not in process.told:
            return False
        return process.filed_at_once(run)

    def _begun(self) -> bool:
        """Start the thread if there is none; whether there is one now."""
        if self._thread is not None:
            return not self._closed
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="shoal-post-run", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
            return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._to_do, self._rest())
                if self._closed and self._first() is None:
                    return
                action = self._next()
            if action is not None:
                guarded(action)
            with self._changed:
                self._doing = None
                self._changed.notify_all()

    def _to_do(self) -> bool:
        """Whether the thread has something to do."""
        if self._calls or (self._closed and self._first() is None):
            return True
        return len(self._backlog) > 0 and (
            self._process is None or self._process.ready or self._settling > 0
        )

    def _rest(self) -> float | None:
        """How long the thread may wait before the session is idle."""
        if self._touched is None:
            return None
        return max(0.0, self._touched + self._idle_seconds - time.monotonic())

    def _next(self) -> Callable[[], None] | None:
        """What the thread does next; the caller holds the lock."""
        if self._calls:
            self._doing, call = self._calls.popleft()
            return call
        if not len(self._backlog):
            return self._rested if self._rest() == 0.0 else None
        if self._process is None and self._crowded >= _CROWDED and not self._settling:
            return self._start
        if self._process is not None and not self._process.ready and not self._settling:
            return None
        run = self._backlog.take()
        self._doing = run.number
        process = self._process
        if process is not None and process.ready:
            return lambda: self._send(process, run)
        return lambda: self._file_here(run)

    def _rested(self) -> None:
        """No run has ended for a while."""
        if self._first() is not None:
            self._touched = time.monotonic()  # the process is still busy
            return
        self._touched = None
        self._crowded = min(self._crowded, 0)
        self._hang_up()
        self._idle()

    def _file_here(self, run: WaitingRun) -> None:
        """File a run in this thread."""
        if run.plan is not None and run.plan not in self._told:
            self._told.add(run.plan)
            known = self._plan(run.plan)
            if known is not None:
                self._work.know(*known)
        ended: EndedRun = pickle.loads(run.data)
        for answer in self._work.do(ended, replan=run.replan, more=self._hurried):
            self._learnt(answer, self._told)

    def _learnt(self, answer: Answer, told: set[PlanName]) -> None:
        """Pass on what was learnt; whoever makes a plan knows it."""
        if isinstance(answer, Replanned):
            told.add(answer.plan)
        self._take(answer)

    def _send(self, process: PostRunProcess, run: WaitingRun) -> None:
        """Send a run to the process, which learns of its plan first."""
        if run.plan is not None and run.plan not in process.told:
            process.told.add(run.plan)
            known = self._plan(run.plan)
            packed = None if known is None else packed_plan(known[1])
            if known is not None and packed is not None:
                process.tell(known[0], packed)
        with self._changed:
            if process is not self._process:  # it has died meanwhile
                self._put_back([run])
                return
            process.sent.append(run)
        process.send(run)

    def _start(self) -> None:
        """Start the process, and a thread that listens to it; if that fails, this thread goes on.

        The process may learn more than this thread knows, which therefore forgets it.
        """
        from shoal.client.post_run_process import PostRunProcess  # most sessions never need it

        try:
            process = PostRunProcess(self._history(), self._kept)
        except (OSError, ShoalError) as error:
            log.debug("no post-run process: %s", error)
            self._crowded = -(2**62)
            return
        self._process = process
        self._work, self._told = PostRunWork(self._history), set()
        try:
            threading.Thread(
                target=self._listen, args=(process,), name="shoal-post-run-answers", daemon=True
            ).start()
        except RuntimeError:
            self._crowded = -(2**62)
            self._hang_up()

    def _listen(self, process: PostRunProcess) -> None:
        """Take what the process says, until it has ended."""
        process.listen(
            partial(self._note, process),
            lambda answer: guarded(partial(self._learnt, answer, process.told)),
        )
        self._replace(process)

    def _note(self, process: PostRunProcess, report: Ready | Done) -> None:
        """Note that the process is ready, or has filed runs."""
        with self._changed:
            dropped = process.note(report)
            if process.successful:
                self._losses = 0
            self._changed.notify_all()
        if dropped:
            log.warning("%d runs ended too fast to be recorded in history", dropped)

    def _replace(self, process: PostRunProcess) -> None:
        """Have another process do what one leaves that has ended by itself."""
        with self._changed:
            if process is not self._process:
                return
            self._process = None
            self._losses += 1
            left = [*process.sent]
            given_up = self._losses >= _MOST_LOSSES
            if given_up:
                self._crowded = -(2**62)
            else:
                self._put_back(left)
            self._changed.notify_all()
        if given_up and left:
            log.warning(
                "%d ended runs are not recorded: filing them killed two processes", len(left)
            )
        else:
            log.warning("the process that files runs has died; it is replaced")
        process.close()

    def _put_back(self, runs: list[WaitingRun]) -> None:
        later, self._backlog = self._backlog, Backlog(self._kept)
        for run in runs:
            self._backlog.add(run)
        while len(later):
            self._backlog.add(later.take())

    def _first(self) -> int | None:
        """The number of the first thing that isn't done; None if everything is."""
        sent = self._process.sent if self._process is not None else ()
        numbers = [run.number for run in [*sent][:1]]
        numbers += [number for number, _ in [*self._calls][:1]]
        numbers += [each for each in (self._backlog.first, self._doing) if each is not None]
        return min(numbers, default=None)

    def settle(self) -> None:
        """Wait until everything so far is done."""
        thread = self._thread
        if thread is None:
            return
        with self._changed:
            last = self._last
            self._settling += 1
            self._changed.notify_all()
            try:
                looked, seen = time.monotonic(), self._first()
                while thread.is_alive() and (first := self._first()) is not None and first <= last:
                    if first != seen:
                        looked, seen = time.monotonic(), first
                    self._press(time.monotonic() - looked)
                    self._changed.wait(_GLANCE)
            finally:
                self._settling -= 1

    def _press(self, seconds: float) -> None:
        """Tell the process that somebody waits, and has seen no progress for so many seconds."""
        process = self._process
        if process is None or len(self._backlog) or self._doing is not None:
            return
        if seconds < _PATIENCE:
            process.ask()
            return
        self._process, self._crowded = None, 0
        self._put_back([*process.sent])
        self._changed.notify_all()
        process.close()

    def hurry(self) -> None:
        """File what is left, but learn nothing, and don't wait for a server that doesn't answer."""
        with self._changed:
            self._hurried = True
            if self._process is not None:
                self._process.hurry()

    def close(self) -> None:
        """Do what is left, and end the thread and the process."""
        if self._thread is not None:
            self.settle()
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join()
        self._hang_up()
        guarded(self._idle)

    def _hang_up(self) -> None:
        """End the process, if there is one."""
        with self._changed:
            process, self._process = self._process, None
        if process is not None:
            process.close()


def guarded(what: Callable[[], None]) -> None:
    """Do something for a run that has ended; a failure is logged, for the run has its result."""
    try:
        what()
    except ShoalError as error:
        log.warning("%s", error)
    except Exception:  # the thread's outermost edge: what comes next is done all the same
        log.exception("post-run work failed")
