"""The queues of a farm, on a real server."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from observing import eventually
from shoal.errors import RunOver
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.farm_queues import FarmOpening, FarmStore, QueuedTask, Settled, Taken
from shoal.storage.keys import CLIENT
from shoal.storage.letters import (
    Failure,
    LeaveRequested,
    TaskFailed,
    TasksAssigned,
    TasksDone,
    TasksPassed,
    WorkerLeft,
)
from shoal.storage.resp import Arg, Connection, parse_url
from shoal.types import RunId, TaskId, WorkerId

pytestmark = pytest.mark.real

Told = TypeVar("Told", TasksDone, TasksPassed, TaskFailed, WorkerLeft)

A, B = WorkerId("0:0"), WorkerId("0:1")
LATER = WorkerId("1:2")
LOSS = Failure(A, "died")


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
    opening = FarmOpening(functions, [late_last] * stages, tries, 15, 0, restarts=3, ttl=ttl)
    store.begin(run, opening)
    store.hire(run, {A: "1024 1.0", B: "1024 1.0", LATER: "1024 1.0"})
    return run


@contextmanager
def closing_store(store: FarmStore) -> Iterator[FarmStore]:
    yield store
    store.disconnect()


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
    return Settled(name, 0.1, [], replace(LOSS, cause=b"cause"))


def told(store: FarmStore, run: RunId, kind: type[Told]) -> list[Told]:
    letters = [letter for _, letter in store.receive(run, CLIENT, "", 0)]
    return [letter for letter in letters if isinstance(letter, kind)]


def done_by(stage: int, *names: str) -> TasksDone:
    """Return the results of the last stage that the owner was told about."""
    return TasksDone(stage, tuple((name, 0.1, b"result of " + name.encode()) for name in names))


def test_tasks_are_taken_by_rank_and_ties_by_id(store: FarmStore, run: RunId) -> None:
    late, early = QueuedTask("1", (9.0,), [b""]), QueuedTask("4", (1.0,), [b""])
    ties = [QueuedTask("3", (5.0,), [b""]), QueuedTask("2", (5.0,), [b""])]
    store.put(run, 1, [late, *ties, early])

    assert names(take(store, run, A, most=9)) == ["4", "2", "3", "1"]


def test_late_tasks_are_taken_when_nothing_else_waits(store: FarmStore) -> None:
    run = opened(store, late_last=True)
    now = store.clock(run).now()
    places = {"1": now - 20, "2": now + 200, "3": now - 10, "4": now + 100}
    store.put(run, 1, [QueuedTask(name, (place,), [b""]) for name, place in places.items()])

    assert names(take(store, run, A)) == ["4"]
    assert names(take(store, run, B, most=9)) == ["2"]
    assert names(take(store, run, A, done("4"), most=9)) == ["1", "3"]


def test_a_task_is_held_by_one_worker(store: FarmStore, run: RunId) -> None:
    put(store, run, "1")
    assert names(take(store, run, A)) == ["1"]
    assert take(store, run, B) == Taken()


def test_a_repeated_request_returns_the_same_tasks(store: FarmStore, run: RunId) -> None:
    put(store, run, "1", "2", "3")
    assert names(take(store, run, A, most=2)) == ["1", "2"]
    assert names(take(store, run, A, most=2)) == ["1", "2"]


def test_a_result_handed_in_repeatedly_is_delivered_once(store: FarmStore, run: RunId) -> None:
    put(store, run, "1")
    take(store, run, A)
    take(store, run, A, done("1"))
    take(store, run, A, done("1"))
    assert told(store, run, TasksDone) == [done_by(0, "1")]


def test_a_batch_sent_twice_is_queued_once(store: FarmStore, run: RunId) -> None:
    put(store, run, "1")
    take(store, run, A)
    take(store, run, A, done("1"))
    put(store, run, "1")
    assert store.renew(run, 60, 1) == [(0, 0)]


def test_a_restart_gives_back_the_tasks_of_the_previous_start(store: FarmStore, run: RunId) -> None:
    put(store, run, "1", "2")
    assert names(take(store, run, A, most=2)) == ["1", "2"]
    store.restart(run, A, 1, "worker")
    store.join(run, A, 2, LOSS)

    with pytest.raises(RunOver):
        take(store, run, A, done("1"))
    assert told(store, run, TasksDone) == []
    assert names(take(store, run, B, most=2)) == ["1"]


def test_a_task_that_was_tried_before_is_taken_in_a_batch_of_one(
    store: FarmStore, run: RunId
) -> None:
    put(store, run, "1", "2", "3", "4")
    take(store, run, A, most=2)
    store.bury(run, A, LOSS)
    assert names(take(store, run, B, most=9)) == ["1"]
    assert names(take(store, run, B, done("1"), most=9)) == ["2"]
    assert names(take(store, run, B, done("2"), most=9)) == ["3", "4"]


def test_a_task_that_exhausts_its_tries_becomes_a_dead_letter_with_its_error(
    store: FarmStore, run: RunId
) -> None:
    put(store, run, "1")
    take(store, run, A)
    assert names(take(store, run, A, failed("1"))) == ["1"]
    assert take(store, run, A, failed("1")) == Taken()
    assert told(store, run, TaskFailed) == [TaskFailed(TaskId("1"), replace(LOSS, cause=b"cause"))]
    assert store.dead(run) == {"1": (LOSS, b"1")}


def test_a_worker_that_dies_uses_up_a_try_of_its_task(store: FarmStore, run: RunId) -> None:
    put(store, run, "1")
    for epoch in (1, 2):
        take(store, run, A, epoch=epoch)
        store.restart(run, A, epoch, "worker")
        store.join(run, A, epoch + 1, LOSS)
    assert told(store, run, TaskFailed) == [TaskFailed(TaskId("1"), LOSS)]
    assert take(store, run, A, epoch=3) == Taken()


def test_a_task_given_back_uses_no_try_and_goes_to_an_idle_worker(
    store: FarmStore, run: RunId
) -> None:
    put(store, run, "1", "2", "3")
    take(store, run, A, most=3)
    take(store, run, B)
    store.give_back(run, A, 1, ["2", "3"], [done("1")])
    ((_, letter),) = store.receive(run, B, "", 0)
    assert letter == TasksAssigned(B, (("2", b"2"),))
    assert told(store, run, TasksDone) == [done_by(0, "1")]
    assert names(take(store, run, A, done("2"), done("3"), most=9)) == ["3"]


def test_an_idle_worker_is_sent_the_next_task(store: FarmStore, run: RunId) -> None:
    assert take(store, run, A) == Taken()
    put(store, run, "1", "2")
    ((_, letter),) = store.receive(run, A, "", 0)
    assert letter == TasksAssigned(A, (("1", b"1"),))
    assert names(take(store, run, B)) == ["2"]


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of keys and arguments of each command that this thread sends from now."""
    trips: list[int] = []
    send, here = Connection.send, threading.get_ident()

    def counted(self: Connection, commands: Sequence[Sequence[Arg]]) -> None:
        if threading.get_ident() == here:
            trips.extend(len(command) for command in commands)
        send(self, commands)

    monkeypatch.setattr(Connection, "send", counted)
    return trips


