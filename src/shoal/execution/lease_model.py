"""The store's rules about leases and losses, as plain data. Time is an argument.

1. A lease begins when a start is claimed. It is longer until the start is heard from, which may
   have to wait for its platform.
2. The first leases of a run begin when somebody first looks for expired ones, because the client
   has yet to start those workers.
3. Whatever a start sends renews its lease. A worker that parks, finishes or is told to stop has
   none.
4. Losses are counted by their cause: a worker that vanished, or whatever its platform names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shoal.types import WorkerId


@dataclass
class Leases:
    """Until when each worker counts as alive."""

    lease: float = 0.0
    """Seconds that a worker may be silent."""
    waiting: float = 0.0
    """Seconds that a start may wait for its platform, on top of its first lease."""
    _until: dict[WorkerId, float | None] = field(default_factory=dict)
    """None: the lease begins when somebody looks."""

    def __contains__(self, worker: WorkerId) -> bool:
        """Whether a worker has a lease."""
        return worker in self._until

    def grant(self, worker: WorkerId) -> None:
        """Give a worker a lease that begins when somebody looks."""
        self._until[worker] = None

    def begin(self, worker: WorkerId, now: float) -> None:
        """Begin the lease of a start that was claimed."""
        self._until[worker] = now + self.lease + self.waiting

    def renew(self, worker: WorkerId, now: float) -> None:
        """Renew the lease of a worker that was heard from."""
        self._until[worker] = now + self.lease

    def end(self, worker: WorkerId) -> None:
        """End the lease of a worker, if it has one."""
        self._until.pop(worker, None)

    def end_all(self) -> list[WorkerId]:
        """End all leases; return the workers that had one."""
        ended = list(self._until)
        self._until.clear()
        return ended

    def expired(self, now: float) -> list[WorkerId]:
        """Look for workers whose leases have expired."""
        expired: list[WorkerId] = []
        for worker, until in self._until.items():
            if until is None:
                self.begin(worker, now)
            elif until < now:
                expired.append(worker)
        return expired


class Losses:
    """How often each cause has ended a start."""

    def __init__(self, restarts: int) -> None:
        """Begin with no losses; `restarts` is how often a start may follow the same cause."""
        self._restarts = restarts
        self._counts: Counter[str] = Counter()

    def add(self, cause: str) -> bool:
        """Count a loss; whether the worker may restart."""
        self._counts[cause] += 1
        return self._counts[cause] <= self._restarts
