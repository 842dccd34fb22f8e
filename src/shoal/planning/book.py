"""`PlanBook`: the plans that a session has made, so that what is run again isn't planned again.

1. A plan is kept for a workflow's name and shape, what is asked of its tasks, about how large its
   constants are, and what it was planned for.
2. It is made anew, when nobody waits, each time that the workflow has been run twice as often as
   when it was made, and never takes longer than the run that it is for.
3. After the other runs it stays, and only what it is predicted to do is told anew, as often as
   that takes little of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from shoal.planning.preview import Preview
from shoal.types import TaskId
from shoal.workflow import Workflow

_MOST = 100
"""Plans that are kept; the oldest makes room."""
_SHARE = 0.05
"""Of the time, that may be spent on telling anew what one plan is predicted to do."""


@dataclass
class _Entry:
    preview: Preview
    due: int
    """After so many runs it is made anew."""
    runs: int = 0
    rested: float = 0.0
    """When it may be told anew what it is predicted to do."""


class PlanBook:
    """Plans by what they are for; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """With a clock that tells seconds."""
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> Preview | None:
        """The plan that is kept for this."""
        with self._lock:
            entry = self._entries.get(key)
            return None if entry is None else entry.preview

    def keep(self, key: Hashable, preview: Preview) -> None:
        """Keep a plan."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.preview = preview
                return
            self._entries[key] = _Entry(preview, 1)
            if len(self._entries) > _MOST:
                del self._entries[next(iter(self._entries))]

    def inform(self, key: Hashable, inform: Callable[[Preview], Preview]) -> None:
        """Tell a plan's predictions anew after a run, unless that was done a moment ago."""
        with self._lock:
            entry = self._entries.get(key)
        begin = self._clock()
        if entry is not None and entry.rested <= begin:
            self.keep(key, inform(entry.preview))
            end = self._clock()
            entry.rested = end + (end - begin) / _SHARE

    def due(self, key: Hashable) -> bool:
        """Count a run; whether its plan is to be made anew."""
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
    """An optimization as a part of a key: users' own may not be hashable."""

    def __init__(self, what: object) -> None:
        self._what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and bool(self._what == other._what)

    def __hash__(self) -> int:
        return hash(self._what if isinstance(self._what, type) else type(self._what))


def key_of(
    workflow: Workflow, constants: Mapping[TaskId, Mapping[TaskId, int]], *what: Hashable
) -> Hashable:
    """What a plan is for."""
    sizes = {name: n for sizes in constants.values() for name, n in sizes.items()}
    tasks = {call.task for call in workflow.calls.values()}
    options = frozenset(
        (task.key, task.resources, *map(_Same, task.forced_optimizations)) for task in tasks
    )
    shape = (tuple(workflow.calls), tuple(workflow.upstream.values()), workflow.sinks)
    return workflow.key, shape, sum(sizes.values()).bit_length(), options, what
