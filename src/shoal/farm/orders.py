"""The order in which a farm's waiting tasks are taken.

1. An order gives each task a score once, when the task is enqueued; the lowest score goes first.
   So a queue is a sorted set, wherever it is kept.
2. With an order that puts late tasks last, the score is the time after which the task is late: a
   queue takes the lowest score that isn't past, and what is past only when nothing else waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar, Generic, Protocol, TypeVar

from shoal.errors import UsageError

T = TypeVar("T")


class Order(Protocol):
    """How waiting tasks are put in order."""

    @property
    def late_last(self) -> bool:
        """Whether a task whose score is past is taken only when no other waits."""
        ...

    def score(self, arrived: float, due: float, expected: float) -> float:
        """The task's place: lower goes first.

        Args:
            arrived: When the task was enqueued.
            due: When it is to be completed.
            expected: How many seconds it is expected to take.
        """
        ...


@dataclass(frozen=True, slots=True)
class Fifo:
    """First come, first served."""

    late_last: ClassVar[bool] = False

    def score(self, arrived: float, due: float, expected: float) -> float:
        """The time of arrival."""
        return arrived


@dataclass(frozen=True, slots=True)
class EarliestDeadline:
    """The task that is due first goes first, late or not."""

    late_last: ClassVar[bool] = False

    def score(self, arrived: float, due: float, expected: float) -> float:
        """When the task is due."""
        return due


@dataclass(frozen=True, slots=True)
class LeastLaxity:
    """The task that can wait least goes first; those that can't be on time any more go last.

    Laxity is what is left until a task must start; it shrinks alike for all that wait, so the
    latest start itself is the score.
    """

    late_last: ClassVar[bool] = True

    def score(self, arrived: float, due: float, expected: float) -> float:
        """The latest start with which the task is on time."""
        return due - expected


ORDERS: dict[str, Order] = {
    "fifo": Fifo(),
    "earliest-deadline": EarliestDeadline(),
    "least-laxity": LeastLaxity(),
}
"""The orders by the names that commands and the environment know."""


def order_named(order: str | Order) -> Order:
    """The order itself, or the one of that name."""
    if not isinstance(order, str):
        return order
    if order not in ORDERS:
        raise UsageError(f"There is no order {order!r}; there are {', '.join(ORDERS)}.")
    return ORDERS[order]


class TaskQueue(Generic[T]):
    """Waiting tasks in memory, in an order; ties keep the order of the enqueuing."""

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
        """The task that is next at `now`; the queue must not be empty."""
        scored = self._scored
        if self._late_last:
            while scored and scored[0][0] < now:
                self._late.append(heappop(scored)[2])
            if not scored:
                return self._late.popleft()
        return heappop(scored)[2]
