"""`Watchers`: who waits for a session's runs.

1. A run that is begun here has a watcher before it begins: where no thread can be started, nothing
   has happened yet, and nobody ever waits for a run that nobody watches.
2. A detached run goes on without anybody. It is watched from the moment that somebody here wants
   its result, or its end.
3. When a session is closed, its runs are cancelled; detached ones are let go.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from shoal.errors import NoThread, UsageError
from shoal.run import Run


class Watchers:
    """The runs that are watched, each by a thread."""

    def __init__(self) -> None:
        self._runs: set[Run] = set()
        self._lock = threading.Lock()
        self._closed = False

    def begin(self, run: Run, begin: Callable[[], None]) -> None:
        """Begin a run, and watch it from a thread of its own."""
        begun: queue.SimpleQueue[bool] = queue.SimpleQueue()

        def watch() -> None:
            if begun.get():
                self.watch(run)

        self._start(run, watch)
        try:
            begin()
            with self._lock:
                self._runs.add(run)
        except BaseException:
            begun.put(False)
            raise
        begun.put(True)

    def watch(self, run: Run) -> None:
        """Watch a run from this thread until it has ended."""
        with self._lock:
            self._runs.add(run)
        try:
            run.watch()
        finally:
            with self._lock:
                self._runs.discard(run)

    def see_to(self, run: Run) -> None:
        """Have a detached run watched from now on, if it isn't."""
        with self._lock:
            if run in self._runs:
                return
            if self._closed:
                raise UsageError(
                    f"The session of run {run.id} has been closed. Wait for the run with "
                    f"Session.attach({run.id!r}), or `shoal attach {run.id}`."
                )
            self._runs.add(run)
            try:
                self._start(run, lambda: self.watch(run))
            except BaseException:
                self._runs.discard(run)
                raise

    def _start(self, run: Run, target: Callable[[], None]) -> None:
        try:
            threading.Thread(target=target, name="shoal-run", daemon=True).start()
        except RuntimeError as error:
            raise NoThread(run.id, str(error)) from error

    def close(self) -> None:
        """Cancel the runs that are under way; those that are detached go on."""
        with self._lock:
            self._closed = True
            runs = list(self._runs)
        for run in runs:
            run.leave()
