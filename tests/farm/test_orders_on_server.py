"""Differential test: a server's queue gives tasks in the order of the simulated farm's queue."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.farm.orders import TaskQueue
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.farm_queues import FarmOpening, FarmStore, QueuedTask, Settled
from shoal.types import RunId, WorkerId

pytestmark = pytest.mark.real

WORKER = WorkerId("0:0")
FAR = 1000.0
"""A time that no test reaches, in seconds from now."""
late_places = st.sampled_from((-3 * FAR, -2 * FAR, -FAR))
places = late_places | st.sampled_from((FAR, 2 * FAR, 3 * FAR))


@pytest.fixture(scope="module")
def store() -> Iterator[FarmStore]:
    server = EmbeddedServer()
    store = FarmStore(server.url)
    yield store
    store.disconnect()
    server.close()


def opened(store: FarmStore, *, late_last: bool) -> RunId:
    run = RunId(f"farm-{secrets.token_hex(4)}")
    store.begin(run, FarmOpening([[b"f"]], [late_last], 2, 15, 0, restarts=3, ttl=60))
    store.hire(run, {WORKER: "1024 1.0"})
    return run


@settings(max_examples=40)
@given(
    late_last=st.booleans(),
    first=st.lists(places, min_size=1, max_size=12),
    second=st.lists(st.sampled_from((FAR, 1.5 * FAR, 3 * FAR)), max_size=4),
    taken_between=st.integers(0, 4),
)
def test_a_server_and_the_simulated_farm_take_tasks_in_the_same_order(
    store: FarmStore, late_last: bool, first: list[float], second: list[float], taken_between: int
) -> None:
    run = opened(store, late_last=late_last)
    now = store.clock(run).now()
    queue: TaskQueue[str] = TaskQueue(late_last)
    held: list[Settled] = []
    ids = iter(f"{number:03}" for number in range(99))

    def put(batch: int, drawn: list[float]) -> None:
        tasks = [QueuedTask(next(ids), (now + place,), [b""]) for place in drawn]
        for task in tasks:
            queue.put(task.places[0], task.id)
        if tasks:
            store.put(run, batch, tasks)

    def take_next() -> None:
        expected = [queue.take(now)] if len(queue) else []
        taken = [task for task, _ in store.take(run, WORKER, 1, "", 1, held).tasks]
        assert taken == expected
        held[:] = [Settled(task, 0.0, [b""]) for task in taken]

    put(1, first)
    for _ in range(min(taken_between, len(first))):
        take_next()
    put(2, second)
    while len(queue):
        take_next()
    store.end(run, 1)
