"""Runs in every store: opening, entering, epochs, closing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from shoal.errors import RunOver
from shoal.storage.base import (
    Announcement,
    Claim,
    Completion,
    Entry,
    Opening,
    Store,
)
from shoal.storage.codec import Blob
from shoal.storage.keys import CLIENT
from shoal.storage.letters import OutputReady
from shoal.testing.pytest_required import pytest
from shoal.testing.store_examples import (
    BINARY,
    LARGE,
    SAID,
    Connect,
    flat,
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
from shoal.types import RunId, TaskId


class StoreRuns:
    """A run exists from `open` to `close`; the store accepts only the latest start of a worker."""

    @pytest.mark.parametrize("what", SAID)
    def test_every_operation_is_refused_before_its_run_opens(
        self, store: Store, run: RunId, what: str
    ) -> None:
        with pytest.raises(RunOver):
            SAID[what](store, run)

    @pytest.mark.parametrize("what", SAID)
    def test_every_operation_is_refused_after_its_run_closed(
        self, store: Store, run: RunId, what: str
    ) -> None:
        use(store, run)
        store.close(run, [w0, w1, w2, w3])
        with pytest.raises(RunOver):
            SAID[what](store, run)

    def test_a_closed_run_has_no_progress(self, store: Store, run: RunId) -> None:
        use(store, run)
        store.close(run, [w0, w1, w2, w3])
        assert store.progress(run) == 0

    def test_closing_a_run_leaves_other_runs_alone(self, store: Store, run: RunId) -> None:
        other = RunId(run + "-other")
        use(store, run)
        use(store, other)
        store.close(run, [w0, w1, w2, w3])
        assert flat(store.fetch(other, ["a"])[0]) == b"a"
        assert flat(store.fetch(other, ["A"])[0]) == b"A" * LARGE
        assert len(store.receive(other, CLIENT, "", 0)) == 2

    def test_worker_finds_its_part_when_it_enters(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0, w1], {w0: [b"some", BINARY]}))
        entry = store.enter(run, w0, 1)
        assert flat(entry.part) == b"some" + BINARY
        assert entry.executed is None
        assert store.enter(run, w1, 1) == Entry(None, None)

    def test_second_invocation_of_a_start_is_turned_away(
        self, connect: Connect, run: RunId
    ) -> None:
        """A platform that retries an invocation does no harm.

        1. The platform starts a worker twice for one claim.
        2. Both invocations enter with the same epoch.
        3. The first continues; the second is refused.
        """
        first, second = connect(), connect()
        first.open(run, Opening([w0]))
        first.enter(run, w0, 1)
        with pytest.raises(RunOver, match=w0):
            second.enter(run, w0, 1)
        assert first.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == [Claim(w1, 1)]

    def test_one_of_many_invocations_of_a_start_enters(self, connect: Connect, run: RunId) -> None:
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
    def test_any_epoch_but_the_latest_is_refused(
        self, store: Store, run: RunId, epoch: int
    ) -> None:
        started_again(store, run)
        with pytest.raises(RunOver):
            store.enter(run, w1, epoch)
        with pytest.raises(RunOver):
            store.park(run, w1, epoch, "", b"")
        with pytest.raises(RunOver):
            store.complete(run, w1, epoch, Completion(executed=7))
        assert store.progress(run) == 0

    def test_nothing_that_an_older_epoch_sends_takes_effect(self, store: Store, run: RunId) -> None:
        """A worker that was only paused wakes up after another start replaced it."""
        started_again(store, run)
        saves: list[tuple[str, Blob]] = [
            ("a", [b"stale"]),
            ("A", [b"S" * LARGE]),
            ("new", [b"n"]),
            ("NEW", [b"N" * LARGE]),
        ]
        letters = [OutputReady(TaskId("a"))]
        announcements = [Announcement(u, w0, b"")]
        stale = Completion(saves, [mark(u, w0, w1)], letters, 9, announcements)
        with pytest.raises(RunOver):
            store.complete(run, w1, 1, stale)
        found = [flat(data) for data in store.fetch(run, ["a", "A", "new", "NEW"])]
        assert found == [b"kept", b"K" * LARGE, None, None]
        assert store.receive(run, CLIENT, "", 0) == []
        assert store.receive(run, w0, "", 0) == []
        assert store.progress(run) == 0

    def test_worker_that_was_never_claimed_can_not_enter(self, store: Store, run: RunId) -> None:
        store.open(run, Opening([w0], {w1: [b"part"]}))
        with pytest.raises(RunOver):
            store.enter(run, w1, 1)
