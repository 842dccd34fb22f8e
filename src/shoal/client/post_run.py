"""`PostRunQueue`: what a session does after its runs, while nobody waits for it.

A thread does the chores one after the other. If no thread can be started, `do` does them itself.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from shoal.errors import ShoalError

log = logging.getLogger(__name__)

_GLANCE = 0.1
"""Seconds between two checks that the thread is still alive."""


class PostRunQueue:
    """A queue of chores, and the thread that does them."""

    def __init__(self, idle_seconds: float, idle: Callable[[], None]) -> None:
        """Call `idle` after `idle_seconds` without a chore, and when the queue is closed."""
        self._idle_seconds = idle_seconds
        self._idle = idle
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def do(self, what: Callable[[], None]) -> None:
        """Do a chore soon."""
        if self._begun():
            self._queue.put(what)
        else:
            _do(what)

    def _begun(self) -> bool:
        """Start the thread if there is none; whether the system allows one."""
        with self._lock:
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
            try:
                what = self._queue.get(timeout=self._idle_seconds)
            except queue.Empty:
                what = self._idle
            if what is None:
                return
            _do(what)

    def settle(self) -> None:
        """Wait until all chores so far are done."""
        thread = self._thread
        if thread is not None:
            done = threading.Event()
            self._queue.put(done.set)
            while thread.is_alive() and not done.wait(_GLANCE):
                pass  # if the queue is closed meanwhile, the thread ends

    def close(self) -> None:
        """Do the chores that are left, and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        _do(self._idle)


def _do(what: Callable[[], None]) -> None:
    try:
        what()
    except ShoalError as error:
        log.warning("%s", error)
    except Exception:  # the thread's outermost edge: what comes next is done all the same
        log.exception("post-run cleanup failed")
