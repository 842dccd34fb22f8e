"""Announcements, and marks in another worker's name: the rules of `storage/base.py`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from store_examples import BINARY, LARGE, Connect, fields, flat, mark, t, u, w0, w1, w2

from observing import PATIENCE
from shoal.storage.base import Announcement, Claim, Completion, MarkRequest, Opening, Store
from shoal.types import RunId


def announced(payload: bytes = b"") -> Completion:
    return Completion(announcements=[Announcement(u, w1, payload)])


def test_announcement_is_a_message_to_its_worker(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1]))
    assert store.complete(run, w0, 1, announced(BINARY)) == []
    assert fields(store.receive(run, w1, "", PATIENCE)) == [("saved", u, BINARY)]


def test_announcement_starts_nobody_and_waits_for_its_reader(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0]))
    assert store.complete(run, w0, 1, announced(b"1")) == []
    assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == [Claim(w1, 1)]
    letters = fields(store.receive(run, w1, "", PATIENCE))
    assert letters == [("saved", u, b"1"), ("ready", t, b"")]


def test_whoever_is_told_of_an_announced_output_finds_it(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1]))
    saves = [("a", [b"a"]), ("A", [b"A" * LARGE])]
    announcements = [Announcement(u, w1, b"")]
    marks = [mark(t, w1, w0)]
    store.complete(run, w0, 1, Completion(saves, marks, (), 0, announcements))
    assert [letter.kind for letter in store.receive(run, w1, "", PATIENCE)] == ["saved", "ready"]
    assert [flat(data) for data in store.fetch(run, ["a", "A"])] == [b"a", b"A" * LARGE]


def test_worker_with_an_unread_announcement_may_not_park(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1]))
    store.complete(run, w0, 1, announced())
    assert not store.park(run, w1, 1, "", b"")
    [letter] = store.receive(run, w1, "", 0)
    assert store.park(run, w1, 1, letter.id, b"")


def test_announcement_does_not_start_a_parked_worker_but_a_ready_task_does(
    store: Store, run: RunId
) -> None:
    store.open(run, Opening([w0, w1]))
    assert store.park(run, w1, 1, "", b"[3]")
    assert store.complete(run, w0, 1, announced()) == []
    assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == [Claim(w1, 2)]
    assert store.enter(run, w1, 2).executed == b"[3]"
    assert [letter.kind for letter in store.receive(run, w1, "", 0)] == ["saved", "ready"]


def stand_in(payload: bytes = b"") -> Completion:
    """What w1 sends when it has done w0's share of its own task."""
    return Completion((), [MarkRequest(t, w1, (w0, w2), payload, producer=w0)])


def own(payload: bytes = b"") -> Completion:
    return Completion((), [MarkRequest(t, w1, (w0, w2), payload)])


def test_mark_in_another_workers_name_counts_as_that_workers(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1, w2]))
    store.complete(run, w1, 1, stand_in(b"copied"))
    assert store.receive(run, w1, "", 0) == []
    store.complete(run, w2, 1, own(b"2"))
    assert fields(store.receive(run, w1, "", 0)) == [("ready", t, b"copied", b"2")]


def test_first_of_two_marks_of_a_share_counts_whoever_sent_it(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1, w2]))
    store.complete(run, w0, 1, own(b"0"))
    store.complete(run, w1, 1, stand_in(b"copied"))
    store.complete(run, w2, 1, own(b"2"))
    assert fields(store.receive(run, w1, "", 0)) == [("ready", t, b"0", b"2")]


def test_late_mark_of_a_share_that_was_done_readies_nothing_again(store: Store, run: RunId) -> None:
    store.open(run, Opening([w0, w1, w2]))
    store.complete(run, w2, 1, own(b"2"))
    store.complete(run, w1, 1, stand_in(b"copied"))
    store.complete(run, w0, 1, own(b"0"))
    assert fields(store.receive(run, w1, "", 0)) == [("ready", t, b"copied", b"2")]


def test_task_is_ready_once_however_a_copy_and_its_worker_race(
    connect: Connect, run: RunId
) -> None:
    connect().open(run, Opening([w0, w1, w2]))
    said = [(connect(), worker, what) for worker, what in ((w0, own()), (w1, stand_in()))]
    said.append((connect(), w2, own()))
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda each: each[0].complete(run, each[1], 1, each[2]), said))
    assert answers == [[], [], []]
    assert [letter.kind for letter in connect().receive(run, w1, "", 0)] == ["ready"]
