"""Marks in every store: the last one makes a task ready and claims its owner."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shoal.storage.base import (
    Answer,
    Claim,
    Completion,
    Opening,
    Store,
)
from shoal.testing.store_examples import (
    Connect,
    fields,
    flat,
    in_background,
    mark,
    names,
    t,
    u,
    w0,
    w1,
    w2,
    w3,
)
from shoal.testing.waiting import TIMEOUT
from shoal.types import RunId, TaskId, WorkerId


class StoreMarks:
    """The last mark makes a task ready, and claims a worker that isn't running."""

    def test_task_is_ready_when_the_last_producer_has_marked_it(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0, w1, w2]))
        producers = (w2, w0, w1)
        for worker in (w0, w1):
            request = mark(t, w3, *producers, payload=worker.encode())
            assert store.complete(run, worker, 1, Completion((), [request])) == []
            assert store.receive(run, w3, "", 0) == []
        request = mark(t, w3, *producers, payload=b"w2")
        assert store.complete(run, w2, 1, Completion((), [request])) == [Claim(w3, 1)]
        assert fields(store.receive(run, w3, "", 0)) == [("ready", t, b"w2", b"w0", b"w1")]

    def test_repeated_marks_count_once(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0, w1]))
        repeated = Completion((), [mark(t, w2, w0, w1, payload=b"first")])
        for _ in range(3):
            assert store.complete(run, w0, 1, repeated) == []
        assert store.receive(run, w2, "", 0) == []

    def test_repeated_marks_deliver_no_task_twice(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0, w1]))
        for worker in (w0, w1, w0, w1):
            store.complete(run, worker, 1, Completion((), [mark(t, w2, w0, w1)]))
        store.complete(run, w1, 1, Completion((), [mark(t, w2, w0, w1), mark(t, w2, w0, w1)]))
        assert fields(store.receive(run, w2, "", 0)) == [("ready", t, b"", b"")]

    def test_first_payload_of_a_producer_counts(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0, w1]))
        for worker, payload in ((w0, b"first"), (w0, b"second"), (w1, b"only")):
            request = mark(t, w2, w0, w1, payload=payload)
            store.complete(run, worker, 1, Completion((), [request]))
        assert fields(store.receive(run, w2, "", 0)) == [("ready", t, b"first", b"only")]

    def test_a_running_worker_is_told_but_not_claimed(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0, w1]))
        assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == []
        assert fields(store.receive(run, w1, "", 0)) == [("ready", t, b"")]

    def test_worker_is_claimed_once_however_many_tasks_it_gets(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0]))
        marks = [mark(t, w1, w0), mark(u, w1, w0), mark(TaskId("v"), w2, w0)]
        assert store.complete(run, w0, 1, Completion((), marks)) == [Claim(w1, 1), Claim(w2, 1)]
        assert store.complete(run, w0, 1, Completion((), [mark(TaskId("w"), w1, w0)])) == []
        assert names(store.receive(run, w1, "", 0)) == [t, u, "w"]

    def test_exactly_one_of_many_racing_producers_gets_the_claim(
        self, connect: Connect, run: RunId
    ) -> None:
        """Only the mark that completes the set delivers the task.

        1. Sixteen workers finish the inputs of the same tasks at the same time.
        2. Each marks all of the tasks, some of them twice.
        3. Each task is delivered once, and one worker is told to start their owner.
        """
        producers = tuple(WorkerId(f"p{number}") for number in range(16))
        tasks = [TaskId(f"t{number}") for number in range(20)]
        stores = {worker: connect() for worker in producers}
        stores[producers[0]].open(run, Opening(producers))
        together = threading.Barrier(len(producers))

        def work(worker: WorkerId) -> list[Answer]:
            claims: list[Answer] = []
            together.wait()
            for task in tasks:
                request = mark(task, w0, *producers, payload=worker.encode())
                for _ in range(2):
                    claims += stores[worker].complete(run, worker, 1, Completion((), [request]))
            return claims

        with ThreadPoolExecutor(len(producers)) as pool:
            claims = [claim for found in pool.map(work, producers) for claim in found]
        assert claims == [Claim(w0, 1)]
        letters = fields(stores[producers[0]].receive(run, w0, "", 0))
        payloads = tuple(worker.encode() for worker in producers)
        assert sorted(letters) == sorted(("ready", task, *payloads) for task in tasks)

    def test_parked_worker_is_claimed_by_the_next_delivery(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0, w1]))
        store.enter(run, w1, 1)
        assert store.park(run, w1, 1, "", b"[4, 2]")
        for epoch in (2, 3):
            task = TaskId(f"t{epoch}")
            assert store.complete(run, w0, 1, Completion((), [mark(task, w1, w0)])) == [
                Claim(w1, epoch)
            ]
            assert flat(store.enter(run, w1, epoch).executed) == (
                b"[4, 2]" if epoch == 2 else b"[]"
            )
            letters = store.receive(run, w1, "", 0)
            assert names(letters)[-1] == task
            assert store.park(run, w1, epoch, letters[-1].id, b"[]")

    def test_worker_with_unread_mail_may_not_park(self, store: Store, run: RunId) -> None:
        """A task is delivered to a worker that is about to leave.

        1. The worker has read everything and wants to park.
        2. A task is delivered. Nobody starts the worker for it, because it is running.
        3. If the worker left now, the task would wait forever.
        """
        store.open(run, Opening([w0, w1]))
        store.enter(run, w1, 1)
        assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == []
        assert not store.park(run, w1, 1, "", b"")
        first = store.receive(run, w1, "", 0)[-1].id
        assert store.complete(run, w0, 1, Completion((), [mark(u, w1, w0)])) == []
        assert not store.park(run, w1, 1, first, b"")
        assert store.complete(run, w0, 1, Completion((), [mark(TaskId("v"), w1, w0)])) == []
        assert store.park(run, w1, 1, store.receive(run, w1, "", 0)[-1].id, b"")

    def test_a_task_delivered_to_a_worker_that_parks_is_never_lost(
        self, connect: Connect, run: RunId
    ) -> None:
        """Exactly one happens: parking is refused, or the delivery claims the worker."""
        parking, sending = connect(), connect()
        parking.open(run, Opening([w0, w1]))
        epoch, read = 1, ""
        for number in range(100):
            together = threading.Barrier(2)
            completion = Completion((), [mark(TaskId(f"t{number}"), w1, w0)])

            def deliver(
                together: threading.Barrier = together, completion: Completion = completion
            ) -> Any:
                together.wait()
                return sending.complete(run, w0, 1, completion)

            thread, results = in_background(deliver)
            together.wait()
            left = parking.park(run, w1, epoch, read, b"")
            thread.join(TIMEOUT)
            assert results == ([[Claim(w1, epoch + 1)]] if left else [[]])
            epoch += left
            read = parking.receive(run, w1, read, 0)[-1].id

    def test_progress_adds_up_the_latest_count_of_each_start(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0, w1]))
        assert store.progress(run) == 0
        store.complete(run, w0, 1, Completion(executed=2))
        store.complete(run, w1, 1, Completion(executed=3))
        assert store.progress(run) == 5
        store.complete(run, w0, 1, Completion(executed=4))
        assert store.progress(run) == 7
        assert store.park(run, w1, 1, "", b"")
        store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)], executed=4))
        store.complete(run, w1, 2, Completion(executed=1))
        assert store.progress(run) == 8
