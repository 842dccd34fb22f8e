"""`Backlog`: ended runs that wait to be filed, the oldest first.

1. History keeps a limited number of runs of each workflow. If more than that of the same plan wait,
   the oldest isn't filed: history would delete it for the newest.
2. If what waits takes too much memory, the oldest run is dropped, and counted.
3. A dropped run hands on whether its workflow is due to be planned anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from msgspec import Struct

from shoal.planning.plan_cache import PlanName

_MOST_NBYTES = 64 * 2**20
"""The most bytes that wait."""


class WaitingRun(Struct):
    """An ended run, packed."""

    number: int
    """Its place among all ended runs of the session."""
    plan: PlanName | None
    """The cached plan that it was carried out by."""
    group: Hashable
    """What it has in common with runs that history keeps a limited number of."""
    replan: bool
    """Whether its workflow is due to be planned anew."""
    data: bytes
    """The pickled `EndedRun`."""


class Backlog:
    """Ended runs that wait; for one thread at a time."""

    def __init__(self, kept: int, most_nbytes: int = _MOST_NBYTES) -> None:
        """Create an empty one, for a history that keeps so many runs of each workflow."""
        self._kept = kept
        self._most_nbytes = most_nbytes
        self._nbytes = 0
        self._runs: dict[int, WaitingRun] = {}
        self._groups: dict[Hashable, deque[WaitingRun]] = {}
        self.dropped = 0
        """How many runs were dropped that history would have kept."""

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def first(self) -> int | None:
        """The number of the oldest run; None if no run waits."""
        return next(iter(self._runs), None)

    def add(self, run: WaitingRun) -> None:
        """Add the latest run."""
        self._runs[run.number] = run
        self._nbytes += len(run.data)
        group = self._groups.setdefault(run.group, deque())
        group.append(run)
        if len(group) > self._kept:
            self._drop(group[0])
        while self._nbytes > self._most_nbytes and len(self._runs) > 1:
            self._drop(next(iter(self._runs.values())))
            self.dropped += 1

    def take(self) -> WaitingRun:
        """Take the oldest run."""
        run = next(iter(self._runs.values()))
        self._remove(run)
        return run

    def more(self, run: WaitingRun, last: int) -> bool:
        """Whether a later run of the same group waits, up to the one with this number."""
        group = self._groups.get(run.group)
        return group is not None and group[0].number <= last

    def _drop(self, run: WaitingRun) -> None:
        self._remove(run)
        later = self._groups.get(run.group)
        if later:
            later[0].replan = later[0].replan or run.replan

    def _remove(self, run: WaitingRun) -> None:
        """Remove a run, which is the oldest of its group."""
        del self._runs[run.number]
        self._nbytes -= len(run.data)
        group = self._groups[run.group]
        group.popleft()
        if not group:
            del self._groups[run.group]
