"""`SimulatedPlatform`: sandboxes on the virtual clock, with the gateway's rules.

Invocations wait in the pool's queue until there is room, and no more workers are at work at once
than the run may have. A sandbox that is warmed up is idle from the
request on, and who gets it early waits until it is up.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from shoal.clock import VirtualClock
from shoal.execution.costs import Costs
from shoal.execution.pool import Bound, Queue, WarmPool
from shoal.types import Resources


class Start(NamedTuple):
    """An invocation that has got its sandbox."""

    sandbox: int
    warm: bool
    seconds: float
    """Until the worker's first event."""


class Invocation(NamedTuple):
    """Somebody wants a worker started."""

    resources: Resources
    first: bool
    """The client does, with the run."""
    began: Callable[[Start], None]
    """Told when it has got a sandbox."""


class SimulatedPlatform:
    """The queue and the sandboxes."""

    def __init__(
        self, pool: WarmPool[Resources], costs: Costs, clock: VirtualClock, workers: int = 0
    ) -> None:
        """Begin; at most so many workers are at work at once, unless that is 0."""
        self.warmed: list[Resources] = []
        """Each sandbox that was started by a warm-up, in order."""
        self._pool = pool
        self._costs = costs
        self._clock = clock
        bound = Bound("simulated", workers)
        self._queue: Queue[Invocation, Resources] = Queue(
            pool, lambda invocation: invocation.resources, lambda _: bound
        )
        self._up: dict[int, float] = {}
        """When each sandbox that is being warmed up could have a worker's first event."""
        self._starting: list[float] = []
        """When the starts that are under way end, as a heap."""

    def invoke(self, invocation: Invocation, times: int = 1) -> None:
        """Queue an invocation, and serve what can be served."""
        self._queue.extend([invocation] * times)
        self.serve()

    def release(self, sandbox: int) -> None:
        """A sandbox is idle."""
        self._pool.release(sandbox, self._clock.now())
        self.serve()

    def remove(self, sandbox: int) -> None:
        """A sandbox is gone."""
        self._pool.remove(sandbox)

    def serve(self) -> None:
        """Give sandboxes to those that wait."""
        now = self._clock.now()
        self._pool.expire(now)
        while (served := self._queue.serve(now)) is not None:
            invocation, acquired = served
            warm = acquired.start == "warm"
            seconds = self._started(invocation.resources, warm=warm, first=invocation.first)
            seconds = max(seconds, self._up.pop(acquired.sandbox, 0.0) - now)
            invocation.began(Start(acquired.sandbox, warm, seconds))

    def _started(self, resources: Resources, *, warm: bool, first: bool = False) -> float:
        """The seconds of a start that begins now."""
        now, starting = self._clock.now(), self._starting
        while starting and starting[0] <= now:
            heappop(starting)
        seconds = self._costs.startup(resources, warm=warm, first=first, beside=len(starting))
        heappush(starting, now + seconds)
        return seconds

    def warm_up(self, resources: Resources, count: int) -> None:
        """Start sandboxes that nobody has asked for yet, as far as there is room."""
        now = self._clock.now()
        self._pool.expire(now)
        ready: list[int] = []
        for _ in range(count):
            acquired = self._pool.acquire(resources, now)
            if acquired is None:
                break
            if acquired.start == "cold":
                self.warmed.append(resources)
                self._up[acquired.sandbox] = now + self._started(resources, warm=False)
            ready.append(acquired.sandbox)
        for sandbox in ready:
            self._pool.release(sandbox, now)
