"""`Timeouts`: the running tasks that have a timeout, and what becomes of those that exceed it.

1. A thread can't be stopped. A task that takes too long is given up together with its thread, and
   the thread learns of it when the task returns.
2. A task that never releases the interpreter lock lets no other thread notice. So where the process
   is the worker's own, an alarm of the operating system ends it.
3. Every method is called under the worker's lock.
"""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass

from shoal.types import TaskId

_GRACE = 2.0
"""Seconds from a timeout that went unnoticed until the alarm ends the process."""


@dataclass(slots=True)
class Attempt:
    """One execution of a task that has a timeout."""

    task: TaskId
    slot: int
    until: float
    """When it is given up, on the monotonic clock."""
    given_up: bool = False


class GivenUp(Exception):
    """This thread's task has been given up, and the thread with it."""


class Timeouts:
    """The executions of one worker that have a timeout."""

    def __init__(self) -> None:
        self._attempts: dict[int, Attempt] = {}
        """Those under way, by slot; none of them is given up."""
        self._alarming = False
        """Whether an alarm may end the process."""
        self.abandoned = 0
        """How many threads still run a task that was given up."""

    def use_alarm(self) -> None:
        """Let the alarm end the process if this is its main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._alarming = True

    def begin(self, task: TaskId, slot: int, seconds: float) -> Attempt:
        """A task begins, and may take so many seconds."""
        attempt = self._attempts[slot] = Attempt(task, slot, time.monotonic() + seconds)
        self._set_alarm()
        return attempt

    def end(self, attempt: Attempt) -> None:
        """A task has returned or raised; `GivenUp` if it has been given up."""
        if attempt.given_up:
            self.abandoned -= 1
            raise GivenUp
        self._attempts.pop(attempt.slot, None)
        self._set_alarm()

    def give_up(self, attempt: Attempt) -> bool:
        """Give up a task that took too long; False if it has ended after all."""
        if self._attempts.get(attempt.slot) is not attempt:
            return False
        del self._attempts[attempt.slot]
        self._set_alarm()
        attempt.given_up = True
        self.abandoned += 1
        return True

    def clear(self) -> None:
        """The worker has ended: nothing is late any more."""
        self._attempts.clear()
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarming:
            late = min((attempt.until for attempt in self._attempts.values()), default=None)
            seconds = 0.0 if late is None else max(0.001, late + _GRACE - time.monotonic())
            signal.setitimer(signal.ITIMER_REAL, seconds)
