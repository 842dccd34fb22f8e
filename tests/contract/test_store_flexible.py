"""Marks without an owner, and workers that nobody names in advance: see `storage/base.py`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import sleep

import pytest
from store_examples import BINARY, LARGE, Connect, flat, keys_of, t, u, w0, w1, w2

from shoal.errors import RunOver
from shoal.storage.base import Completion, Letter, MarkRequest, Opening, Ready, Refused, Store
from shoal.storage.resp import Connection
from shoal.types import RunId, TaskId, WorkerId

PACKAGE = Opening((), common=[b"common"])
THREE = ("x#0", "ü#1", "x#10")


def marking(producer: str, payload: bytes = b"", task: TaskId = t) -> Completion:
    return Completion((), [MarkRequest(task, None, THREE, payload, producer)])


def ready(answers: object) -> list[tuple[str, list[bytes]]]:
    assert isinstance(answers, list)
    assert all(isinstance(answer, Ready) for answer in answers)
    return [(answer.task, [bytes(each) for each in answer.payloads]) for answer in answers]


def begun(store: Store, run: RunId, *workers: WorkerId) -> None:
    store.open(run, PACKAGE)
    for worker in workers:
        store.enter(run, worker, 1)


def test_the_last_mark_is_answered_with_the_task_and_all_payloads(store: Store, run: RunId) -> None:
    begun(store, run, w0, w1)
    assert store.complete(run, w0, 1, marking("x#10", b"10")) == []
    assert store.complete(run, w1, 1, marking("x#0", BINARY)) == []
    assert ready(store.complete(run, w0, 1, marking("ü#1", b""))) == [(t, [BINARY, b"", b"10"])]


def test_nobody_else_is_told(store: Store, run: RunId) -> None:
    begun(store, run, w0)
    for producer in THREE:
        store.complete(run, w0, 1, marking(producer))
    for mailbox in ("", w0, t, "client"):
        assert store.receive(run, mailbox, "", 0) == []


def test_only_the_last_mark_gives_the_task_again_when_it_is_repeated(
    store: Store, run: RunId
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


def test_marks_of_several_tasks_travel_together(store: Store, run: RunId) -> None:
    begun(store, run, w0)
    marks = [
        MarkRequest(task, None, THREE, producer.encode(), producer)
        for task in (t, u)
        for producer in THREE
    ]
    payloads = [producer.encode() for producer in THREE]
    answer = store.complete(run, w0, 1, Completion((), marks))
    assert ready(answer) == [(t, payloads), (u, payloads)]


def test_whoever_gets_the_task_finds_what_was_saved_for_it(store: Store, run: RunId) -> None:
    begun(store, run, w0, w1)
    saves = [("a", [b"a"]), ("A", [b"A" * LARGE])]
    store.complete(run, w0, 1, Completion(saves, marking("x#0").marks))
    store.complete(run, w1, 1, marking("x#10"))
    assert ready(store.complete(run, w1, 1, marking("ü#1")))
    assert [flat(data) for data in store.fetch(run, ["a", "A"])] == [b"a", b"A" * LARGE]


def test_of_many_who_mark_at_once_exactly_one_gets_the_task(connect: Connect, run: RunId) -> None:
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


def test_a_very_wide_fan_in_becomes_ready(store: Store, run: RunId) -> None:
    begun(store, run, w0)
    producers = tuple(f"p#{number}" for number in range(10_000))
    answer: list[tuple[str, list[bytes]]] = []
    for at in range(0, len(producers), 500):
        marks = [MarkRequest(t, None, producers, b"", p) for p in producers[at : at + 500]]
        answer += ready(store.complete(run, w0, 1, Completion((), marks)))
    assert answer == [(t, [b""] * 10_000)]


def test_every_worker_finds_the_common_part(store: Store, run: RunId) -> None:
    begun(store, run)
    assert [flat(store.enter(run, worker, 1).part) for worker in (w0, w1)] == [b"common"] * 2


def test_a_worker_is_begun_once_however_often_it_is_invoked(store: Store, run: RunId) -> None:
    begun(store, run, w0)
    with pytest.raises(RunOver):
        store.enter(run, w0, 1)
    with pytest.raises(RunOver):
        store.enter(run, w1, 2)


def test_without_a_common_part_nobody_enters_unclaimed(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    with pytest.raises(RunOver):
        store.enter(run, w2, 1)


def test_nobody_enters_a_flexible_run_that_is_over(store: Store, run: RunId) -> None:
    begun(store, run, w0)
    store.close(run, [])
    with pytest.raises(RunOver):
        store.enter(run, w1, 1)
    with pytest.raises(RunOver):
        store.complete(run, w0, 1, marking("x#0"))


def test_nothing_is_left_though_nobody_names_the_workers(
    server: Connection, on_server: Store, run: RunId
) -> None:
    begun(on_server, run, w0, w1)
    saves = [("a", [b"a"]), ("A", [b"A" * LARGE])]
    on_server.complete(run, w0, 1, Completion(saves, marking("x#0").marks, executed=1))
    on_server.close(run, [])
    assert keys_of(server, run) == set()


# Leaving, and entering, together with something else.


def leaving(*producers: str) -> Completion:
    """A worker whose marks are all that it has to do tells the client that it leaves."""
    marks = [MarkRequest(t, None, THREE, b"", producer) for producer in producers]
    letters = [Letter("output", "s"), Letter("finished", w0, (b"record",))]
    return Completion((), marks, letters, finished=True)


def kinds(store: Store, run: RunId) -> list[str]:
    return [letter.kind for letter in store.receive(run, "client", "", 0)]


def expiring(store: Store, run: RunId) -> None:
    """A run whose workers count as lost as soon as somebody looks."""
    store.open(run, Opening((), common=[b"common"], lease=0.001))
    store.enter(run, w0, 1)


def test_who_is_given_no_task_leaves_with_its_marks(store: Store, run: RunId) -> None:
    expiring(store, run)
    assert store.complete(run, w0, 1, leaving("x#0", "ü#1")) == []
    assert kinds(store, run) == ["output", "finished"]
    sleep(0.01)
    assert store.tend(run) == []


def test_who_is_given_a_task_stays_and_nobody_is_told_that_it_leaves(
    store: Store, run: RunId
) -> None:
    expiring(store, run)
    assert ready(store.complete(run, w0, 1, leaving(*THREE))) == [(t, [b""] * 3)]
    assert kinds(store, run) == ["output"]
    sleep(0.01)
    assert [claim.worker for claim in store.tend(run)] == [w0]


def test_who_is_refused_a_mark_stays_too(store: Store, run: RunId) -> None:
    expiring(store, run)
    asked = replace(asking("x#0"), letters=leaving().letters, finished=True)
    assert store.complete(run, w0, 1, asked) == [Refused(t, "x#0")]
    assert kinds(store, run) == ["output"]
    sleep(0.01)
    assert [claim.worker for claim in store.tend(run)] == [w0]


def test_a_worker_enters_with_what_it_first_tells(store: Store, run: RunId) -> None:
    store.open(run, replace(PACKAGE, started=[w0]))
    assert store.complete(run, w0, 1, replace(marking("x#0"), entering=True)) == []
    with pytest.raises(RunOver):
        store.enter(run, w0, 1)
    assert store.complete(run, w0, 1, marking("ü#1")) == []


def test_of_a_start_that_is_repeated_only_the_first_has_an_effect(store: Store, run: RunId) -> None:
    store.open(run, replace(PACKAGE, started=[w0, w1]))
    store.enter(run, w0, 1)
    store.complete(run, w1, 1, replace(marking("x#0", b"1"), entering=True))
    saves = [("a", [b"a"]), ("A", [b"A" * LARGE])]
    for worker in (w0, w1):
        late = Completion(saves, marking("x#0", b"2").marks, leaving().letters, entering=True)
        with pytest.raises(RunOver):
            store.complete(run, worker, 1, late)
    assert store.fetch(run, ["a", "A"]) == [None, None]
    assert kinds(store, run) == []
    store.complete(run, w1, 1, marking("ü#1"))
    assert ready(store.complete(run, w1, 1, marking("x#10"))) == [(t, [b"1", b"", b""])]


def test_a_start_that_was_given_up_enters_no_more(store: Store, run: RunId) -> None:
    store.open(run, replace(PACKAGE, started=[w0]))
    assert store.restart(run, w0, 1, "killed") is not None
    with pytest.raises(RunOver):
        store.complete(run, w0, 1, replace(marking("x#0"), entering=True))
    assert store.complete(run, w0, 2, replace(marking("x#0"), entering=True)) == []


# Outputs that stay with their worker.


def asking(producer: str, *others: str, task: TaskId = t) -> Completion:
    held = (producer, *others)
    return Completion((), [MarkRequest(task, None, THREE, b"", producer, held)])


def test_marks_of_what_is_held_are_set_only_if_they_are_the_last(store: Store, run: RunId) -> None:
    begun(store, run, w0, w1)
    store.complete(run, w1, 1, marking("x#10", b"10"))
    assert store.complete(run, w0, 1, asking("x#0")) == [Refused(t, "x#0")]
    store.complete(run, w1, 1, marking("ü#1", b"1"))
    assert ready(store.complete(run, w0, 1, asking("x#0"))) == [(t, [b"", b"1", b"10"])]


def test_several_outputs_that_are_held_may_be_the_last_together(store: Store, run: RunId) -> None:
    begun(store, run, w0, w1)
    assert store.complete(run, w0, 1, asking("x#0", "ü#1")) == [Refused(t, "x#0")]
    store.complete(run, w1, 1, marking("x#10", b"10"))
    assert store.complete(run, w0, 1, asking("x#0")) == [Refused(t, "x#0")]
    assert ready(store.complete(run, w0, 1, asking("ü#1", "x#0"))) == [(t, [b"", b"", b"10"])]


def claimed_by_holding(store: Store, run: RunId) -> None:
    """Worker w0 has the task, and two of its inputs are nowhere else."""
    begun(store, run, w0, w1)
    store.complete(run, w1, 1, marking("x#10", b"10"))
    assert ready(store.complete(run, w0, 1, asking("ü#1", "x#0"))) == [(t, [b"", b"", b"10"])]


def test_the_task_is_given_again_to_who_has_all_that_was_held(store: Store, run: RunId) -> None:
    claimed_by_holding(store, run)
    assert store.complete(run, w0, 1, asking("ü#1")) == [Refused(t, "ü#1")]
    assert store.complete(run, w0, 1, asking("x#0")) == [Refused(t, "x#0")]
    assert ready(store.complete(run, w0, 1, asking("x#0", "ü#1"))) == [(t, [b"", b"", b"10"])]


@pytest.mark.parametrize("order", [("x#0", "ü#1"), ("ü#1", "x#0")])
def test_the_task_is_given_again_once_all_that_was_held_is_marked(
    store: Store, run: RunId, order: tuple[str, str]
) -> None:
    claimed_by_holding(store, run)
    first, second = order
    assert store.complete(run, w0, 1, marking(first, b"a")) == []
    assert store.complete(run, w0, 1, asking(first)) == [Refused(t, first)]
    expected = [b"a" if each == first else b"b" for each in THREE[:2]]
    assert ready(store.complete(run, w0, 1, marking(second, b"b"))) == [(t, [*expected, b"10"])]


def test_one_of_the_held_may_be_marked_and_the_other_asked_for(store: Store, run: RunId) -> None:
    claimed_by_holding(store, run)
    assert store.complete(run, w0, 1, marking("ü#1", b"1")) == []
    assert ready(store.complete(run, w0, 1, asking("x#0"))) == [(t, [b"", b"1", b"10"])]


def test_nobody_else_gets_a_task_whose_inputs_are_held(store: Store, run: RunId) -> None:
    claimed_by_holding(store, run)
    assert store.complete(run, w1, 1, marking("x#10", b"again")) == []
    assert store.complete(run, w1, 1, asking("x#10")) == [Refused(t, "x#10")]
    assert ready(store.complete(run, w0, 1, asking("ü#1", "x#0"))) == [(t, [b"", b"", b"10"])]
