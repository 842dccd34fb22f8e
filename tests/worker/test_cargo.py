"""The packer turns a round trip into a completion for the store."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from shoal.clock import RealClock
from shoal.errors import NotPicklable
from shoal.execution.effects import (
    Abort,
    Announce,
    Effect,
    Finish,
    HandIn,
    Invoke,
    Leave,
    Mark,
    Park,
    Save,
)
from shoal.execution.outbox import Order, Trip
from shoal.execution.plan import FlexiblePart, PlannedPart
from shoal.storage.codec import decode, encode
from shoal.storage.keys import signed_mark, signed_output
from shoal.storage.letters import (
    Failure,
    OutputReady,
    TaskFailed,
    WorkerFinished,
    WorkerParked,
)
from shoal.types import Resources, TaskId, WorkerId
from shoal.worker.cargo import Packer
from shoal.worker.messages import InlineOutputs, Messages
from shoal.worker.recorder import SAVE, Recorder

W0, W1 = WorkerId("w0"), WorkerId("w1")
A, B = TaskId("a"), TaskId("b")
KEY = b"\0"
NONE = InlineOutputs({}, {})
FAILURE = Failure(W0, "it can't be pickled")
PART = PlannedPart(
    worker=W0,
    resources=Resources(256, 1.0),
    upstream={A: (), B: ()},
    numbers=(0, 1),
    shared={A: (W0, W1)},
    owners={},
    feeds={},
)


class Watched:
    """A worker that can describe a failure."""

    def __init__(self) -> None:
        self.recorder = Recorder(W0, PART.numbered(), RealClock())

    def failure(self, task: TaskId, error: BaseException) -> TaskFailed:
        assert isinstance(error, NotPicklable)
        return TaskFailed(task, FAILURE)


@pytest.fixture
def worker() -> Any:
    return Watched()


@pytest.fixture
def packer(worker: Any) -> Packer:
    return Packer(PART, worker, Messages(PART, KEY, worker.recorder))


def trip_of(
    *orders: tuple[Effect, Any], closing: Effect | None = None, given: Any = None
) -> Trip[Any]:
    load = [Order(*order) for order in orders]
    saves = [order.effect.task for order in load if isinstance(order.effect, Save)]
    last = None if closing is None else Order(closing, given)
    return Trip(load, saves, last, entering=False, departed=0.0, executed=7)


def test_each_order_becomes_its_part_of_a_completion(packer: Packer) -> None:
    blob = encode("large", KEY, signed_output(A))
    packer.add_save(A, blob, 0.0)
    trip = trip_of(
        (Save(A), None),
        (Mark(A, W1, ("w0", "w1"), (), (A,)), NONE),
        (Announce(A, W1), None),
        (HandIn(B, saved=False), InlineOutputs({B: 1}, {})),
        (Abort(B), FAILURE),
    )
    completion = packer.packed(trip).completion(trip)
    assert completion.saves == [(A, blob)]
    assert [mark.task for mark in completion.marks] == [A]
    assert [(each.task, each.owner) for each in completion.announcements] == [(A, W1)]
    first, second = completion.letters
    assert isinstance(first, OutputReady)
    assert (first.task, second) == (B, TaskFailed(B, FAILURE))
    assert (completion.executed, completion.finished, completion.entering) == (7, False, False)


@pytest.mark.parametrize("saving", [True, False])
def test_a_mark_says_when_it_was_sent_unless_outputs_travel_with_it(
    packer: Packer, saving: bool
) -> None:
    orders: list[tuple[Effect, Any]] = [(Mark(A, W1, ("w0", "w1"), (), ()), NONE)]
    if saving:
        packer.add_save(B, encode("large", KEY, signed_output(B)), 0.0)
        orders.append((Save(B), None))
    [mark] = packer.packed(trip_of(*orders)).marks
    sent = decode(mark.payload, KEY, signed_mark(A, W0))[0]
    assert (sent == 0.0) == saving


@pytest.mark.parametrize(
    ("closing", "given", "last", "finished"),
    [
        (Finish(), True, WorkerFinished, True),
        (Finish(), False, WorkerFinished, False),
        (Leave(), None, WorkerFinished, True),
        (Park(()), (b"", ""), WorkerParked, False),
    ],
)
def test_timeline_is_the_last_letter(
    packer: Packer, closing: Effect, given: Any, last: type, finished: bool
) -> None:
    trip = trip_of((HandIn(A, saved=True), NONE), closing=closing, given=given)
    completion = packer.packed(trip).completion(trip)
    assert [type(letter) for letter in completion.letters] == [OutputReady, last]
    assert completion.finished == finished


def test_only_a_worker_that_may_stay_keeps_its_timeline(packer: Packer, worker: Any) -> None:
    worker.recorder.started("cold", 0.0, 1.0)
    packer.packed(trip_of(closing=Leave()))
    assert len(worker.recorder.rows) == 1
    packer.packed(trip_of(closing=Finish(), given=True))
    assert not worker.recorder.rows


def test_outputs_that_travel_together_are_recorded_as_one_transfer(
    packer: Packer, worker: Any
) -> None:
    for task, since in ((A, 1.0), (B, 2.0)):
        packer.add_save(task, encode(task, KEY, signed_output(task)), since)
    packer.record_saves(packer.packed(trip_of((Save(A), None), (Save(B), None))))
    (kind, _, start, end, *_), second = worker.recorder.rows
    assert (kind, start) == (SAVE, 1.0)
    assert second[2:4] == (end, end)


def test_workers_of_a_fan_out_are_kept_apart_from_single_ones(packer: Packer) -> None:
    cargo = packer.packed(
        trip_of(
            (Invoke(A, (), many=True), NONE),
            (Invoke(B, (), many=False), InlineOutputs({A: 1}, {})),
        )
    )
    assert list(cargo.starts) == [A, B]
    assert cargo.crowd == {A: False}


def test_input_that_cannot_be_pickled_fails_the_task_and_starts_nobody(packer: Packer) -> None:
    cargo = packer.packed(trip_of((Invoke(B, (A,)), InlineOutputs({A: threading.Lock()}, {}))))
    assert not cargo.starts
    assert cargo.letters == [TaskFailed(B, FAILURE)]


def test_a_flexible_worker_tells_the_client_which_workers_it_invoked(worker: Any) -> None:
    part = FlexiblePart(worker=W0, resources=Resources(256), upstream={A: (), B: ()}, downstream={})
    packer = Packer(part, worker, Messages(part, KEY, worker.recorder))
    packer.packed(trip_of((Invoke(B, ()), NONE)))
    [letter] = packer.packed(trip_of(closing=Leave())).letters
    assert isinstance(letter, WorkerFinished)
    assert letter.invoked == (B,)
