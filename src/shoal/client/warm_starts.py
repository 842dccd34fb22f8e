"""`SeenSandboxes`: the sandboxes that the next run probably finds, if the platform doesn't tell.

1. After a run of this session, as many sandboxes of each kind are warm as the run had workers of
   that kind at once. Those that it left unused are still warm, unless a worker of that kind started
   cold: then there were none.
2. A session that has run nothing yet finds as many as the workflow's latest run in history found.
3. Sandboxes that have been idle for longer than the platform keeps them are gone.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from shoal.execution.pool import WarmPool
from shoal.execution.timeline import STARTS, Timeline
from shoal.metadata.samples import Samples
from shoal.platform.base import Platform
from shoal.types import Resources, WorkerId

_UNLIMITED = 2**31
"""The capacity to assume if the platform doesn't tell."""
_WARM_SECONDS = 300.0
"""How long sandboxes are assumed to stay warm if the platform doesn't tell."""


class SeenSandboxes:
    """Learns from the starts that runs report; safe to use from several threads."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._lock = threading.Lock()
        self._left: Mapping[Resources, int] | None = None
        """The sandboxes that the latest run of this session left; None: there was none."""
        self._since = 0.0
        """When it ended."""

    def note(self, timeline: Timeline, workers: Mapping[WorkerId, Resources], now: float) -> None:
        """Learn from a run of this session that has ended.

        Args:
            timeline: What its workers did.
            workers: Their resources.
            now: The time.
        """
        if timeline.of_kind(*STARTS):
            with self._lock:
                self._left, self._since = left_by(timeline, workers, self._warm(now)), now

    def warmed(self, kind: Resources, count: int, now: float) -> None:
        """Learn that so many sandboxes of a kind are ready."""
        with self._lock:
            known = self._warm(now)
            self._left = {**known, kind: max(count, known.get(kind, 0))}
            self._since = now

    def pool(self, samples: Sequence[Samples], workers: int, now: float) -> WarmPool[Resources]:
        """The sandboxes that a run probably finds.

        Args:
            samples: What history has of its workflow, the latest run first.
            workers: How many workers it may have at once.
            now: When it begins.
        """
        with self._lock:
            if self._left is None:
                return self._filled(found_by(samples, workers), 0.0)
            return self._filled(self._warm(now), min(0.0, self._since - now))

    @property
    def _idle_seconds(self) -> float:
        found = self._platform.idle_seconds
        return _WARM_SECONDS if found is None else found

    def _warm(self, now: float) -> Mapping[Resources, int]:
        return self._left or {} if now < self._since + self._idle_seconds else {}

    def _filled(self, counts: Mapping[Resources, int], since: float) -> WarmPool[Resources]:
        """A pool of the platform's size with these sandboxes, idle since a time."""
        capacity = self._platform.capacity
        pool: WarmPool[Resources] = WarmPool(
            _UNLIMITED if capacity is None else capacity, self._idle_seconds
        )
        kinds = [kind for kind, count in counts.items() for _ in range(count)]
        for acquired in [pool.acquire(kind, since) for kind in kinds]:
            if acquired is not None:
                pool.release(acquired.sandbox, since)
        return pool


def left_by(
    timeline: Timeline, workers: Mapping[WorkerId, Resources], before: Mapping[Resources, int]
) -> dict[Resources, int]:
    """How many sandboxes of each kind a run leaves warm.

    Args:
        timeline: What its workers did.
        workers: Their resources.
        before: How many were believed to be warm.
    """
    left = dict(before)
    cold = {workers.get(span.worker) for span in timeline.of_kind("cold start")}
    for kind, at_once in _at_once(timeline, workers).items():
        left[kind] = at_once if kind in cold else max(at_once, before.get(kind, 0))
    return left


def _at_once(timeline: Timeline, workers: Mapping[WorkerId, Resources]) -> Counter[Resources]:
    """How many workers of each kind were up at the same time, at most."""
    changes = [
        (moment, change, workers[worker])
        for worker, lives in timeline.lives.items()
        if worker in workers
        for begin, end in lives
        for moment, change in ((begin, 1), (end, -1))
    ]
    up, most = Counter[Resources](), Counter[Resources]()
    for _, change, kind in sorted(changes, key=lambda each: each[:2]):
        up[kind] += change
        most[kind] = max(most[kind], up[kind])
    return most


def found_by(samples: Sequence[Samples], workers: int) -> Counter[Resources]:
    """How many warm sandboxes of each kind the latest of some runs found, up to its workers."""
    latest = samples[0].samples if samples else []
    warm = Counter(each.resources for each in latest if each.kind == "warm start")
    return Counter({kind: min(count, workers) for kind, count in warm.items()})
