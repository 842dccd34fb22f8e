"""`StallDetector`: notices that a run is stuck.

A run is stuck if for several leases no letter has come, no task is executing, none has been
executed, and no byte has moved.
"""

from __future__ import annotations

import time

from shoal.client.supervisor import RunSupervisor


class StallDetector:
    """Watches one run for progress."""

    def __init__(self, supervisor: RunSupervisor, lease: float) -> None:
        self._supervisor = supervisor
        self._lease = lease
        self._progressed = self._checked = time.monotonic()

    def stalled(self, now: float, *, heard: bool) -> float:
        """Seconds for which the run has been stuck; 0 if it isn't, or not for long enough.

        Args:
            now: The monotonic time.
            heard: Whether letters have just come.
        """
        if heard:
            self._progressed = self._checked = now
        elif now - self._checked > self._lease:
            self._checked = now
            if self._supervisor.progresses():
                self._progressed = now
            elif self._supervisor.stuck(now - self._progressed):
                return now - self._progressed
        return 0.0
