"""Lost workers in every store: they are noticed, restarted up to a limit, and resumed."""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import RunOver
from shoal.storage.base import Claim, Completion, Opening, Store
from shoal.storage.codec import Blob
from shoal.storage.keys import CLIENT
from shoal.storage.letters import Letter, OutputReady, WorkerFinished
from shoal.testing.pytest_required import pytest
from shoal.testing.store_examples import (
    fields,
    kinds,
    mark,
    t,
    u,
    w0,
    w1,
    w2,
)
from shoal.testing.waiting import eventually
from shoal.types import RunId, WorkerId

LEASE = 0.05
RENEWED = 0.5
"""A lease that is renewed in time even if the machine is busy."""

KINDS = {w0: "2048", w1: "4096 1.5"}


def opened(
    store: Store,
    run: RunId,
    *starts: WorkerId,
    lease: float = LEASE,
    restarts: int = 3,
) -> None:
    """Open a run with short leases, in which some workers start; w0 if none is named."""
    parts: dict[WorkerId, Blob] = {w0: [b"part 0"], w1: [b"part 1"]}
    opening = Opening(starts or [w0], parts, kinds=KINDS, lease=lease, restarts=restarts)
    store.open(run, opening)


def lost(store: Store, run: RunId) -> list[tuple[str, int, str]]:
    """Tend a run until workers are found lost; return their replacements."""
    store.supervise(run)  # the first leases begin now
    found: list[tuple[str, int, str]] = []

    def supervised() -> bool:
        found.extend((claim.worker, claim.epoch, claim.kind) for claim in store.supervise(run))
        return bool(found)

    eventually(supervised)
    return found


def wait_for_lease(store: Store, run: RunId) -> None:
    """Wait until the lease of a silent worker in another run has expired."""
    other = RunId(f"{run}-other")
    opened(store, other)
    assert lost(store, other)
    store.close(other, [w0, w1])


def first_lost(store: Store, run: RunId, renew: Callable[[], list[Claim]]) -> list[WorkerId]:
    """Renew w0's lease until a worker is lost; w1 is silent."""
    opened(store, run, w0, w1, lease=RENEWED)
    store.enter(run, w0, 1)
    store.enter(run, w1, 1)
    found: list[WorkerId] = []

    def supervised() -> bool:
        found.extend(claim.worker for claim in renew())
        return bool(found)

    assert eventually(supervised)
    return found


