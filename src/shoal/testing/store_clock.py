"""The clock of every store: all processes of a run have the same time."""

from __future__ import annotations

import time
from itertools import pairwise

from shoal.storage.base import Store
from shoal.testing.store_examples import Connect
from shoal.types import RunId

_A_WHILE = 3600
_CLOSE = 0.05
"""Seconds by which measured clocks may differ."""


class StoreClocks:
    """The processes of a run compare times."""

    def test_the_processes_of_a_run_have_the_same_time(self, connect: Connect, run: RunId) -> None:
        clocks = [connect().clock(run) for _ in range(3)]
        before = clocks[0].now()
        told = [clock.now() for clock in clocks]
        passed = clocks[0].now() - before
        assert all(abs(each - before) <= passed + _CLOSE for each in told)

    def test_time_counts_from_the_epoch(self, store: Store, run: RunId) -> None:
        assert abs(store.clock(run).now() - time.time()) < _A_WHILE

    def test_time_never_goes_backwards(self, store: Store, run: RunId) -> None:
        clock = store.clock(run)
        told = [clock.now() for _ in range(100)]
        told.append(store.clock(run, sent=told[-1] - _A_WHILE).now() + _CLOSE)
        assert all(first <= second for first, second in pairwise(told))
