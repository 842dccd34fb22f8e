"""`WarmPool`: which sandboxes exist, so that gateway and simulator agree on what "cold" means.

1. At most `capacity` sandboxes exist, busy or idle. Each serves one invocation at a time.
2. An idle sandbox serves an invocation of the same kind: with its resources, and its code.
3. When the pool is full, the sandbox of another kind that has been idle longest makes room.
4. An idle sandbox is removed after `idle_seconds`.
5. No run has more workers at once than it may. Further invocations wait, and others overtake them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

SANDBOXES = 32
"""How many sandboxes a pool has at most, by default."""
IDLE_SECONDS = 7.0
"""How long an idle sandbox is kept, by default."""

K = TypeVar("K", bound=Hashable)
J = TypeVar("J", bound=Hashable)
Job = TypeVar("Job")


@dataclass(slots=True)
class _Idle(Generic[K]):
    kind: K
    sandbox: int
    since: float


class Bound(NamedTuple):
    """How many workers the run of an invocation may have at once."""

    run: str = ""
    most: int = 0
    """How many workers of the run may work at once; 0: as many as fit."""


UNBOUNDED = Bound()


@dataclass(frozen=True, slots=True)
class Acquired:
    """The sandbox that an invocation gets."""

    start: Literal["warm", "cold"]
    sandbox: int
    """Its number; a cold start has a new one."""
    evicted: int | None = None
    """The sandbox that was removed to make room."""


class WarmPool(Generic[K]):
    """Counts sandboxes, and knows nothing of processes."""

    def __init__(self, capacity: int = SANDBOXES, idle_seconds: float = IDLE_SECONDS) -> None:
        self.capacity = capacity
        self.idle_seconds = idle_seconds
        self._next = 0
        self._busy: dict[int, tuple[K, str]] = {}
        """The kind and the run of each busy sandbox."""
        self._at_work: dict[str, int] = {}
        """How many sandboxes are busy for each run."""
        self._idle: list[_Idle[K]] = []
        """Idle sandboxes, the one that has been idle longest first."""

    @property
    def busy(self) -> int:
        """How many sandboxes are busy."""
        return len(self._busy)

    @property
    def idle(self) -> int:
        """How many sandboxes wait for work."""
        return len(self._idle)

    def admits(self, bound: Bound) -> bool:
        """Whether one more worker of the run may work."""
        return not bound.most or self._at_work.get(bound.run, 0) < bound.most

    def acquire(self, kind: K, now: float, bound: Bound = UNBOUNDED) -> Acquired | None:
        """A sandbox for an invocation: the idle one that was used last, or a new one.

        None: the pool is full, or the run has as many workers as it may.
        """
        if not self.admits(bound):
            return None
        for position in range(len(self._idle) - 1, -1, -1):
            if self._idle[position].kind == kind:
                sandbox = self._idle.pop(position).sandbox
                self._begin(sandbox, kind, bound.run)
                return Acquired("warm", sandbox)
        evicted = None
        if len(self._busy) + len(self._idle) >= self.capacity:
            if not self._idle:
                return None
            evicted = self._idle.pop(0).sandbox
        self._next += 1
        self._begin(self._next, kind, bound.run)
        return Acquired("cold", self._next, evicted)

    def _begin(self, sandbox: int, kind: K, run: str) -> None:
        self._busy[sandbox] = (kind, run)
        self._at_work[run] = self._at_work.get(run, 0) + 1

    def _end(self, sandbox: int) -> K:
        kind, run = self._busy.pop(sandbox)
        self._at_work[run] -= 1
        if not self._at_work[run]:
            del self._at_work[run]
        return kind

    def release(self, sandbox: int, now: float) -> None:
        """Return a sandbox whose invocation has ended; it waits for the next."""
        self._idle.append(_Idle(self._end(sandbox), sandbox, now))

    def remove(self, sandbox: int) -> None:
        """Remove a sandbox that is gone, if it is still known."""
        if sandbox in self._busy:
            self._end(sandbox)
        self._idle = [idle for idle in self._idle if idle.sandbox != sandbox]

    def expire(self, now: float) -> list[int]:
        """Remove and return the sandboxes that have been idle for too long."""
        count = 0
        for idle in self._idle:
            if idle.since + self.idle_seconds > now:
                break
            count += 1
        expired = [idle.sandbox for idle in self._idle[:count]]
        del self._idle[:count]
        return expired

    def copied(self, now: float, rename: Callable[[K], J | None]) -> WarmPool[J]:
        """A pool with the same idle sandboxes, for a clock that starts at `now`.

        Args:
            now: The time that is 0 for the copy.
            rename: The name of a kind in the copy; None: leave it out, for it would make room.
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


class Queue(Generic[Job, K]):
    """Invocations that wait for a sandbox of a pool: first come, first served.

    Invocations of a run that has as many workers as it may are overtaken by others.
    """

    def __init__(
        self, pool: WarmPool[K], kind: Callable[[Job], K], bound: Callable[[Job], Bound]
    ) -> None:
        """Create the queue of a pool; `kind` and `bound` say what an invocation asks for."""
        self._pool = pool
        self._kind = kind
        self._bound = bound
        self._lines: dict[str, deque[tuple[int, Job]]] = {}
        """The waiting invocations of each run, with their order of arrival."""
        self._came = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Job]:
        return (invocation for line in self._lines.values() for _, invocation in line)

    def extend(self, invocations: Iterable[Job]) -> None:
        """Add invocations at the end."""
        for invocation in invocations:
            self._came += 1
            line = self._lines.setdefault(self._bound(invocation).run, deque())
            line.append((self._came, invocation))

    def put_back(self, invocation: Job) -> None:
        """Put an invocation first again whose sandbox could not begin it."""
        self._lines.setdefault(self._bound(invocation).run, deque()).appendleft((0, invocation))

    def drop(self, unwanted: Callable[[Job], bool]) -> None:
        """Remove some invocations."""
        for run, line in list(self._lines.items()):
            left = deque(entry for entry in line if not unwanted(entry[1]))
            self._lines[run] = left
            if not left:
                del self._lines[run]

    def serve(self, now: float) -> tuple[Job, Acquired] | None:
        """The next invocation and its sandbox; None: none is waiting, or none can be served."""
        first: tuple[int, Job, Bound] | None = None
        for line in self._lines.values():
            came, invocation = line[0]
            bound = self._bound(invocation)
            if (first is None or came < first[0]) and self._pool.admits(bound):
                first = came, invocation, bound
        if first is None:
            return None
        _, invocation, bound = first
        acquired = self._pool.acquire(self._kind(invocation), now, bound)
        if acquired is None:
            return None
        line = self._lines[bound.run]
        line.popleft()
        if not line:
            del self._lines[bound.run]
        return invocation, acquired