class StoreLosses:
    """A worker that falls silent is replaced, and the next start finds what it left."""

    def test_a_start_that_never_enters_is_replaced(self, store: Store, run: RunId) -> None:
        opened(store, run)
        assert lost(store, run) == [(w0, 2, "2048")]
        with pytest.raises(RunOver):
            store.enter(run, w0, 1)
        assert store.enter(run, w0, 2).leftovers is not None

    def test_a_silent_worker_is_replaced_and_refused(self, store: Store, run: RunId) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        assert lost(store, run) == [(w0, 2, "2048")]
        with pytest.raises(RunOver):
            store.complete(run, w0, 1, Completion())

    def test_a_worker_that_moves_bytes_keeps_its_lease(self, store: Store, run: RunId) -> None:
        beats = 0

        def renew() -> list[Claim]:
            nonlocal beats
            store.beat(run, w0, 1, 1000)
            beats += 1
            return store.supervise(run)

        assert store.moved(run) == 0
        assert first_lost(store, run, renew) == [w1]
        assert store.moved(run) == 1000 * beats

    def test_bytes_moved_by_an_older_start_renew_no_lease(self, store: Store, run: RunId) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        assert lost(store, run) == [(w0, 2, "2048")]
        found: list[int] = []

        def supervised() -> bool:
            store.beat(run, w0, 1, 1000)
            store.beat(run, w1, 1, 1000)  # never started
            found.extend(claim.epoch for claim in store.supervise(run))
            return bool(found)

        assert eventually(supervised)
        assert found == [3]
        store.close(run, [w0])
        store.beat(run, w0, 3, 1000)
        assert store.moved(run) == 0

    def test_a_worker_seen_alive_keeps_its_lease(self, store: Store, run: RunId) -> None:
        def renew() -> list[Claim]:
            return store.supervise(run, [(w0, 1), (w1, 7)])

        assert first_lost(store, run, renew) == [w1]
        store.complete(run, w0, 1, Completion())

    def test_a_worker_that_finished_or_parked_is_not_lost(self, store: Store, run: RunId) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        claims = store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)], finished=True))
        (claim,) = claims
        assert isinstance(claim, Claim)
        assert (claim.worker, claim.kind) == (w1, "4096 1.5")
        store.enter(run, w1, 1)
        (letter,) = store.receive(run, w1, "", 0)
        assert store.park(run, w1, 1, letter.id, b"[]")
        wait_for_lease(store, run)
        assert store.supervise(run) == []

    def test_the_next_start_finds_what_the_lost_one_left(self, store: Store, run: RunId) -> None:
        opened(store, run)
        assert store.enter(run, w0, 1).leftovers is None
        letters: list[Letter] = [OutputReady(u, b"value"), WorkerFinished(w2, b"")]
        marks = [mark(t, w1, w0, w2, payload=b"mine"), mark(u, w1, w0, payload=b"too")]
        saves: list[tuple[str, Blob]] = [("a", [b"a"]), ("A", [bytes(100_000)])]
        store.complete(run, w0, 1, Completion(saves, marks, letters))
        claim = store.restart(run, w0, 1, "task 3")
        assert claim is not None
        assert (claim.epoch, claim.kind) == (2, "2048")
        entry = store.enter(run, w0, 2)
        assert bytes(entry.part or b"") == b"part 0"
        left = entry.leftovers
        assert left is not None
        assert left.saved == {"a", "A"}
        assert {task: bytes(payload) for task, payload in left.marks.items()} == {
            t: b"mine",
            u: b"too",
        }
        assert left.handed_in == {u}
        assert left.started == {w0, w1}

    def test_after_a_clean_park_nothing_is_left_over(self, store: Store, run: RunId) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)]))
        store.enter(run, w1, 1)
        (letter,) = store.receive(run, w1, "", 0)
        assert store.park(run, w1, 1, letter.id, b"[1]")
        store.complete(run, w0, 1, Completion((), [mark(u, w1, w0)]))
        entry = store.enter(run, w1, 2)
        assert (bytes(entry.executed or b""), entry.leftovers) == (b"[1]", None)
        assert store.restart(run, w1, 2, "x") is not None
        assert store.enter(run, w1, 3).leftovers is not None

    def test_a_worker_is_not_restarted_if_one_cause_recurs_too_often(
        self, store: Store, run: RunId
    ) -> None:
        opened(store, run, restarts=2)
        for epoch in (1, 2):
            assert store.restart(run, w0, epoch, "task 3") is not None
        assert store.restart(run, w0, 3, "task 3") is None

    def test_only_the_first_to_notice_an_end_restarts_the_worker(
        self, store: Store, run: RunId
    ) -> None:
        opened(store, run)
        assert store.restart(run, w0, 1, "x") is not None
        with pytest.raises(RunOver):
            store.restart(run, w0, 1, "x")

    def test_a_worker_that_has_grown_keeps_what_it_has(self, store: Store, run: RunId) -> None:
        opened(store, run)
        claim = store.restart(run, w0, 1, "x", "8192")
        assert claim is not None
        assert claim.kind == "8192"
        assert lost(store, run) == [(w0, 3, "8192")]

    def test_a_worker_that_keeps_vanishing_is_reported(self, store: Store, run: RunId) -> None:
        opened(store, run, restarts=1)
        assert lost(store, run) == [(w0, 2, "2048")]
        eventually(lambda: not store.supervise(run) and bool(store.receive(run, CLIENT, "", 0)))
        ((kind, name, _),) = fields(store.receive(run, CLIENT, "", 0))
        assert (kind, name) == ("lost", w0)
        assert store.supervise(run) == []

    def test_a_flexible_worker_is_started_once_and_finds_its_inputs(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0], common=[b"common"], kind="2048"))
        store.enter(run, w0, 1)
        starts = [(w1, b"for w1"), (w2, b"for w2")]
        claims = store.complete(run, w0, 1, Completion(starts=starts))
        assert [(c.worker, c.epoch, c.kind) for c in claims] == [(w1, 1, "2048"), (w2, 1, "2048")]  # type: ignore[union-attr]
        assert store.complete(run, w0, 1, Completion(starts=starts)) == []
        assert bytes(store.enter(run, w1, 1).given or b"") == b"for w1"

    def test_of_two_starts_the_first_to_finish_ends_the_other(
        self, store: Store, run: RunId
    ) -> None:
        for first, second in ((1, 2), (2, 1)):
            opened(store, run)
            store.enter(run, w0, 1)
            claim = store.twin(run, w0)
            assert claim is not None
            assert (claim.epoch, claim.kind) == (2, "2048")
            assert store.twin(run, w0) is None
            assert store.enter(run, w0, 2).leftovers is not None
            for epoch in (1, 2):
                store.complete(run, w0, epoch, Completion(executed=1))
            store.complete(run, w0, first, Completion(finished=True))
            with pytest.raises(RunOver):
                store.complete(run, w0, second, Completion())
            store.close(run, [w0, w1])

    def test_of_two_starts_one_may_leave(self, store: Store, run: RunId) -> None:
        for leaves, stays in ((1, 2), (2, 1)):
            opened(store, run)
            store.enter(run, w0, 1)
            store.twin(run, w0)
            store.enter(run, w0, 2)
            assert store.park(run, w0, leaves, "", b"[]")
            store.complete(run, w0, stays, Completion(finished=True))
            with pytest.raises(RunOver):
                store.complete(run, w0, leaves, Completion())
            store.close(run, [w0, w1])

    def test_a_worker_that_hands_over_restarts_as_if_it_had_parked(
        self, store: Store, run: RunId
    ) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        claim = store.hand_over(run, w0, 1, b"[3]")
        assert (claim.worker, claim.epoch, claim.kind) == (w0, 2, "2048")
        with pytest.raises(RunOver):
            store.complete(run, w0, 1, Completion())
        entry = store.enter(run, w0, 2)
        assert (bytes(entry.executed or b""), entry.leftovers) == (b"[3]", None)

    def test_the_marks_of_a_run_can_be_listed(self, store: Store, run: RunId) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        assert store.marked(run) == set()
        store.complete(run, w0, 1, Completion((), [mark(t, w1, w0, w2)]))
        assert store.marked(run) == {(t, w0)}

    def test_a_run_that_is_stopped_tells_its_workers_and_can_be_resumed(
        self, store: Store, run: RunId
    ) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        letters = [OutputReady(t, b"given"), OutputReady(u)]  # one value, one reference
        store.complete(run, w0, 1, Completion([("a", [b"a"])], letters=letters))
        assert store.stop(run) == [w0]
        assert kinds(store.receive(run, w0, "", 0)) == ["stop"]
        wait_for_lease(store, run)
        assert store.supervise(run) == []
        opening = Opening((), {w0: [b"new"]}, {"constant": [b"c"]}, kinds=KINDS, lease=LEASE)
        claims, last = store.resume(run, opening)
        assert [(claim.worker, claim.epoch) for claim in claims] == [(w0, 2)]
        assert store.receive(run, CLIENT, "", 0)[-1].id == last
        assert store.receive(run, w0, "", 0) == []
        entry = store.enter(run, w0, 2)
        assert bytes(entry.part or b"") == b"new"
        assert entry.leftovers is not None
        assert entry.leftovers.saved >= {"a", "constant"}
        assert entry.leftovers.handed_in == {t}

    def test_a_resumed_worker_parks_once_it_has_read_what_was_sent_before_the_stop(
        self, store: Store, run: RunId
    ) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        store.complete(run, w0, 1, Completion((), [mark(t, w0, w0)]))
        store.stop(run)
        store.resume(run, Opening((), kinds=KINDS))
        store.enter(run, w0, 2)
        (letter,) = store.receive(run, w0, "", 0)
        assert store.receive(run, w0, letter.id, 0) == []
        assert store.park(run, w0, 2, letter.id, b"[]")

    def test_a_worker_that_has_grown_keeps_what_it_has_when_its_run_is_resumed(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0], common=[b"common"], kind="2048"))
        assert store.restart(run, w0, 1, "x", "8192") is not None
        ((claim,), _) = store.resume(run, Opening((), common=[b"common"], kind="2048"))
        assert claim.kind == "8192"

    def test_a_repeated_hand_over_is_answered_the_same(self, store: Store, run: RunId) -> None:
        opened(store, run)
        store.enter(run, w0, 1)
        assert [store.hand_over(run, w0, 1, b"[3]").epoch for _ in range(2)] == [2, 2]

    def test_finished_flexible_workers_are_resumed_only_if_outputs_are_lost(
        self, store: Store, run: RunId
    ) -> None:
        store.open(run, Opening([w0, w1], common=[b"common"], kind="2048"))
        for worker in (w0, w1):
            store.enter(run, worker, 1)
        store.complete(run, w0, 1, Completion(finished=True))
        claims, _ = store.resume(run, Opening((), common=[b"common"], kind="2048"))
        assert [claim.worker for claim in claims] == [w1]
        gone = Opening((), common=[b"common"], kind="2048")
        claims, _ = store.resume(run, gone, forgotten=True)
        assert {claim.worker for claim in claims} == {w0, w1}

    def test_a_closed_run_cannot_be_resumed(self, store: Store, run: RunId) -> None:
        opened(store, run)
        store.close(run, [w0, w1])
        with pytest.raises(RunOver):
            store.resume(run, Opening(()))
