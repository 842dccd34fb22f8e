"""The rules of `storage/base.py`, for every store."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from store_examples import (
    BINARY,
    LARGE,
    LONG,
    SAID,
    Connect,
    fields,
    flat,
    in_background,
    keys_of,
    mark,
    started_again,
    t,
    u,
    use,
    w0,
    w1,
    w2,
    w3,
)

from observing import PATIENCE, eventually
from shoal.errors import RunOver
from shoal.storage import keys
from shoal.storage.base import (
    DEFAULT_TTL,
    Announcement,
    Claim,
    Completion,
    Entry,
    Letter,
    Opening,
    Store,
)
from shoal.storage.codec import Blob
from shoal.storage.keys import CLIENT
from shoal.storage.resp import Connection
from shoal.types import RunId, TaskId, WorkerId


@pytest.mark.parametrize("what", SAID)
def test_what_is_said_of_a_run_before_it_opens_is_refused(
    store: Store, run: RunId, what: str
) -> None:
    with pytest.raises(RunOver):
        SAID[what](store, run)


@pytest.mark.parametrize("what", SAID)
def test_what_is_said_of_a_run_after_it_closed_is_refused(
    store: Store, run: RunId, what: str
) -> None:
    use(store, run)
    store.close(run, [w0, w1, w2, w3])
    with pytest.raises(RunOver):
        SAID[what](store, run)


def test_a_run_that_is_over_has_no_progress_and_can_be_closed_again(
    store: Store, run: RunId
) -> None:
    use(store, run)
    store.close(run, [w0, w1, w2, w3])
    assert store.progress(run) == 0


def test_closing_a_run_leaves_other_runs_alone(store: Store, run: RunId) -> None:
    other = RunId(run + "-other")
    use(store, run)
    use(store, other)
    store.close(run, [w0, w1, w2, w3])
    assert flat(store.fetch(other, ["a"])[0]) == b"a"
    assert flat(store.fetch(other, ["A"])[0]) == b"A" * LARGE
    assert len(store.receive(other, CLIENT, "", 0)) == 2


def test_nothing_of_a_closed_run_is_left_on_the_server_nor_comes_back(
    server: Connection, on_server: Store, run: RunId
) -> None:
    use(on_server, run)
    assert keys_of(server, run)
    on_server.close(run, [w0, w1, w2, w3])
    assert keys_of(server, run) == set()
    for say in SAID.values():
        with pytest.raises(RunOver):
            say(on_server, run)
    assert keys_of(server, run) == set()


def test_every_key_of_an_open_run_lives_as_long_as_the_run(
    server: Connection, on_server: Store, run: RunId
) -> None:
    use(on_server, run)
    found = keys_of(server, run)
    assert len(found) >= 10
    lives = [server.call("TTL", key) for key in found]
    assert all(DEFAULT_TTL - 60 < seconds <= DEFAULT_TTL for seconds in lives)


def test_time_to_live_given_to_a_run_holds_for_what_is_said_later(
    server: Connection, on_server: Store, run: RunId
) -> None:
    on_server.open(run, Opening([w0], {w0: [b"part"]}, ttl=100))
    saves: list[tuple[str, Blob]] = [("a", [b"a"]), ("A", [bytes(LARGE)])]
    letters = [Letter("output", "a")]
    said = Completion(saves, [mark(t, w1, w0)], letters, executed=1, starts=[(w2, b"given")])
    on_server.complete(run, w0, 1, said)
    found = keys_of(server, run)
    assert len(found) >= 10
    assert all(0 < server.call("TTL", key) <= 100 for key in found)


def test_run_that_nobody_ended_is_forgotten_as_a_whole(
    server: Connection, on_server: Store, run: RunId
) -> None:
    use(on_server, run)
    server.call("PEXPIRE", keys.state(run), 1)
    assert eventually(lambda: not server.call("EXISTS", keys.state(run)))
    with pytest.raises(RunOver):
        on_server.complete(run, w0, 1, Completion([("A", [bytes(LARGE)])]))


def test_worker_finds_its_part_when_it_enters(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1], {w0: [b"some", BINARY]}))
    entry = store.enter(run, w0, 1)
    assert flat(entry.part) == b"some" + BINARY
    assert entry.executed is None
    assert store.enter(run, w1, 1) == Entry(None, None)


def test_second_invocation_of_a_start_is_turned_away(connect: Connect, run: RunId) -> None:
    """A platform that retries does no harm.

    1. The platform starts a worker twice for one claim.
    2. Both enter with the same epoch.
    3. The first goes on; the second is refused, also by what it says of itself.
    """
    first, second = connect(), connect()
    first.open(run, Opening([w0]))
    first.enter(run, w0, 1)
    with pytest.raises(RunOver, match=w0):
        second.enter(run, w0, 1)
    assert first.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == [Claim(w1, 1)]


def test_one_of_many_invocations_of_a_start_may_go_on(connect: Connect, run: RunId) -> None:
    connect().open(run, Opening([w0]))
    stores = [connect() for _ in range(8)]
    together = threading.Barrier(len(stores))

    def enter(store: Store) -> bool:
        together.wait()
        try:
            store.enter(run, w0, 1)
        except RunOver:
            return False
        return True

    with ThreadPoolExecutor(len(stores)) as pool:
        assert sorted(pool.map(enter, stores)) == [False] * 7 + [True]


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_other_epoch_than_the_present_one_is_refused(store: Store, run: RunId, epoch: int) -> None:
    started_again(store, run)
    with pytest.raises(RunOver):
        store.enter(run, w1, epoch)
    with pytest.raises(RunOver):
        store.park(run, w1, epoch, "", b"")
    with pytest.raises(RunOver):
        store.complete(run, w1, epoch, Completion(executed=7))
    assert store.progress(run) == 0


def test_nothing_that_an_older_epoch_sends_is_kept(store: Store, run: RunId) -> None:
    """A worker that was only paused wakes up after another start took over."""
    started_again(store, run)
    saves: list[tuple[str, Blob]] = [
        ("a", [b"stale"]),
        ("A", [b"S" * LARGE]),
        ("new", [b"n"]),
        ("NEW", [b"N" * LARGE]),
    ]
    letters = [Letter("output", "a")]
    announcements = [Announcement(u, w0, b"")]
    stale = Completion(saves, [mark(u, w0, w1)], letters, 9, announcements)
    with pytest.raises(RunOver):
        store.complete(run, w1, 1, stale)
    found = [flat(data) for data in store.fetch(run, ["a", "A", "new", "NEW"])]
    assert found == [b"kept", b"K" * LARGE, None, None]
    assert store.receive(run, CLIENT, "", 0) == []
    assert store.receive(run, w0, "", 0) == []
    assert store.progress(run) == 0


@pytest.mark.parametrize("nbytes", [LARGE, LONG])
def test_large_output_of_an_older_epoch_leaves_no_key(
    server: Connection, on_server: Store, run: RunId, nbytes: int
) -> None:
    started_again(on_server, run)
    before = keys_of(server, run)
    with pytest.raises(RunOver):
        on_server.complete(run, w1, 1, Completion([("S", [bytes(nbytes)])]))
    assert keys_of(server, run) - before <= {keys.pieces(run)}


def test_worker_that_was_never_claimed_can_not_enter(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0], {w1: [b"part"]}))
    with pytest.raises(RunOver):
        store.enter(run, w1, 1)


def test_missing_output_is_none(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    store.complete(run, w0, 1, Completion([("a", [b"a"])]))
    assert [flat(data) for data in store.fetch(run, ["b", "a", "c"])] == [None, b"a", None]


def test_empty_output_is_not_a_missing_one(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0], outputs={"c": [b""]}))
    store.complete(run, w0, 1, Completion([("a", [b"", b""]), ("b", [])]))
    assert [flat(data) for data in store.fetch(run, ["a", "b", "c"])] == [b"", b"", b""]


def test_outputs_come_in_the_order_asked_for_whatever_their_size(store: Store, run: RunId) -> None:
    sizes = {"a": 1, "b": LARGE, "c": 65_536, "d": 65_537, "e": 0, "f": LONG, "g": 2**20 + 1}
    contents = {name: name.encode() * size for name, size in sizes.items()}
    constants = {"k": b"k", "K": b"K" * LARGE, "L": b"L" * LONG}
    store.open(run, Opening([w0], outputs={name: [data] for name, data in constants.items()}))
    store.complete(run, w0, 1, Completion([(name, [data]) for name, data in contents.items()]))
    names = ["K", "d", "a", "f", "c", "L", "k", "e", "b", "g", "d"]
    found = [flat(data) for data in store.fetch(run, names)]
    assert found == [{**contents, **constants}[name] for name in names]


def test_output_of_10_mb_in_several_buffers_survives(store: Store, run: RunId) -> None:
    random = secrets.token_bytes(5_000_000)
    pieces: Blob = [b"head", memoryview(random), b"", bytearray(3), memoryview(random)[1:], b"tail"]
    store.open(run, Opening([w0]))
    store.complete(run, w0, 1, Completion([("A", pieces), ("b", [b"small"])]))
    found = store.fetch(run, ["A", "b"])
    assert flat(found[0]) == b"".join(pieces)
    assert flat(found[1]) == b"small"


@pytest.mark.parametrize(
    "contents",
    [
        (b"s", b"t"),
        (b"s", b"L" * LARGE),
        (b"L" * LARGE, b"s"),
        (b"L" * LARGE, b"M" * LARGE),
        (b"L" * LARGE, b"N" * LONG),
        (b"N" * LONG, b"O" * LONG),
    ],
    ids=[
        *("small, small", "small, large", "large, small", "large, large"),
        *("large, long", "long, long"),
    ],
)
def test_output_that_is_saved_again_is_the_latest(
    store: Store, run: RunId, contents: tuple[bytes, bytes]
) -> None:
    store.open(run, Opening([w0]))
    for content in (*contents, *contents):
        store.complete(run, w0, 1, Completion([("a", [content])]))
        assert flat(store.fetch(run, ["a"])[0]) == content


@pytest.mark.parametrize("length", [1, LARGE])
def test_whoever_is_told_of_a_task_finds_what_was_saved_with_its_marks(
    connect: Connect, run: RunId, length: int
) -> None:
    producer, owner = connect(), connect()
    producer.open(run, Opening([w0, w1]))
    thread, results = in_background(owner.receive, run, w1, "", PATIENCE)
    save: tuple[str, Blob] = ("a", [b"x" * length])
    producer.complete(run, w0, 1, Completion([save], [mark(t, w1, w0)]))
    thread.join(PATIENCE)
    assert fields(results[0]) == [("ready", t, b"")]
    assert flat(owner.fetch(run, ["a"])[0]) == b"x" * length


def test_names_and_values_may_be_any_bytes_and_letters(store: Store, run: RunId) -> None:
    name = "größe\r\n#1 \x00 {x} * ?"
    store.open(run, Opening([w0], {w0: [BINARY]}, {name: [BINARY]}))
    assert flat(store.enter(run, w0, 1).part) == BINARY
    store.complete(
        run,
        w0,
        1,
        Completion(
            [(name + "2", [BINARY, BINARY]), (name + "3", [BINARY * 1000])],
            [mark(TaskId(name), w1, w0, payload=BINARY)],
            [Letter("failed", name, (BINARY, b"", BINARY))],
        ),
    )
    found = [flat(data) for data in store.fetch(run, [name, name + "2", name + "3"])]
    assert found == [BINARY, BINARY * 2, BINARY * 1000]
    assert fields(store.receive(run, w1, "", 0)) == [("ready", name, BINARY)]
    assert fields(store.receive(run, CLIENT, "", 0)) == [("failed", name, BINARY, b"", BINARY)]
    store.post(run, Letter("lost", name, (BINARY,)))
    assert fields(store.receive(run, CLIENT, "", 0))[1:] == [("lost", name, BINARY)]
    assert store.park(run, w0, 1, "", BINARY)
    store.complete(run, w0, 1, Completion((), [mark(u, w0, w0)]))
    assert flat(store.enter(run, w0, 2).executed) == BINARY


def test_task_is_ready_when_the_last_producer_has_marked_it(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1, w2]))
    producers = (w2, w0, w1)
    for worker in (w0, w1):
        request = mark(t, w3, *producers, payload=worker.encode())
        assert store.complete(run, worker, 1, Completion((), [request])) == []
        assert store.receive(run, w3, "", 0) == []
    request = mark(t, w3, *producers, payload=b"w2")
    assert store.complete(run, w2, 1, Completion((), [request])) == [Claim(w3, 1)]
    assert fields(store.receive(run, w3, "", 0)) == [("ready", t, b"w2", b"w0", b"w1")]


def test_repeated_marks_count_once(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1]))
    repeated = Completion((), [mark(t, w2, w0, w1, payload=b"first")])
    for _ in range(3):
        assert store.complete(run, w0, 1, repeated) == []
    assert store.receive(run, w2, "", 0) == []


def test_repeated_marks_ready_no_task_twice(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1]))
    for worker in (w0, w1, w0, w1):
        store.complete(run, worker, 1, Completion((), [mark(t, w2, w0, w1)]))
    store.complete(run, w1, 1, Completion((), [mark(t, w2, w0, w1), mark(t, w2, w0, w1)]))
    assert fields(store.receive(run, w2, "", 0)) == [("ready", t, b"", b"")]


def test_first_payload_of_a_producer_counts(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1]))
    for worker, payload in ((w0, b"first"), (w0, b"second"), (w1, b"only")):
        request = mark(t, w2, w0, w1, payload=payload)
        store.complete(run, worker, 1, Completion((), [request]))
    assert fields(store.receive(run, w2, "", 0)) == [("ready", t, b"first", b"only")]


def test_worker_that_is_at_work_is_told_but_not_claimed(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1]))
    assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == []
    assert fields(store.receive(run, w1, "", 0)) == [("ready", t, b"")]


def test_worker_is_claimed_once_however_many_tasks_it_gets(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    marks = [mark(t, w1, w0), mark(u, w1, w0), mark(TaskId("v"), w2, w0)]
    assert store.complete(run, w0, 1, Completion((), marks)) == [Claim(w1, 1), Claim(w2, 1)]
    assert store.complete(run, w0, 1, Completion((), [mark(TaskId("w"), w1, w0)])) == []
    assert [letter.name for letter in store.receive(run, w1, "", 0)] == [t, u, "w"]


def test_exactly_one_of_many_racing_producers_gets_the_claim(connect: Connect, run: RunId) -> None:
    """Whoever's mark completes the set delivers, and nobody else.

    1. Sixteen workers finish the inputs of the same tasks at the same time.
    2. Each marks all of the tasks, some of them twice.
    3. Each task is delivered once, and one worker is told to start their owner.
    """
    producers = tuple(WorkerId(f"p{number}") for number in range(16))
    tasks = [TaskId(f"t{number}") for number in range(20)]
    stores = {worker: connect() for worker in producers}
    stores[producers[0]].open(run, Opening(producers))
    together = threading.Barrier(len(producers))

    def work(worker: WorkerId) -> list[Claim]:
        claims: list[Claim] = []
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


def test_message_sent_before_its_reader_starts_is_there(connect: Connect, run: RunId) -> None:
    sender = connect()
    sender.open(run, Opening([w0]))
    sender.complete(run, w0, 1, Completion((), [mark(t, w1, w0, payload=b"x")]))
    reader = connect()
    reader.enter(run, w1, 1)
    assert fields(reader.receive(run, w1, "", 0)) == [("ready", t, b"x")]


def test_reading_takes_nothing_out(connect: Connect, run: RunId) -> None:
    store = connect()
    store.open(run, Opening([w0]))
    for number in range(3):
        store.post(run, Letter("output", f"o{number}", (b"%d" % number,)))
    first = store.receive(run, CLIENT, "", 0)
    assert fields(first) == [("output", f"o{number}", b"%d" % number) for number in range(3)]
    assert store.receive(run, CLIENT, "", 0) == first
    assert connect().receive(run, CLIENT, "", 0) == first


def test_only_messages_behind_the_one_named_are_given(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    for number in range(4):
        store.complete(run, w0, 1, Completion(letters=[Letter("output", f"o{number}")]))
    letters = store.receive(run, CLIENT, "", 0)
    assert len({letter.id for letter in letters}) == 4
    for position, letter in enumerate(letters):
        assert store.receive(run, CLIENT, letter.id, 0) == letters[position + 1 :]


def test_letters_of_one_completion_keep_their_order(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    letters = [Letter("output", f"o{number}", (b"x",) * number) for number in range(20)]
    store.complete(run, w0, 1, Completion(letters=letters))
    expected = [("output", f"o{number}", *(b"x",) * number) for number in range(20)]
    assert fields(store.receive(run, CLIENT, "", 0)) == expected


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_no_message_in_time_is_an_empty_list(store: Store, run: RunId, timeout: float) -> None:
    store.open(run, Opening([w0]))
    assert store.receive(run, CLIENT, "", timeout) == []
    store.post(run, Letter("output", "o"))
    read = store.receive(run, CLIENT, "", timeout)[0].id
    assert store.receive(run, CLIENT, read, timeout) == []


def test_receive_waits_for_a_message(connect: Connect, run: RunId) -> None:
    reader, sender = connect(), connect()
    reader.open(run, Opening([w0]))
    read = ""
    for number in range(5):
        thread, results = in_background(reader.receive, run, CLIENT, read, PATIENCE)
        thread.join(0.01)
        assert results == []
        sender.post(run, Letter("output", f"o{number}"))
        thread.join(PATIENCE)
        assert fields(results[0]) == [("output", f"o{number}")]
        read = results[0][0].id


def test_waiting_for_mail_holds_up_nobody(store: Store, run: RunId) -> None:
    """One thread of a worker waits for mail while others save and fetch over the same store."""
    store.open(run, Opening([w0]))
    waiting = [in_background(store.receive, run, box, "", PATIENCE)[0] for box in (w0, CLIENT)]
    waiting[0].join(0.02)
    store.complete(run, w0, 1, Completion([("a", [b"a"])], executed=1))
    assert flat(store.fetch(run, ["a"])[0]) == b"a"
    assert all(thread.is_alive() for thread in waiting)
    store.hang_up(run, w0)
    store.hang_up(run, CLIENT)
    for thread in waiting:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_two_threads_may_wait_for_one_mailbox(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    waiting = [in_background(store.receive, run, CLIENT, "", PATIENCE) for _ in range(2)]
    waiting[0][0].join(0.02)
    store.post(run, Letter("output", "o"))
    for thread, results in waiting:
        thread.join(PATIENCE)
        assert fields(results[0]) == [("output", "o")]


def test_hanging_up_ends_the_waiting_and_nothing_else(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    for _ in range(3):
        thread, results = in_background(store.receive, run, w0, "", PATIENCE)
        thread.join(0.02)
        store.hang_up(run, w0)
        thread.join(PATIENCE)
        assert results == [[]]
    store.complete(run, w0, 1, Completion((), [mark(t, w0, w0)]))
    assert fields(store.receive(run, w0, "", PATIENCE)) == [("ready", t, b"")]


def test_hanging_up_just_before_the_waiting_ends_it_too(store: Store, run: RunId) -> None:
    """A worker's last moments.

    1. The thread that reads the mail sees that there is still something to do.
    2. The worker finishes, and hangs up; nobody waits.
    3. The thread begins to wait: it would do so until its timeout, and the worker with it.
    """
    store.open(run, Opening([w0]))
    for _ in range(2):
        store.hang_up(run, w0)
        thread, results = in_background(store.receive, run, w0, "", PATIENCE)
        thread.join(PATIENCE / 2)
        assert results == [[]]
    store.complete(run, w0, 1, Completion((), [mark(t, w0, w0)]))
    assert fields(store.receive(run, w0, "", PATIENCE)) == [("ready", t, b"")]


def test_hanging_up_whenever_ends_the_waiting(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    for _ in range(50):
        thread, results = in_background(store.receive, run, w0, "", PATIENCE)
        store.hang_up(run, w0)
        thread.join(PATIENCE / 2)
        assert results == [[]]


def test_closing_the_run_ends_the_waiting(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    waiting = [in_background(store.receive, run, box, "", PATIENCE) for box in (w0, CLIENT)]
    waiting[0][0].join(0.02)
    store.close(run, [w0])
    for thread, results in waiting:
        thread.join(PATIENCE / 2)
        assert not thread.is_alive()
        assert results == [[]] or isinstance(results[0], RunOver)


def test_parked_worker_is_claimed_by_the_next_delivery(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1]))
    store.enter(run, w1, 1)
    assert store.park(run, w1, 1, "", b"[4, 2]")
    for epoch in (2, 3):
        task = TaskId(f"t{epoch}")
        assert store.complete(run, w0, 1, Completion((), [mark(task, w1, w0)])) == [
            Claim(w1, epoch)
        ]
        assert flat(store.enter(run, w1, epoch).executed) == (b"[4, 2]" if epoch == 2 else b"[]")
        letters = store.receive(run, w1, "", 0)
        assert letters[-1].name == task
        assert store.park(run, w1, epoch, letters[-1].id, b"[]")


def test_worker_with_unread_mail_may_not_park(store: Store, run: RunId) -> None:
    """A delivery and a worker that is about to leave.

    1. The worker has read everything and wants to park.
    2. A task is delivered; the worker is claimed, so nobody starts it.
    3. Were it let go now, the task would wait for ever.
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


def test_task_delivered_to_a_worker_that_parks_is_never_forgotten(
    connect: Connect, run: RunId
) -> None:
    """Either the parking is refused, or the delivery claims; never both, never neither."""
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
        thread.join(PATIENCE)
        assert results == ([[Claim(w1, epoch + 1)]] if left else [[]])
        epoch += left
        read = parking.receive(run, w1, read, 0)[-1].id


def test_progress_adds_up_the_latest_count_of_each_start(store: Store, run: RunId) -> None:
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
