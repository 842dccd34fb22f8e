"""Announcements in every store, and marks in another worker's name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from shoal.storage.base import Announcement, Claim, Completion, MarkRequest, Opening, Store
from shoal.storage.codec import Blob
from shoal.testing.store_examples import (
    BINARY,
    LARGE,
    Connect,
    fields,
    flat,
    kinds,
    mark,
    t,
    u,
    w0,
    w1,
    w2,
)
from shoal.testing.waiting import TIMEOUT
from shoal.types import RunId


def announced(payload: bytes = b"") -> Completion:
    """Return what w0 sends to tell w1 that an output is saved."""
    return Completion(announcements=[Announcement(u, w1, payload)])


def stand_in(payload: bytes = b"") -> Completion:
    """Return what w1 sends when it has copied w0's share of w1's task."""
    return Completion((), [MarkRequest(t, w1, (w0, w2), payload, producer=w0)])


def own(payload: bytes = b"") -> Completion:
    """Return what a producer sends when it has done its own share."""
    return Completion((), [MarkRequest(t, w1, (w0, w2), payload)])


class StoreOptimizations:
    """Workers hear of outputs early, and a copy of a task counts like the task."""

    def test_announcement_is_a_message_to_its_worker(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0, w1]))
        assert store.complete(run, w0, 1, announced(BINARY)) == []
        assert fields(store.receive(run, w1, "", TIMEOUT)) == [("saved", u, BINARY)]

    def test_announcement_starts_nobody_and_waits_for_its_reader(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0]))
        assert store.complete(run, w0, 1, announced(b"1")) == []
        assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == [Claim(w1, 1)]
        letters = fields(store.receive(run, w1, "", TIMEOUT))
        assert letters == [("saved", u, b"1"), ("ready", t, b"")]

    def test_the_reader_of_an_announcement_finds_the_output(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0, w1]))
        saves: list[tuple[str, Blob]] = [("a", [b"a"]), ("A", [b"A" * LARGE])]
        announcements = [Announcement(u, w1, b"")]
        marks = [mark(t, w1, w0)]
        store.complete(run, w0, 1, Completion(saves, marks, (), 0, announcements))
        assert kinds(store.receive(run, w1, "", TIMEOUT)) == ["saved", "ready"]
        assert [flat(data) for data in store.fetch(run, ["a", "A"])] == [b"a", b"A" * LARGE]

    def test_worker_with_an_unread_announcement_may_not_park(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0, w1]))
        store.complete(run, w0, 1, announced())
        assert not store.park(run, w1, 1, "", b"")
        [letter] = store.receive(run, w1, "", 0)
        assert store.park(run, w1, 1, letter.id, b"")

    def test_announcement_does_not_start_a_parked_worker_but_a_ready_task_does(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0, w1]))
        assert store.park(run, w1, 1, "", b"[3]")
        assert store.complete(run, w0, 1, announced()) == []
        assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == [Claim(w1, 2)]
        assert store.enter(run, w1, 2).executed == b"[3]"
        assert kinds(store.receive(run, w1, "", 0)) == ["saved", "ready"]

    def test_mark_in_another_workers_name_counts_as_that_workers(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0, w1, w2]))
        store.complete(run, w1, 1, stand_in(b"copied"))
        assert store.receive(run, w1, "", 0) == []
        store.complete(run, w2, 1, own(b"2"))
        assert fields(store.receive(run, w1, "", 0)) == [("ready", t, b"copied", b"2")]

    def test_first_of_two_marks_of_a_share_counts_whoever_sent_it(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0, w1, w2]))
        store.complete(run, w0, 1, own(b"0"))
        store.complete(run, w1, 1, stand_in(b"copied"))
        store.complete(run, w2, 1, own(b"2"))
        assert fields(store.receive(run, w1, "", 0)) == [("ready", t, b"0", b"2")]

    def test_a_late_mark_of_a_finished_share_delivers_nothing_again(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0, w1, w2]))
        store.complete(run, w2, 1, own(b"2"))
        store.complete(run, w1, 1, stand_in(b"copied"))
        store.complete(run, w0, 1, own(b"0"))
        assert fields(store.receive(run, w1, "", 0)) == [("ready", t, b"copied", b"2")]

    def test_task_is_ready_once_however_a_copy_and_its_worker_race(
        self, connect: Connect, run: RunId
    ) -> None:
        connect().open(run, Opening([w0, w1, w2]))
        said = [(connect(), worker, what) for worker, what in ((w0, own()), (w1, stand_in()))]
        said.append((connect(), w2, own()))
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda each: each[0].complete(run, each[1], 1, each[2]), said))
        assert answers == [[], [], []]
        assert kinds(connect().receive(run, w1, "", 0)) == ["ready"]
