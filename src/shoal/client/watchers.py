"""`Watchers`: the threads that watch a session's runs.

1. A run has a watcher before it begins. If no thread can be started, nothing has happened yet, and
   no thread waits for a run that isn't watched.
2. A detached run needs no watcher. It gets one when this process first waits for it.
3. A run that has ended goes to `EndedRuns`, before any thread learns that it has ended.
4. When a session is closed, its runs are cancelled, and detached ones go on unwatched.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from shoal.client.ended_runs import EndedRuns
from shoal.client.interrupts import interruptible
from shoal.client.run import Run
from shoal.errors import NoThread, UsageError


class Watchers:
    """The runs that are watched, each by a thread."""

    def __init__(self, ended_runs: EndedRuns) -> None:
        self._ended_runs = ended_runs
        self._runs: set[Run] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(self, run: Run, begin: Callable[[], None]) -> None:
        """Begin a run, and watch it from this thread until it has ended."""
        with interruptible():
            begin()
            self.watch(run)

    def begin(self, run: Run, begin: Callable[[], None]) -> None:
        """Begin a run, and watch it from a thread of its own."""
        begun: queue.SimpleQueue[bool] = queue.SimpleQueue()

        def watch() -> None:
            if begun.get():
                self.watch(run)

        self._start(run, watch)
        successful = False
        try:
            begin()
            with self._lock:
                self._runs.add(run)
            successful = True
        finally:
            begun.put(successful)

    def watch(self, run: Run) -> None:
        """Watch a run from this thread until it has ended."""
        with self._lock:
            self._runs.add(run)
        try:
            try:
                run.watch()
            finally:
                self._ended_runs.conclude(run)
        finally:
            with self._lock:
                self._runs.discard(run)

    def ensure_watched(self, run: Run) -> None:
        """Have a detached run watched, if it isn't yet."""
        with self._lock:
            if run in self._runs:
                return
            if self._closed:
                raise UsageError(
                    f"The session of run {run.id} has been closed. To wait for the run, use "
                    f"Session.attach({run.id!r}), or `shoal attach {run.id}`."
                )
            self._runs.add(run)
            with contextlib.ExitStack() as undo:
                undo.callback(self._runs.discard, run)
                self._start(run, lambda: self.watch(run))
                undo.pop_all()

    def _start(self, run: Run, target: Callable[[], None]) -> None:
        try:
            threading.Thread(target=target, name="shoal-run", daemon=True).start()
        except RuntimeError as error:
            raise NoThread(run.id, str(error)) from error

    def close(self) -> None:
        """Cancel the runs that are under way, except detached ones."""
        with self._lock:
            self._closed = True
            runs = list(self._runs)
        for run in runs:
            run.leave()
