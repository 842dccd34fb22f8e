"""Define `SimulatedFarm`, a farm on virtual time.

1. Time jumps from one arrival, completion or change of the pool to the next. At the same time,
   completions come first and arrivals last.
2. A requested worker starts after the start-up time. A worker that is removed takes no more tasks
   after the drain time, and leaves when it has finished its current one.
3. A worker is free once it has processed a task. The task is completed later, when its result
   arrives.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random

from shoal.farm.model import FarmModel, Limits, Observation
from shoal.farm.orders import Fifo, QueueOrder, TaskQueue
from shoal.farm.workloads import Workload


@dataclass(frozen=True, slots=True)
class Overheads:
    """A platform's overheads in seconds; by default those of the farm paper's platform."""

    startup: float = 7.1
    startup_spread: float = 1.2
    """The standard deviation of the start-up time."""
    startup_least: float = 5.0
    startup_most: float = 9.0
    startup_each: float = 0.0
    """Seconds that every other start under way adds to a start, if the platform starts workers one
    after the other: 5.47 for a deployment of the paper's."""
    drain_least: float = 2.5
    drain_most: float = 2.9
    per_task: float = 0.0
    """How long a task keeps its worker busy besides its processing time."""
    latency: float = 0.05
    """How long a result is on its way while its worker is already free. The paper doesn't state it;
    with this value, simulated policies reach the service and the workers that it reports."""


PAPER = Overheads()


class SimulatedFarm:
    """A farm that processes a workload in virtual time."""

    def __init__(
        self,
        workload: Workload,
        *,
        workers: int = 12,
        limits: Limits | None = None,
        order: QueueOrder | None = None,
        overheads: Overheads = PAPER,
        seed: int = 0,
    ) -> None:
        self.model = FarmModel(workers, limits or Limits())
        self.workload = workload
        self.now = 0.0
        order = order or Fifo()
        self._overheads = overheads
        self._random = Random(seed)
        self._arrivals = workload.arrivals.tolist()
        self._due = (workload.arrivals + workload.deadlines).tolist()
        self._processing = (workload.processing + overheads.per_task).tolist()
        facts = zip(self._arrivals, self._due, self._processing, strict=True)
        self._scores = [order.score(*each) for each in facts]
        self._queue: TaskQueue[int] = TaskQueue(order.late_last)
        self._next = 0
        self._idle = workers
        self._stopping = 0
        self._running: list[tuple[float, int]] = []
        self._results: deque[tuple[float, int]] = deque()
        """Results on their way: when each arrives, and its task."""
        self._changes: list[tuple[float, int]] = []
        self.met: list[bool] = [False] * len(self._arrivals)
        """Whether each task was completed on time."""
        self.response: list[float] = [inf] * len(self._arrivals)

    @property
    def finished(self) -> bool:
        """Whether every task is completed."""
        return self.unfinished == 0

    @property
    def unfinished(self) -> int:
        """The number of tasks that are not completed yet."""
        return len(self._arrivals) - self.model.completed_total

    def scale_by(self, workers: int) -> int:
        """Request a change in workers; return what the limits allow. Each takes its own time."""
        overheads, random, starting = self._overheads, self._random, self.model.starting
        allowed = self.model.ask(workers)
        for number in range(allowed):
            drawn = random.gauss(overheads.startup, overheads.startup_spread)
            delay = min(max(drawn, overheads.startup_least), overheads.startup_most)
            delay += overheads.startup_each * (starting + number)
            heappush(self._changes, (self.now + delay, 1))
        for _ in range(-allowed):
            delay = random.uniform(overheads.drain_least, overheads.drain_most)
            heappush(self._changes, (self.now + delay, -1))
        return allowed

    def advance(self, seconds: float) -> Observation:
        """Let virtual time pass, then observe the farm."""
        self._run(self.now + seconds)
        self.model.settle(self.now)
        return self.observe()

    def observe(self) -> Observation:
        """Return the current observation."""
        starts = self.workload.phase_starts
        left = sum(start > self.now for start in starts)
        return self.model.observe(self.now, len(self._queue), len(self._running), phases_left=left)

    def drain(self, timeout: float = 600.0) -> None:
        """Complete the remaining tasks without further changes, for at most `timeout` seconds."""
        end = self.now + timeout
        while not self.finished and self.now < end:
            self._run(min(self.now + 1.0, end))
        self.model.settle(self.now)

    def _run(self, end: float) -> None:
        arrivals, running, changes = self._arrivals, self._running, self._changes
        queue, scores, model = self._queue, self._scores, self.model
        count = len(arrivals)
        while True:
            arrival = arrivals[self._next] if self._next < count else inf
            completion = running[0][0] if running else inf
            change = changes[0][0] if changes else inf
            now = min(completion, change, arrival)
            if now > end:
                break
            if now == completion:
                self._process(*heappop(running))
            elif now == change:
                self._change(*heappop(changes))
            else:
                queue.put(scores[self._next], self._next)
                self._next += 1
                model.arrived()
            while self._idle and len(queue):
                self._idle -= 1
                task = queue.take(now)
                heappush(running, (now + self._processing[task], task))
        self._collect(end)
        self.now = end

    def _collect(self, end: float) -> None:
        """Complete the tasks whose results arrive until `end`."""
        results = self._results
        while results and results[0][0] <= end:
            at, task = results.popleft()
            arrived = self._arrivals[task]
            self.response[task] = at - arrived
            self.met[task] = self.model.completed(at, arrived, self._due[task])

    def _process(self, now: float, task: int) -> None:
        """A worker has processed a task."""
        self._results.append((now + self._overheads.latency, task))
        if self._stopping:
            self._stopping -= 1
            self.model.left(now)
        else:
            self._idle += 1

    def _change(self, now: float, change: int) -> None:
        if change > 0:
            self._idle += 1
            self.model.started(now)
        elif self._idle:
            self._idle -= 1
            self.model.left(now)
        else:
            self._stopping += 1
