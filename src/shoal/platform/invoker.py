"""`Invoker`: starts the workers of large fan-outs, so that the worker that asks for them goes on.

1. It is told names, never values: what the workers are given is in the store by then.
2. It invokes as many as one request bears at once; beyond that it hands shares on to others like
   it, in parallel, and they to others: a tree.
3. Nothing depends on it. Who can't reach it invokes by itself; a worker whose invocation it loses
   has a lease, and is started by who tends the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from shoal.clock import RealClock
from shoal.errors import PlatformError
from shoal.execution.policies import branches
from shoal.platform.base import Invocation
from shoal.types import WorkerId

log = logging.getLogger(__name__)

_PARALLEL = 16
"""Requests under way at once."""

Invoke = Callable[[Sequence[Invocation]], None]
HandOn = Callable[[Invocation, Sequence[WorkerId]], None]


class Invoker:
    """Invokes many workers through a platform."""

    def __init__(self, invoke: Invoke, hand_on: HandOn | None = None) -> None:
        """Make one.

        Args:
            invoke: The platform's.
            hand_on: Gives a share to another invoker; default: to this one.
        """
        self._invoke = invoke
        self._hand_on = hand_on or self.fan_out
        self._clock = RealClock()
        self._threads = ThreadPoolExecutor(_PARALLEL, "shoal-invoker")

    def fan_out(self, like: Invocation, workers: Sequence[WorkerId]) -> None:
        """Start workers that differ from one by their names only; returns at once."""
        shares = branches(workers)
        for share in shares:
            self._threads.submit(self._try, self._hand_on, like, share)
        if not shares:
            self._threads.submit(self._try, self._start, like, workers)

    def close(self) -> None:
        """Start no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, like: Invocation, workers: Sequence[WorkerId]) -> None:
        sent = self._clock.now()
        self._invoke([replace(like, worker=worker, sent=sent) for worker in workers])

    def _try(self, what: HandOn, like: Invocation, workers: Sequence[WorkerId]) -> None:
        try:
            what(like, workers)
        except PlatformError as error:  # who tends the run will start them
            log.warning("%d workers could not be started: %s", len(workers), error)
