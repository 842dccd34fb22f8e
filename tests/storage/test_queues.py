"""The queues of a farm, on a real server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import pytest

from observing import eventually
from shoal.errors import RunOver
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.keys import CLIENT
from shoal.storage.queues import FarmOpening, FarmStore, QueuedTask, Settled, Taken
from shoal.storage.resp import Connection, parse_url
from shoal.types import RunId, WorkerId

pytestmark = pytest.mark.real

A, B = WorkerId("0:0"), WorkerId("0:1")
LATER = WorkerId("1:2")
LOSS = json.dumps({"worker": A, "reason": "died", "arguments": "", "traceback": ""}).encode()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = EmbeddedServer()
    yield server.url
    server.close()


@pytest.fixture
def store(url: str) -> Iterator[FarmStore]:
    store = FarmStore(url)
    yield store
    store.disconnect()


@pytest.fixture
def run(store: FarmStore) -> RunId:
    return opened(store)


def opened(
    store: FarmStore, *, stages: int = 1, late_last: bool = False, tries: int = 2, ttl: float = 60
) -> RunId:
    run = RunId(f"farm-{secrets.token_hex(4)}")
    functions = [[b"f%d" % stage] for stage in range(stages)]
    opening = FarmOpening(functions, [late_last] * stages, tries, lease=15, restarts=3, ttl=ttl)
    store.begin(run, opening)
    store.hire(run, {A: "1024 1.0", B: "1024 1.0", LATER: "1024 1.0"})
    return run


def put(store: FarmStore, run: RunId, *names: str, batch: int = 1) -> None:
    tasks = [QueuedTask(name, (0.0,), [name.encode()]) for name in names]
    store.put(run, batch, tasks)


def take(
    store: FarmStore, run: RunId, worker: WorkerId, *done: Settled, most: int = 1, epoch: int = 1
) -> Taken:
    return store.take(run, worker, epoch, "", most, done)


def names(taken: Taken) -> list[str]:
    return [name for name, _ in taken.tasks]


def done(name: str) -> Settled:
    return Settled(name, 0.1, [b"result of " + name.encode()])


def failed(name: str) -> Settled:
    return Settled(name, 0.1, [b"cause"], LOSS)


def told(store: FarmStore, run: RunId, kind: str) -> list[list[bytes]]:
    letters = store.receive(run, CLIENT, "", 0)
    return [list(map(bytes, letter.parts)) for letter in letters if letter.kind == kind]


def test_tasks_are_taken_by_their_places_and_ties_by_their_ids(
    store: FarmStore, run: RunId
) -> None:
    late, early = QueuedTask("1", (9.0,), [b""]), QueuedTask("4", (1.0,), [b""])
    ties = [QueuedTask("3", (5.0,), [b""]), QueuedTask("2", (5.0,), [b""])]
    store.put(run, 1, [late, *ties, early])

    assert names(take(store, run, A, most=9)) == ["4", "2", "3", "1"]


def test_what_is_late_is_taken_when_nothing_else_waits(store: FarmStore) -> None:
    run = opened(store, late_last=True)
    now = store.time()
    places = {"1": now - 20, "2": now + 200, "3": now - 10, "4": now + 100}
    store.put(run, 1, [QueuedTask(name, (place,), [b""]) for name, place in places.items()])

    assert names(take(store, run, A)) == ["4"]
    assert names(take(store, run, B, most=9)) == ["2"]
    assert names(take(store, run, A, done("4"), most=9)) == ["1", "3"]


def test_a_task_is_held_by_one_worker(store: FarmStore, run: RunId) -> None:
    put(store, run, "1")
    assert names(take(store, run, A)) == ["1"]
    assert take(store, run, B) == Taken()


def test_who_repeats_a_request_gets_the_same_tasks(store: FarmStore, run: RunId) -> None:
    put(store, run, "1", "2", "3")
    assert names(take(store, run, A, most=2)) == ["1", "2"]
    assert names(take(store, run, A, most=2)) == ["1", "2"]


def test_a_result_is_delivered_once_however_often_it_is_handed_in(
    store: FarmStore, run: RunId
) -> None:
    put(store, run, "1")
    take(store, run, A)
    take(store, run, A, done("1"))
    take(store, run, A, done("1"))
    assert told(store, run, "done") == [[b"1", b"0.1", b"result of 1"]]


def test_a_batch_that_is_sent_twice_is_put_in_once(store: FarmStore, run: RunId) -> None:
    put(store, run, "1")
    take(store, run, A)
    take(store, run, A, done("1"))
    put(store, run, "1")
    assert store.renew(run, 60, 1) == [(0, 0)]


def test_a_new_start_gives_back_what_the_one_before_held(store: FarmStore, run: RunId) -> None:
    put(store, run, "1", "2")
    assert names(take(store, run, A, most=2)) == ["1", "2"]
    store.restart(run, A, 1, "worker")
    store.join(run, A, 2, LOSS)

    with pytest.raises(RunOver):
        take(store, run, A, done("1"))
    assert told(store, run, "done") == []
    assert names(take(store, run, B, most=2)) == ["1"]


def test_a_task_that_was_tried_before_is_taken_alone(store: FarmStore, run: RunId) -> None:
    put(store, run, "1", "2", "3", "4")
    take(store, run, A, most=2)
    store.bury(run, A, LOSS)
    assert names(take(store, run, B, most=9)) == ["1"]
    assert names(take(store, run, B, done("1"), most=9)) == ["2"]
    assert names(take(store, run, B, done("2"), most=9)) == ["3", "4"]


def test_a_task_is_dead_after_its_tries_and_keeps_what_is_known(
    store: FarmStore, run: RunId
) -> None:
    put(store, run, "1")
    take(store, run, A)
    assert names(take(store, run, A, failed("1"))) == ["1"]
    assert take(store, run, A, failed("1")) == Taken()
    assert told(store, run, "failed") == [[LOSS, b"cause"]]
    assert store.dead(run) == {"1": (LOSS, b"1")}


def test_workers_that_die_of_a_task_are_its_tries(store: FarmStore, run: RunId) -> None:
    put(store, run, "1")
    for epoch in (1, 2):
        take(store, run, A, epoch=epoch)
        store.restart(run, A, epoch, "worker")
        store.join(run, A, epoch + 1, LOSS)
    assert told(store, run, "failed") == [[LOSS, b""]]
    assert take(store, run, A, epoch=3) == Taken()


def test_what_a_worker_gives_back_is_no_try_and_goes_to_who_is_idle(
    store: FarmStore, run: RunId
) -> None:
    put(store, run, "1", "2", "3")
    take(store, run, A, most=3)
    take(store, run, B)
    store.give_back(run, A, 1, ["2", "3"], [done("1")])
    (letter,) = store.receive(run, B, "", 0)
    assert letter.parts == (b"2", b"2")
    assert told(store, run, "done") == [[b"1", b"0.1", b"result of 1"]]
    assert names(take(store, run, A, done("2"), done("3"), most=9)) == ["3"]


def test_an_idle_worker_is_sent_the_next_task(store: FarmStore, run: RunId) -> None:
    assert take(store, run, A) == Taken()
    put(store, run, "1", "2")
    (letter,) = store.receive(run, A, "", 0)
    assert (letter.kind, letter.parts) == ("tasks", (b"1", b"1"))
    assert names(take(store, run, B)) == ["2"]


def test_who_missed_the_letter_with_its_task_gets_the_task_and_no_letter(
    store: FarmStore, run: RunId
) -> None:
    take(store, run, A)
    put(store, run, "1")
    assert names(take(store, run, A)) == ["1"]
    assert store.receive(run, A, "", 0) == []


def test_idle_workers_leave_first_and_busy_ones_finish(store: FarmStore, run: RunId) -> None:
    put(store, run, "1")
    take(store, run, A)
    take(store, run, B)
    store.dismiss(run, 0, 1)
    assert [letter.kind for letter in store.receive(run, B, "", 0)] == ["leave"]
    assert take(store, run, B).leave

    store.dismiss(run, 0, 1)
    assert names(take(store, run, A)) == ["1"]
    assert take(store, run, A, done("1")).leave
    assert told(store, run, "done") == [[b"1", b"0.1", b"result of 1"]]
    assert len(told(store, run, "left")) == 2


def test_who_has_left_may_not_take_any_more(store: FarmStore, run: RunId) -> None:
    assert take(store, run, A, most=0).leave
    with pytest.raises(RunOver):
        take(store, run, A)


def test_a_result_of_a_stage_is_a_task_of_the_next(store: FarmStore) -> None:
    run = opened(store, stages=2)
    assert store.join(run, A, 1, LOSS) == b"f0"
    assert store.join(run, LATER, 1, LOSS) == b"f1"
    store.put(run, 1, [QueuedTask("1", (1.0, 9.0), [b"x"]), QueuedTask("2", (2.0, 8.0), [b"y"])])
    take(store, run, A, most=2)
    take(store, run, A, done("1"), done("2"))
    assert told(store, run, "passed") == [[b"1", b"0.1", b"2", b"0.1"]]
    assert take(store, run, LATER, most=2).tasks == (
        ("2", b"result of 2"),
        ("1", b"result of 1"),
    )
    take(store, run, LATER, done("2"))
    assert told(store, run, "done") == [[b"2", b"0.1", b"result of 2"]]


def test_looking_tells_what_waits_and_who_is_busy(store: FarmStore, run: RunId) -> None:
    put(store, run, "1", "2", "3")
    take(store, run, A)
    assert store.renew(run, 60, 1) == [(2, 1)]


def test_a_farm_that_its_owner_left_is_over(store: FarmStore) -> None:
    run = opened(store, ttl=1)
    put(store, run, "1")

    def over() -> bool:
        try:
            take(store, run, A)
        except RunOver:
            return True
        return False

    assert eventually(over)
    assert eventually(lambda: _keys(store, run) == [])


def test_nothing_is_left_of_a_farm_that_was_ended(store: FarmStore, run: RunId) -> None:
    put(store, run, "1", "2", "3", "4")
    take(store, run, A)
    take(store, run, A, failed("1"))
    take(store, run, A, failed("1"))
    take(store, run, B)
    store.end(run, 1)
    assert _keys(store, run) == []


def _keys(store: FarmStore, run: RunId) -> list[bytes]:
    connection = Connection(parse_url(store.url))
    try:
        return sorted(map(bytes, connection.call("KEYS", f"*{{{run}}}*")))
    finally:
        connection.close()
