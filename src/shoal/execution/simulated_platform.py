"""`SimulatedPlatform`: sandboxes on the virtual clock, under the gateway's rules.

Invocations wait in the pool's queue until there is room, and a run never has more workers at once
than it may have. A sandbox that is being warmed up counts as idle at once; a worker that gets it
early waits until it is up.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from shoal.clock import VirtualClock
from shoal.execution.costs import Costs
from shoal.execution.pool import Bound, Queue, WarmPool
from shoal.types import Resources


class SimulatedStart(NamedTuple):
    """The start of a worker that has been given a sandbox."""

    sandbox: int
    warm: bool
    seconds: float
    """Seconds until the worker's first event."""


class SimulatedInvocation(NamedTuple):
    """A request to start a worker."""

    resources: Resources
    first: bool
    """The client starts the worker, when it launches the run."""
    began: Callable[[SimulatedStart], None]
    """Called once the worker has a sandbox."""


class SimulatedPlatform:
    """The gateway's queue and its sandboxes."""

    def __init__(
        self, pool: WarmPool[Resources], costs: Costs, clock: VirtualClock, workers: int = 0
    ) -> None:
        """Prepare a platform.

        Args:
            pool: The sandboxes.
            costs: What starts cost.
            clock: Tells the time.
            workers: How many workers may run at once; 0: as many as the pool has room for.
        """
        self.warmed: list[Resources] = []
        """The resources of each sandbox that a warm-up started, in order."""
        self._pool = pool
        self._costs = costs
        self._clock = clock
        bound = Bound("simulated", workers)
        self._queue: Queue[SimulatedInvocation, Resources] = Queue(
            pool, lambda invocation: invocation.resources, lambda _: bound
        )
        self._up: dict[int, float] = {}
        """When a worker's first event could happen in each sandbox that is being warmed up."""
        self._starting: list[float] = []
        """When each start that is under way ends, as a heap."""

    def invoke(self, invocation: SimulatedInvocation, times: int = 1) -> None:
        """Queue an invocation, and serve the queue."""
        self._queue.extend([invocation] * times)
        self.serve()

    def release(self, sandbox: int) -> None:
        """Return a sandbox to the pool, and serve the queue."""
        self._pool.release(sandbox, self._clock.now())
        self.serve()

    def remove(self, sandbox: int) -> None:
        """Remove a sandbox that is gone."""
        self._pool.remove(sandbox)

    def serve(self) -> None:
        """Give sandboxes to waiting invocations."""
        now = self._clock.now()
        self._pool.expire(now)
        while (served := self._queue.serve(now)) is not None:
            invocation, acquired = served
            warm = acquired.start == "warm"
            seconds = self._started(invocation.resources, warm=warm, first=invocation.first)
            seconds = max(seconds, self._up.pop(acquired.sandbox, 0.0) - now)
            invocation.began(SimulatedStart(acquired.sandbox, warm, seconds))

    def _started(self, resources: Resources, *, warm: bool, first: bool = False) -> float:
        """Seconds that a start takes if it begins now."""
        now, starting = self._clock.now(), self._starting
        while starting and starting[0] <= now:
            heappop(starting)
        seconds = self._costs.startup(resources, warm=warm, first=first, beside=len(starting))
        heappush(starting, now + seconds)
        return seconds

    def warm_up(self, resources: Resources, count: int) -> None:
        """Have so many idle sandboxes ready, as far as there is room."""
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
