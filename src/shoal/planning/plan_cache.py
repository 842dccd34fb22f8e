"""Cache a session's plans, so that a workflow that runs again is not planned again.

1. The key of a plan is the workflow's name and shape, the options of its tasks, the approximate
   size of its constants, large and small, and the goal and conditions that it was planned for.
2. A workflow is replanned in the background each time its number of runs has doubled. Planning
   never takes longer than the run.
3. After other runs the plan stays, and only its predictions are refreshed, as often as that takes
   a small share of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import frexp

from shoal.execution.pool import WarmPool
from shoal.metadata.features import amount_of
from shoal.planning.preview import Preview
from shoal.types import Resources, TaskId
from shoal.workflow import Workflow

_MOST = 100
"""The most plans in the cache; the oldest is evicted."""
_SHARE = 0.05
"""The share of time that may be spent on refreshing a plan's predictions."""


@dataclass
class _CachedPlan:
    preview: Preview
    due: int
    """The number of runs after which to replan."""
    runs: int = 0
    rested: float = 0.0
    """The time from which on predictions may be refreshed again."""


class PlanCache:
    """Plans by key; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty cache; `clock` returns seconds."""
        self._clock = clock
        self._entries: dict[Hashable, _CachedPlan] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> Preview | None:
        """Return the cached plan for a key, if there is one."""
        with self._lock:
            entry = self._entries.get(key)
            return None if entry is None else entry.preview

    def again(
        self,
        key: Hashable,
        workflow: Workflow,
        constants: Mapping[TaskId, Mapping[TaskId, int]],
        pool: Callable[[], WarmPool[Resources]],
    ) -> Preview | None:
        """Return the cached plan for a key, if there is one, for a later run of its workflow."""
        found = self.find(key)
        return None if found is None else found.again(workflow, constants, pool)

    def keep(self, key: Hashable, preview: Preview) -> None:
        """Add a plan, or replace the one with the same key."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.preview = preview
                return
            self._entries[key] = _CachedPlan(preview, 1)
            if len(self._entries) > _MOST:
                del self._entries[next(iter(self._entries))]

    def inform(self, key: Hashable, inform: Callable[[Preview], Preview]) -> None:
        """Refresh a plan's predictions after a run, unless that was done recently."""
        with self._lock:
            entry = self._entries.get(key)
        begin = self._clock()
        if entry is not None and entry.rested <= begin:
            self.keep(key, inform(entry.preview))
            end = self._clock()
            entry.rested = end + (end - begin) / _SHARE

    def due(self, key: Hashable) -> bool:
        """Count a run, and return whether to replan."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return False
            entry.runs += 1
            if entry.runs < entry.due:
                return False
            entry.due *= 2
            return True


class _Same:
    """A hashable wrapper for an optimization, since users' own may not be hashable."""

    def __init__(self, what: object) -> None:
        self._what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and bool(self._what == other._what)

    def __hash__(self) -> int:
        return hash(self._what if isinstance(self._what, type) else type(self._what))


def key_of(
    workflow: Workflow, constants: Mapping[TaskId, Mapping[TaskId, int]], *what: Hashable
) -> Hashable:
    """Return the cache key of a workflow's plan."""
    sizes = {name: n for sizes in constants.values() for name, n in sizes.items()}
    tasks = dict.fromkeys([call.task for call in workflow.calls.values()])
    options = dict.fromkeys(
        [
            (task.key, task.resources, task.retries, *map(_Same, task.forced_optimizations))
            for task in tasks
        ]
    )
    shape = (tuple(workflow.calls), tuple(workflow.upstream.values()), workflow.sinks)
    small = {task: frexp(total)[1] for task, total in amount_of(workflow).numbers.items()}
    large = sum(sizes.values()).bit_length()
    return workflow.title, shape, large, tuple(small.items()), tuple(options), what