def test_waking_known_workers_takes_one_round_trip(
    store: FarmStore, run: RunId, url: str, trips: list[int]
) -> None:
    """Their mailboxes are declared in advance, as far as they are known."""
    with closing_store(FarmStore(url)) as worker:
        take(worker, run, A)
        for batch, expected in ((1, 2), (2, 1)):
            trips.clear()
            put(store, run, str(batch), batch=batch)
            assert len(trips) == expected
            assert names(take(worker, run, A)) == [str(batch)]
            assert take(worker, run, A, done(str(batch))) == Taken()
    trips.clear()
    for batch in (3, 4, 5):  # the last one knows that the previous one woke nobody
        put(store, run, str(batch), batch=batch)
    first, second, third = trips
    assert first == second == third + 1


def test_tasks_of_a_dead_worker_go_to_other_idle_workers_and_not_to_itself(
    store: FarmStore, run: RunId
) -> None:
    """1. A is idle and is sent a task. 2. B becomes idle. 3. A is buried with its mailbox."""
    assert take(store, run, A) == Taken()
    put(store, run, "1")
    assert take(store, run, B) == Taken()
    store.bury(run, A, LOSS)
    ((_, letter),) = store.receive(run, B, "", 0)
    assert letter == TasksAssigned(B, (("1", b"1"),))


def test_a_restarted_worker_is_no_longer_idle(store: FarmStore, run: RunId) -> None:
    assert store.join(run, A, 1, LOSS) == b"f0"
    assert take(store, run, A) == Taken()
    (claim,) = [store.restart(run, A, 1, "test")]
    assert claim is not None
    store.join(run, A, claim.epoch, LOSS)
    put(store, run, "1")
    assert store.receive(run, A, "", 0) == []
    assert names(take(store, run, A, epoch=claim.epoch)) == ["1"]


def test_mailboxes_of_workers_live_as_long_as_their_farm(store: FarmStore) -> None:
    run = opened(store, ttl=60)
    take(store, run, A)
    put(store, run, "1")
    for _ in range(2):  # once with mailboxes that must be declared to the store first
        store.renew(run, 1000, 1)
        left = [store._call([["PTTL", key]])[0] for key in _keys(store, run)]
        assert min(left) > 900_000


def test_a_worker_that_missed_its_letter_gets_the_task_and_no_second_letter(
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
    assert [letter for _, letter in store.receive(run, B, "", 0)] == [LeaveRequested(B)]
    assert take(store, run, B).leave

    store.dismiss(run, 0, 1)
    assert names(take(store, run, A)) == ["1"]
    assert take(store, run, A, done("1")).leave
    assert told(store, run, TasksDone) == [done_by(0, "1")]
    assert told(store, run, WorkerLeft) == [WorkerLeft(B), WorkerLeft(A)]


def test_a_worker_that_left_takes_no_more_tasks(store: FarmStore, run: RunId) -> None:
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
    assert told(store, run, TasksPassed) == [TasksPassed(0, (("1", 0.1), ("2", 0.1)))]
    assert take(store, run, LATER, most=2).tasks == (
        ("2", b"result of 2"),
        ("1", b"result of 1"),
    )
    take(store, run, LATER, done("2"))
    assert told(store, run, TasksDone) == [done_by(1, "2")]


def test_the_state_shows_waiting_tasks_and_busy_workers(store: FarmStore, run: RunId) -> None:
    put(store, run, "1", "2", "3")
    take(store, run, A)
    assert store.renew(run, 60, 1) == [(2, 1)]


def test_a_farm_whose_owner_left_has_ended(store: FarmStore) -> None:
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


def test_an_ended_farm_leaves_nothing(store: FarmStore, run: RunId) -> None:
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
