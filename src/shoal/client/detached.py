"""`DetachedRun`: a run that continues without the process that submitted it."""

from __future__ import annotations

import contextlib
import threading

from shoal.client.environment import Environment
from shoal.client.planning import Planned
from shoal.client.resume import UnfinishedRun
from shoal.client.run import Run
from shoal.client.watchers import Watchers
from shoal.errors import RunGoesOn, StoreError
from shoal.storage.keys import CLIENT


class DetachedRun(Run):
    """A handle on a detached run, which is watched once this process waits for it."""

    _detached = True

    def __init__(
        self,
        planned: Planned,
        environment: Environment,
        watchers: Watchers,
        unfinished: UnfinishedRun | None = None,
    ) -> None:
        super().__init__(planned, environment, unfinished)
        self._watchers = watchers
        self._left = threading.Event()

    def start(self) -> None:
        """Write the file that others attach by, and start the first workers."""
        self.started = self.clock.now()
        self.unfinished.write(self.settings.data_folder())
        launch = self._launch()
        self._begin(launch, launch.open(self.clock))

    def attach(self) -> None:
        """Prepare to watch a run that another process started."""
        self.started = self.started or self.clock.now()
        self._begin(self._launch(), ())

    def watch(self) -> None:
        """Wait until the run has ended, or the session is closed."""
        try:
            super().watch()
        finally:
            if self.outcome:
                self.makespan = self._lasted()

    def leave(self) -> None:
        """Stop watching the run, which continues."""
        self._left.set()
        self._environment.store.hang_up(self.id, CLIENT)
        self._ended.wait()

    def _check_awaited(self) -> None:
        super()._check_awaited()
        if self._left.is_set():
            raise RunGoesOn(self.id)

    def _wait(self, timeout: float | None = None) -> bool:
        if not self._ended.is_set():
            self._watchers.ensure_watched(self)
        return super()._wait(timeout)

    def _lasted(self) -> float:
        """How long the run took; it may have ended before it was watched."""
        with contextlib.suppress(StoreError):
            ends = [span.end for span in self.timeline.spans if span.kind != "leave"]
            return max(ends, default=self.makespan)
        return self.makespan
