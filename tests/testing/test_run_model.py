"""A run as plain data, at times that the tests choose."""

from __future__ import annotations

import pytest

from shoal.errors import RunOver
from shoal.storage.base import Completion, MarkRequest, Opening
from shoal.storage.keys import CLIENT
from shoal.storage.letters import OutputReady, WorkerLost
from shoal.testing.run_model import RunModel
from shoal.types import Loss, LossReason, RunId, TaskId, WorkerId

w0, w1 = WorkerId("w0"), WorkerId("w1")
t = TaskId("t")


def opened(*, restarts: int = 3, lease: float = 10.0, **options: object) -> RunModel:
    opening = Opening([w0], lease=lease, restarts=restarts, **options)  # type: ignore[arg-type]
    return RunModel(RunId("run"), opening, now=0.0)


def lost(run: RunModel, now: float) -> list[tuple[str, int]]:
    return [(claim.worker, claim.epoch) for claim in run.supervise((), now)]


def test_the_first_lease_begins_when_somebody_looks() -> None:
    run = opened()
    assert lost(run, now=100.0) == []
    assert lost(run, now=110.0) == []
    assert lost(run, now=110.1) == [(w0, 2)]


def test_a_claim_has_a_lease_of_its_own() -> None:
    run = opened()
    run.supervise((), now=0.0)
    assert lost(run, now=11.0) == [(w0, 2)]
    assert lost(run, now=21.0) == []
    assert lost(run, now=21.1) == [(w0, 3)]


@pytest.mark.parametrize("sign", ["enter", "complete", "beat", "alive"])
def test_a_sign_of_life_renews_the_lease(sign: str) -> None:
    run = opened()
    run.supervise((), now=0.0)
    if sign == "enter":
        run.enter(w0, 1, now=9.0)
    elif sign == "complete":
        run.complete(w0, 1, Completion(), now=9.0)
    elif sign == "beat":
        run.beat(w0, 1, 100, now=9.0)
    else:
        run.supervise([(w0, 1)], now=9.0)
    assert lost(run, now=19.0) == []
    assert lost(run, now=19.1) == [(w0, 2)]


def test_an_older_start_renews_no_lease() -> None:
    run = opened()
    run.restart(w0, 1, "cause", "", now=0.0)
    run.beat(w0, 1, 100, now=9.0)
    assert run.supervise([(w0, 1)], now=9.0) == []
    assert lost(run, now=10.1) == [(w0, 3)]
    assert run.moved == 100


@pytest.mark.parametrize("leaving", ["park", "finish", "stop"])
def test_a_worker_that_leaves_has_no_lease(leaving: str) -> None:
    run = opened()
    run.enter(w0, 1, now=0.0)
    if leaving == "park":
        assert run.park(w0, 1, "", b"")
    elif leaving == "finish":
        run.complete(w0, 1, Completion(finished=True), now=0.0)
    else:
        assert run.stop() == [w0]
    assert lost(run, now=1000.0) == []


def test_a_worker_that_vanishes_too_often_is_reported_and_not_restarted() -> None:
    run = opened(restarts=1)
    run.supervise((), now=0.0)
    assert lost(run, now=11.0) == [(w0, 2)]
    assert lost(run, now=22.0) == []
    assert [each.letter for each in run.letters(CLIENT)] == [
        WorkerLost(w0, Loss(LossReason.VANISHED))
    ]
    assert lost(run, now=33.0) == []


def test_a_run_expires_after_its_time_to_live_unless_it_is_resumed() -> None:
    run = opened(ttl=100)
    assert not run.expired(now=100.0)
    assert run.expired(now=100.1)
    run.expire(5.0, now=50.0)
    assert run.expired(now=55.1)
    run.resume(Opening((), ttl=20), now=55.0)
    assert not run.expired(now=75.0)


def test_a_repeated_hand_over_gets_the_same_claim_until_the_next_start_is_lost() -> None:
    run = opened()
    run.enter(w0, 1, now=0.0)
    assert [run.hand_over(w0, 1, b"[1]", now=0.0).epoch for _ in range(2)] == [2, 2]
    run.restart(w0, 2, "cause", "", now=0.0)
    with pytest.raises(RunOver, match="Start 1 of worker w0 in run run"):
        run.hand_over(w0, 1, b"[1]", now=0.0)


def test_marks_of_unowned_tasks_are_not_left_to_a_worker_named_like_their_producer() -> None:
    run = opened(common=[b"common"])
    run.enter(w0, 1, now=0.0)
    unowned = MarkRequest(t, None, (w0, "other"), b"payload", w0)
    run.complete(w0, 1, Completion(marks=[unowned]), now=0.0)
    run.restart(w0, 1, "cause", "", now=0.0)
    left = run.enter(w0, 2, now=0.0).leftovers
    assert left is not None
    assert left.marks == {}
    assert run.marked() == frozenset()


def test_messages_have_ids_that_are_never_given_again() -> None:
    run = opened()
    run.complete(w0, 1, Completion(marks=[MarkRequest(t, w0, (w0,), b"")]), now=0.0)
    run.stop()
    run.resume(Opening(()), now=0.0)
    assert [letter.id for letter in run.letters(w0)] == ["1"]
    run.stop()
    assert [letter.id for letter in run.letters(w0, "1")] == ["3"]
    run.post(OutputReady(t))
    assert [letter.id for letter in run.letters(CLIENT)] == ["1"]
