"""`Afterwards`: what a session does after its runs, while nobody waits for it.

A thread does it, one thing after the other. Where no thread can be started, whoever asks for
something does it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from shoal.errors import ShoalError

log = logging.getLogger(__name__)

_GLANCE = 0.1
"""Seconds between two looks at whether somebody is still there to answer."""


class Afterwards:
    """A queue of things to do, and the thread that does them."""

    def __init__(self, idle_seconds: float, idle: Callable[[], None]) -> None:
        """Begin; `idle` is called after so many seconds without anything to do, and at the end."""
        self._idle_seconds = idle_seconds
        self._idle = idle
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def do(self, what: Callable[[], None]) -> None:
        """Do something soon."""
        if self._begun():
            self._queue.put(what)
        else:
            _do(what)

    def _begun(self) -> bool:
        """Whether there is a thread; the system may give none."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="shoal-afterwards", daemon=True)
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
        """Wait until all that was asked for is done."""
        thread = self._thread
        if thread is not None:
            done = threading.Event()
            self._queue.put(done.set)
            while thread.is_alive() and not done.wait(_GLANCE):
                pass  # if this is closed meanwhile, no more is done

    def close(self) -> None:
        """Do what is left, and no more."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        _do(self._idle)


def _do(what: Callable[[], None]) -> None:
    try:
        what()
    except ShoalError as error:
        log.warning("%s", error)
    except Exception:
        log.exception("post-run cleanup failed")
