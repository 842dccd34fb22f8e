"""Define queue orders: the rules by which a farm takes waiting tasks.

1. An order scores each task once, when it is enqueued; the lowest score goes first. So a queue is a
   sorted set, wherever it is stored.
2. With an order that puts late tasks last, the score is the time from which on the task is late. A
   queue takes the lowest score in the future, and late tasks only if no other waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar, Generic, Protocol, TypeVar

from shoal.errors import UsageError, suggestion

T = TypeVar("T")


class QueueOrder(Protocol):
    """Scores waiting tasks."""

    @property
    def late_last(self) -> bool:
        """Whether a task whose score has passed is taken only if no other waits."""
        ...

    def score(self, arrived: float, due: float, expected: float) -> float:
        """Return the task's score; lower goes first.

        Args:
            arrived: When the task was enqueued.
            due: When it should be completed.
            expected: How many seconds it is expected to take.
        """
        ...


@dataclass(frozen=True, slots=True)
class Fifo:
    """First come, first served."""

    late_last: ClassVar[bool] = False

    def score(self, arrived: float, due: float, expected: float) -> float:
        """Return the time of arrival."""
        return arrived


@dataclass(frozen=True, slots=True)
class EarliestDeadline:
    """Earliest deadline first, late or not."""

    late_last: ClassVar[bool] = False

    def score(self, arrived: float, due: float, expected: float) -> float:
        """Return when the task is due."""
        return due


@dataclass(frozen=True, slots=True)
class LeastLaxity:
    """Least laxity first; tasks that can no longer be on time go last.

    Laxity is the time left until a task must start. It shrinks equally for all waiting tasks, so
    the latest start time itself is the score.
    """

    late_last: ClassVar[bool] = True

    def score(self, arrived: float, due: float, expected: float) -> float:
        """Return the latest start time with which the task is on time."""
        return due - expected


ORDERS: dict[str, QueueOrder] = {
    "fifo": Fifo(),
    "earliest-deadline": EarliestDeadline(),
    "least-laxity": LeastLaxity(),
}
"""The orders by name, for commands and the environment."""


def order_named(order: str | QueueOrder) -> QueueOrder:
    """Return the order with this name; an order is returned as it is."""
    if not isinstance(order, str):
        return order
    if order not in ORDERS:
        raise UsageError(f"There is no order {order!r}; {suggestion(order, list(ORDERS))}")
    return ORDERS[order]


class TaskQueue(Generic[T]):
    """An in-memory queue of waiting tasks by score; ties are first in, first out."""

    def __init__(self, late_last: bool) -> None:
        self._late_last = late_last
        self._scored: list[tuple[float, int, T]] = []
        self._late: deque[T] = deque()
        self._count = 0

    def __len__(self) -> int:
        return len(self._scored) + len(self._late)

    def put(self, score: float, task: T) -> None:
        """Enqueue a task."""
        self._count += 1
        heappush(self._scored, (score, self._count, task))

    def take(self, now: float) -> T:
        """Remove and return the next task at `now`; the queue must not be empty."""
        scored = self._scored
        if self._late_last:
            while scored and scored[0][0] < now:
                self._late.append(heappop(scored)[2])
            if not scored:
                return self._late.popleft()
        return heappop(scored)[2]
