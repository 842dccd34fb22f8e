"""Unowned tasks in every store, and workers that no plan names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import sleep

from shoal.errors import RunOver
from shoal.storage.base import Completion, MarkRequest, Opening, Ready, Refused, Store
from shoal.storage.codec import Blob
from shoal.storage.letters import Letter, OutputReady, WorkerFinished
from shoal.testing.pytest_required import pytest
from shoal.testing.store_examples import (
    BINARY,
    LARGE,
    Connect,
    flat,
    kinds,
    t,
    u,
    w0,
    w1,
    w2,
)
from shoal.testing.waiting import eventually
from shoal.types import RunId, TaskId, WorkerId

PACKAGE = Opening((), common=[b"common"])


THREE = ("x#0", "ü#1", "x#10")


def marking(producer: str, payload: bytes = b"", task: TaskId = t) -> Completion:
    """Return what a worker sends to mark a producer of an unowned task."""
    return Completion((), [MarkRequest(task, None, THREE, payload, producer)])


def ready(answers: object) -> list[tuple[str, list[bytes]]]:
    """Return the tasks that the sender got, with their payloads; nothing else may be answered."""
    assert isinstance(answers, list)
    assert all(isinstance(answer, Ready) for answer in answers)
    return [(answer.task, [bytes(each) for each in answer.payloads]) for answer in answers]


def begun(store: Store, run: RunId, *workers: WorkerId) -> None:
    """Open a flexible run in which these workers have entered."""
    store.open(run, PACKAGE)
    for worker in workers:
        store.enter(run, worker, 1)


def leaving(*producers: str) -> Completion:
    """Return what a worker sends that has nothing left to do but these marks."""
    marks = [MarkRequest(t, None, THREE, b"", producer) for producer in producers]
    letters: list[Letter] = [OutputReady(TaskId("s")), WorkerFinished(w0, b"record")]
    return Completion((), marks, letters, finished=True)


def told(store: Store, run: RunId) -> list[str]:
    """Return the kinds of the client's messages."""
    return kinds(store.receive(run, "client", "", 0))


def expiring(store: Store, run: RunId) -> None:
    """Open a run with leases so short that `supervise` finds every running worker lost."""
    store.open(run, Opening((), common=[b"common"], lease=0.001))
    store.enter(run, w0, 1)


def asking(producer: str, *others: str, task: TaskId = t) -> Completion:
    """Return what a worker sends to mark outputs that it holds instead of saving them."""
    held = (producer, *others)
    return Completion((), [MarkRequest(task, None, THREE, b"", producer, held)])


def claimed_by_holding(store: Store, run: RunId) -> None:
    """Give the task to w0, which holds the only copies of two of its inputs."""
    begun(store, run, w0, w1)
    store.complete(run, w1, 1, marking("x#10", b"10"))
    assert ready(store.complete(run, w0, 1, asking("ü#1", "x#0"))) == [(t, [b"", b"", b"10"])]


