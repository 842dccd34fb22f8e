"""Cache a session's plans, so that a workflow that runs again is not planned again.

1. The key of a plan is the workflow's name and shape, the options of its tasks, the approximate
   size of its constants, large and small, and the goal and conditions that it was planned for.
2. A workflow is due to be planned anew each time its number of runs has doubled.
3. A plan keeps its number when it is replaced, and gets another version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import count
from math import frexp
from typing import NamedTuple

from shoal.execution.pool import WarmPool
from shoal.metadata.features import amount_of
from shoal.planning.preview import Preview
from shoal.types import Resources, TaskId
from shoal.workflow import Workflow

_MOST = 100
"""The most plans in the cache; the oldest is evicted."""


class PlanName(NamedTuple):
    """A version of a cached plan."""

    number: int
    version: int


@dataclass
class _CachedPlan:
    preview: Preview
    name: PlanName
    due: int = 1
    """The number of runs after which to replan."""
    runs: int = 0


class PlanCache:
    """Plans by key; thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _CachedPlan] = {}
        self._keys: dict[int, Hashable] = {}
        """The key of each plan, by the plan's number."""
        self._numbers = count(1)
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> tuple[Preview, PlanName] | None:
        """Return the cached plan for a key and its name, if there is one."""
        with self._lock:
            entry = self._entries.get(key)
            return None if entry is None else (entry.preview, entry.name)

    def named(self, number: int) -> tuple[Preview, PlanName] | None:
        """Return the cached plan with a number and its name, if it is still there."""
        with self._lock:
            entry = self._entries.get(self._keys.get(number))
            return None if entry is None else (entry.preview, entry.name)

    def again(
        self,
        key: Hashable,
        workflow: Workflow,
        constants: Mapping[TaskId, Mapping[TaskId, int]],
        pool: Callable[[], WarmPool[Resources]],
    ) -> tuple[Preview, PlanName] | None:
        """Return the cached plan for a key, if there is one, for a later run of its workflow."""
        found = self.find(key)
        return None if found is None else (found[0].again(workflow, constants, pool), found[1])

    def keep(self, key: Hashable, preview: Preview) -> PlanName:
        """Add a plan, or replace the one with the same key; return its name."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.preview, (number, version) = preview, entry.name
                entry.name = PlanName(number, version + 1)
                return entry.name
            name = PlanName(next(self._numbers), 0)
            self._entries[key] = _CachedPlan(preview, name)
            self._keys[name.number] = key
            if len(self._entries) > _MOST:
                oldest = self._entries.pop(next(iter(self._entries)))
                del self._keys[oldest.name.number]
            return name

    def update(self, name: PlanName, change: Callable[[Preview], Preview]) -> None:
        """Replace a plan by what has been made of it, which has this name, if it is there."""
        found = self.named(name.number)
        if found is not None:
            changed = change(found[0])
            with self._lock:
                entry = self._entries.get(self._keys.get(name.number))
                if entry is not None and entry.name.version <= name.version:
                    entry.preview, entry.name = changed, name

    def due(self, number: int) -> bool:
        """Count a run of a plan, and return whether to replan."""
        with self._lock:
            entry = self._entries.get(self._keys.get(number))
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
