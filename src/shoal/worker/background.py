"""`Background`: a worker's own thread for what no slot does, and for timers."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

from shoal.worker.threads import in_background

_IDLE_SECONDS = 0.25
"""Seconds after which the thread looks for something to do even if it wasn't woken."""


class Background:
    """A thread that works when it is woken, when a timer is due, and every now and then."""

    def __init__(
        self, work: Callable[[bool], None], give_up: Callable[[BaseException], None]
    ) -> None:
        """Prepare the thread.

        Args:
            work: Does what there is to do; whether the thread was woken for it.
            give_up: Takes an error that ends the thread.
        """
        self._work = work
        self._give_up = give_up
        self._changed = threading.Condition()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._woken = False
        self._stopped = False
        self._busy = False

    def start(self) -> None:
        """Start the thread."""
        self._woken = False  # it handles the timers so far in any case
        in_background(self._run)

    def stop(self) -> None:
        """Stop the thread, and wait until it is done with what it is doing."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy)

    def wake(self) -> None:
        """Let the thread work."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back later, in this thread."""
        with self._changed:
            self._timer_count += 1
            heapq.heappush(self._timers, (time.monotonic() + seconds, self._timer_count, callback))
            self._woken = True
            self._changed.notify()

    def call_due(self) -> None:
        """Call back for each timer that is due."""
        due = []
        with self._changed:
            while self._timers and self._timers[0][0] <= time.monotonic():
                due.append(heapq.heappop(self._timers)[2])
        for callback in due:
            callback()

    def _run(self) -> None:
        try:
            while (woken := self._wait()) is not None:
                self.call_due()
                self._work(woken)
        except BaseException as error:  # noqa: BLE001 - the driver's outermost edge
            self._give_up(error)
        finally:
            self._rest()

    def _rest(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def _wait(self) -> bool | None:
        """Wait until there may be work; whether the thread was woken, or None if it is stopped."""
        self._rest()
        with self._changed:
            timeout = _IDLE_SECONDS
            if self._timers:
                timeout = min(timeout, max(0.0, self._timers[0][0] - time.monotonic()))
            woken = self._changed.wait_for(lambda: self._woken or self._stopped, timeout)
            self._woken = False
            if self._stopped:
                return None
            self._busy = True
        return woken