class StoreFlexible:
    """The sender of a task's last mark runs it, and any worker may enter once."""

    def test_the_last_mark_is_answered_with_the_task_and_all_payloads(
        self, store: Store, run: RunId
    ) -> None:
        begun(store, run, w0, w1)
        assert store.complete(run, w0, 1, marking("x#10", b"10")) == []
        assert store.complete(run, w1, 1, marking("x#0", BINARY)) == []
        assert ready(store.complete(run, w0, 1, marking("ü#1", b""))) == [(t, [BINARY, b"", b"10"])]

    def test_nobody_else_is_told(self, store: Store, run: RunId) -> None:
        begun(store, run, w0)
        for producer in THREE:
            store.complete(run, w0, 1, marking(producer))
        for mailbox in ("", w0, t, "client"):
            assert store.receive(run, mailbox, "", 0) == []

    def test_only_the_last_mark_gives_the_task_again_when_it_is_repeated(
        self, store: Store, run: RunId
    ) -> None:
        begun(store, run, w0, w1)
        for producer in ("x#0", "x#0", "ü#1"):
            assert store.complete(run, w0, 1, marking(producer)) == []
        assert ready(store.complete(run, w0, 1, marking("x#10", b"first"))) == [
            (t, [b"", b"", b"first"])
        ]
        assert store.complete(run, w1, 1, marking("x#0", b"second")) == []
        assert ready(store.complete(run, w1, 1, marking("x#10", b"second"))) == [
            (t, [b"", b"", b"first"])
        ]

    def test_marks_of_several_tasks_travel_together(self, store: Store, run: RunId) -> None:
        begun(store, run, w0)
        marks = [
            MarkRequest(task, None, THREE, producer.encode(), producer)
            for task in (t, u)
            for producer in THREE
        ]
        payloads = [producer.encode() for producer in THREE]
        answer = store.complete(run, w0, 1, Completion((), marks))
        assert ready(answer) == [(t, payloads), (u, payloads)]

    def test_whoever_gets_the_task_finds_what_was_saved_for_it(
        self, store: Store, run: RunId
    ) -> None:
        begun(store, run, w0, w1)
        saves: list[tuple[str, Blob]] = [("a", [b"a"]), ("A", [b"A" * LARGE])]
        store.complete(run, w0, 1, Completion(saves, marking("x#0").marks))
        store.complete(run, w1, 1, marking("x#10"))
        assert ready(store.complete(run, w1, 1, marking("ü#1")))
        assert [flat(data) for data in store.fetch(run, ["a", "A"])] == [b"a", b"A" * LARGE]

    def test_exactly_one_of_many_racing_marks_gets_the_task(
        self, connect: Connect, run: RunId
    ) -> None:
        count = 12
        producers = tuple(f"p#{number}" for number in range(count))
        stores = [connect() for _ in range(4)]
        stores[0].open(run, PACKAGE)
        workers = [WorkerId(producer) for producer in producers]
        for worker in workers:
            stores[0].enter(run, worker, 1)

        def mark(number: int) -> list[tuple[str, list[bytes]]]:
            request = MarkRequest(t, None, producers, b"%d" % number, producers[number])
            store = stores[number % len(stores)]
            return ready(store.complete(run, workers[number], 1, Completion((), [request])))

        with ThreadPoolExecutor(count) as pool:
            answers = [each for found in pool.map(mark, range(count)) for each in found]
        assert answers == [(t, [b"%d" % number for number in range(count)])]

    def test_a_very_wide_fan_in_becomes_ready(self, store: Store, run: RunId) -> None:
        begun(store, run, w0)
        producers = tuple(f"p#{number}" for number in range(10_000))
        answer: list[tuple[str, list[bytes]]] = []
        for at in range(0, len(producers), 500):
            marks = [MarkRequest(t, None, producers, b"", p) for p in producers[at : at + 500]]
            answer += ready(store.complete(run, w0, 1, Completion((), marks)))
        assert answer == [(t, [b""] * 10_000)]

    def test_every_worker_finds_the_common_part(self, store: Store, run: RunId) -> None:
        begun(store, run)
        assert [flat(store.enter(run, worker, 1).part) for worker in (w0, w1)] == [b"common"] * 2

    def test_a_worker_enters_once_however_often_it_is_invoked(
        self, store: Store, run: RunId
    ) -> None:
        begun(store, run, w0)
        with pytest.raises(RunOver):
            store.enter(run, w0, 1)
        with pytest.raises(RunOver):
            store.enter(run, w1, 2)

    def test_without_a_common_part_nobody_enters_unclaimed(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0]))
        with pytest.raises(RunOver):
            store.enter(run, w2, 1)

    def test_nobody_enters_a_flexible_run_that_was_closed(self, store: Store, run: RunId) -> None:
        begun(store, run, w0)
        store.close(run, [])
        with pytest.raises(RunOver):
            store.enter(run, w1, 1)
        with pytest.raises(RunOver):
            store.complete(run, w0, 1, marking("x#0"))

    def test_a_worker_that_gets_no_task_leaves_with_its_marks(
        self, store: Store, run: RunId
    ) -> None:
        expiring(store, run)
        assert store.complete(run, w0, 1, leaving("x#0", "ü#1")) == []
        assert told(store, run) == ["output", "finished"]
        sleep(0.01)
        assert store.supervise(run) == []

    def test_a_worker_that_gets_a_task_stays_and_its_last_letter_is_withheld(
        self, store: Store, run: RunId
    ) -> None:
        expiring(store, run)
        assert ready(store.complete(run, w0, 1, leaving(*THREE))) == [(t, [b""] * 3)]
        assert told(store, run) == ["output"]
        assert [claim.worker for claim in eventually(lambda: store.supervise(run))] == [w0]

    def test_a_worker_whose_mark_is_refused_stays_too(self, store: Store, run: RunId) -> None:
        expiring(store, run)
        asked = replace(asking("x#0"), letters=leaving().letters, finished=True)
        assert store.complete(run, w0, 1, asked) == [Refused(t, "x#0")]
        assert told(store, run) == ["output"]
        assert [claim.worker for claim in eventually(lambda: store.supervise(run))] == [w0]

    def test_a_worker_may_enter_with_its_first_completion(self, store: Store, run: RunId) -> None:
        store.open(run, replace(PACKAGE, started=[w0]))
        assert store.complete(run, w0, 1, replace(marking("x#0"), entering=True)) == []
        with pytest.raises(RunOver):
            store.enter(run, w0, 1)
        assert store.complete(run, w0, 1, marking("ü#1")) == []

    def test_only_the_first_invocation_of_a_start_has_an_effect(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, replace(PACKAGE, started=[w0, w1]))
        store.enter(run, w0, 1)
        store.complete(run, w1, 1, replace(marking("x#0", b"1"), entering=True))
        saves: list[tuple[str, Blob]] = [("a", [b"a"]), ("A", [b"A" * LARGE])]
        for worker in (w0, w1):
            late = Completion(saves, marking("x#0", b"2").marks, leaving().letters, entering=True)
            with pytest.raises(RunOver):
                store.complete(run, worker, 1, late)
        assert store.fetch(run, ["a", "A"]) == [None, None]
        assert told(store, run) == []
        store.complete(run, w1, 1, marking("ü#1"))
        assert ready(store.complete(run, w1, 1, marking("x#10"))) == [(t, [b"1", b"", b""])]

    def test_a_start_that_was_replaced_can_no_longer_enter(self, store: Store, run: RunId) -> None:
        store.open(run, replace(PACKAGE, started=[w0]))
        assert store.restart(run, w0, 1, "killed") is not None
        with pytest.raises(RunOver):
            store.complete(run, w0, 1, replace(marking("x#0"), entering=True))
        assert store.complete(run, w0, 2, replace(marking("x#0"), entering=True)) == []

    def test_held_marks_are_set_only_if_they_complete_the_task(
        self, store: Store, run: RunId
    ) -> None:
        begun(store, run, w0, w1)
        store.complete(run, w1, 1, marking("x#10", b"10"))
        assert store.complete(run, w0, 1, asking("x#0")) == [Refused(t, "x#0")]
        store.complete(run, w1, 1, marking("ü#1", b"1"))
        assert ready(store.complete(run, w0, 1, asking("x#0"))) == [(t, [b"", b"1", b"10"])]

    def test_several_held_outputs_may_complete_the_task_together(
        self, store: Store, run: RunId
    ) -> None:
        begun(store, run, w0, w1)
        assert store.complete(run, w0, 1, asking("x#0", "ü#1")) == [Refused(t, "x#0")]
        store.complete(run, w1, 1, marking("x#10", b"10"))
        assert store.complete(run, w0, 1, asking("x#0")) == [Refused(t, "x#0")]
        assert ready(store.complete(run, w0, 1, asking("ü#1", "x#0"))) == [(t, [b"", b"", b"10"])]

    def test_the_task_is_given_again_to_a_worker_that_holds_all_of_it(
        self, store: Store, run: RunId
    ) -> None:
        claimed_by_holding(store, run)
        assert store.complete(run, w0, 1, asking("ü#1")) == [Refused(t, "ü#1")]
        assert store.complete(run, w0, 1, asking("x#0")) == [Refused(t, "x#0")]
        assert ready(store.complete(run, w0, 1, asking("x#0", "ü#1"))) == [(t, [b"", b"", b"10"])]

    @pytest.mark.parametrize("order", [("x#0", "ü#1"), ("ü#1", "x#0")])
    def test_the_task_is_given_again_once_every_held_output_is_marked(
        self, store: Store, run: RunId, order: tuple[str, str]
    ) -> None:
        claimed_by_holding(store, run)
        first, second = order
        assert store.complete(run, w0, 1, marking(first, b"a")) == []
        assert store.complete(run, w0, 1, asking(first)) == [Refused(t, first)]
        expected = [b"a" if each == first else b"b" for each in THREE[:2]]
        assert ready(store.complete(run, w0, 1, marking(second, b"b"))) == [(t, [*expected, b"10"])]

    def test_of_two_held_outputs_one_may_be_marked_alone(self, store: Store, run: RunId) -> None:
        claimed_by_holding(store, run)
        assert store.complete(run, w0, 1, marking("ü#1", b"1")) == []
        assert ready(store.complete(run, w0, 1, asking("x#0"))) == [(t, [b"", b"1", b"10"])]

    def test_nobody_else_gets_a_task_with_held_inputs(self, store: Store, run: RunId) -> None:
        claimed_by_holding(store, run)
        assert store.complete(run, w1, 1, marking("x#10", b"again")) == []
        assert store.complete(run, w1, 1, asking("x#10")) == [Refused(t, "x#10")]
        assert ready(store.complete(run, w0, 1, asking("ü#1", "x#0"))) == [(t, [b"", b"", b"10"])]
