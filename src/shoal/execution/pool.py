"""`WarmPool`: which sandboxes there are, so that gateway and simulator mean the same by "cold".

1. At most `capacity` sandboxes exist, busy or idle; one invocation at a time in each.
2. An idle sandbox serves an invocation of the same kind (its resources, and whose code it has).
3. When the pool is full of idle ones of other kinds, the one idle longest makes room.
4. An idle sandbox is removed after `idle_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

K = TypeVar("K", bound=Hashable)
J = TypeVar("J", bound=Hashable)


@dataclass(slots=True)
class _Idle(Generic[K]):
    kind: K
    sandbox: int
    since: float


@dataclass(frozen=True, slots=True)
class Acquired:
    """Where an invocation goes."""

    start: Literal["warm", "cold"]
    sandbox: int
    """A number that was never used before if the start is cold."""
    evicted: int | None = None
    """The sandbox that made room."""


class WarmPool(Generic[K]):
    """Counts sandboxes; knows nothing of processes."""

    def __init__(self, capacity: int = 32, idle_seconds: float = 7.0) -> None:
        self.capacity = capacity
        self.idle_seconds = idle_seconds
        self._next = 0
        self._busy: dict[int, K] = {}
        self._idle: list[_Idle[K]] = []
        """The one idle longest first."""

    @property
    def busy(self) -> int:
        """How many sandboxes are at work."""
        return len(self._busy)

    @property
    def idle(self) -> int:
        """How many sandboxes wait for work."""
        return len(self._idle)

    def acquire(self, kind: K, now: float) -> Acquired | None:
        """A sandbox for an invocation, the one used last if several are idle; None: full."""
        for position in range(len(self._idle) - 1, -1, -1):
            if self._idle[position].kind == kind:
                sandbox = self._idle.pop(position).sandbox
                self._busy[sandbox] = kind
                return Acquired("warm", sandbox)
        evicted = None
        if len(self._busy) + len(self._idle) >= self.capacity:
            if not self._idle:
                return None
            evicted = self._idle.pop(0).sandbox
        self._next += 1
        self._busy[self._next] = kind
        return Acquired("cold", self._next, evicted)

    def release(self, sandbox: int, now: float) -> None:
        """The sandbox's invocation is over; it waits for the next."""
        self._idle.append(_Idle(self._busy.pop(sandbox), sandbox, now))

    def remove(self, sandbox: int) -> None:
        """The sandbox is gone; not an error if it was known to be."""
        self._busy.pop(sandbox, None)
        self._idle = [idle for idle in self._idle if idle.sandbox != sandbox]

    def expire(self, now: float) -> list[int]:
        """Take out the sandboxes that have been idle for too long."""
        count = 0
        for idle in self._idle:
            if idle.since + self.idle_seconds > now:
                break
            count += 1
        expired = [idle.sandbox for idle in self._idle[:count]]
        del self._idle[:count]
        return expired

    def copied(self, now: float, rename: Callable[[K], J | None]) -> WarmPool[J]:
        """A pool with the same idle sandboxes, seen from another clock's start at `now`.

        Args:
            now: The moment that is 0 for the copy.
            rename: What a kind is called there; None: it isn't there, for it would make room.
        """
        pool: WarmPool[J] = WarmPool(self.capacity, self.idle_seconds)
        for idle in self._idle:
            kind = rename(idle.kind)
            if kind is not None:
                pool._next += 1
                pool._idle.append(_Idle(kind, pool._next, idle.since - now))
        return pool

    def next_expiry(self) -> float | None:
        """When the next sandbox will have been idle for too long."""
        return self._idle[0].since + self.idle_seconds if self._idle else None
