"""The outbox decides which orders share a round trip: orders in, steps out."""

from __future__ import annotations

from typing import Any

import pytest
from execution_examples import a, b, c, w1

from shoal.execution.effects import (
    Announce,
    Effect,
    Fetch,
    Finish,
    HandIn,
    Invoke,
    Leave,
    Mark,
    Park,
    Save,
)
from shoal.execution.outbox import REMOTE, SHORT, Order, Outbox, Trip, shared_room
from shoal.types import SHARED_NBYTES, Resources, TaskId

NEAR = REMOTE / 10
PARK = Park(())


def mark(task: TaskId) -> Mark:
    return Mark(task, w1, ("w0", "w1"), (), ())


def outbox_of(*effects: Effect, **options: Any) -> Outbox[str]:
    """Create an outbox with orders, each with its own name."""
    outbox: Outbox[str] = Outbox(NEAR, **options)
    for effect in effects:
        outbox.add(effect, str(effect))
    return outbox


def trip_of(outbox: Outbox[str], now: float = 0.0, executed: int = 0) -> Trip[str]:
    step = outbox.next(now, executed)
    assert isinstance(step, Trip)
    return step


def order_of(outbox: Outbox[str]) -> Order[str]:
    step = outbox.next(0.0)
    assert isinstance(step, Order)
    return step


def load_next_save(outbox: Outbox[str]) -> None:
    """Load the output of the next step, a save, into the trip."""
    save = order_of(outbox)
    assert isinstance(save.effect, Save)
    outbox.load(save, save.effect.task)


def effects_of(trip: Trip[str]) -> list[Effect]:
    return [order.effect for order in trip.load]


def test_orders_travel_in_one_trip_in_the_order_given() -> None:
    sent = [mark(a), Announce(b, w1), Invoke(c, ()), HandIn(a, saved=False)]
    outbox = outbox_of(*sent)
    trip = trip_of(outbox)
    assert trip.load == [Order(effect, str(effect)) for effect in sent]
    assert outbox.next(0.0) is None


def test_nothing_leaves_an_empty_outbox() -> None:
    outbox = outbox_of()
    assert not outbox.pending
    assert outbox.next(0.0) is None


def test_orders_given_during_a_trip_leave_together_in_the_next() -> None:
    outbox = outbox_of(mark(a))
    trip = trip_of(outbox)
    outbox.add(mark(b), "")
    outbox.add(mark(c), "")
    outbox.back(trip, NEAR)
    assert effects_of(trip_of(outbox)) == [mark(b), mark(c)]


def test_a_fetch_is_a_separate_step_and_loaded_orders_wait_for_it() -> None:
    outbox = outbox_of(mark(a), Fetch((b,)), mark(c))
    assert order_of(outbox).effect == Fetch((b,))
    assert effects_of(trip_of(outbox)) == [mark(a), mark(c)]


def test_output_that_is_loaded_travels_with_the_messages_that_follow_it() -> None:
    outbox = outbox_of(Save(a))
    load_next_save(outbox)
    outbox.add(mark(b), "after `Saved`")
    trip = trip_of(outbox)
    assert (effects_of(trip), trip.saves) == ([Save(a), mark(b)], [a])


def test_output_in_shared_memory_does_not_travel() -> None:
    outbox = outbox_of(Save(a), mark(b))
    assert order_of(outbox).effect == Save(a)
    trip = trip_of(outbox)
    assert (effects_of(trip), trip.saves) == ([mark(b)], [])


@pytest.mark.parametrize(
    ("nbytes", "shared"),
    [(SHARED_NBYTES - 1, False), (SHARED_NBYTES, True), (3 * SHARED_NBYTES + 1, False)],
)
def test_only_large_outputs_that_fit_go_into_shared_memory(nbytes: int, shared: bool) -> None:
    assert outbox_of(room=3 * SHARED_NBYTES).share(nbytes) == shared


def test_outputs_in_shared_memory_take_up_room() -> None:
    outbox = outbox_of(room=2 * SHARED_NBYTES)
    assert [outbox.share(SHARED_NBYTES) for _ in range(3)] == [True, True, False]


def test_up_to_half_of_a_workers_memory_is_shared() -> None:
    assert shared_room(Resources(1024)) == 512 * 1024 * 1024


@pytest.mark.parametrize("closing", [Finish(), PARK])
def test_timeline_travels_with_the_last_messages(closing: Effect) -> None:
    trip = trip_of(outbox_of(mark(a), closing))
    assert effects_of(trip) == [mark(a)]
    assert trip.closing == Order(closing, str(closing))


@pytest.mark.parametrize("closing", [Finish(), PARK])
def test_timeline_follows_the_trip_that_saves_outputs(closing: Effect) -> None:
    outbox = outbox_of(Save(a), mark(b), closing)
    load_next_save(outbox)
    saving = trip_of(outbox)
    assert (effects_of(saving), saving.closing) == ([Save(a), mark(b)], None)
    outbox.back(saving, NEAR)
    last = trip_of(outbox)
    assert (last.load, last.closing) == ([], Order(closing, str(closing)))


def test_a_worker_finishes_with_the_trip_that_carries_its_timeline() -> None:
    outbox = outbox_of(mark(a), Finish())
    assert not outbox.finished
    trip = trip_of(outbox)
    outbox.back(trip, NEAR)
    assert outbox.finished
    assert outbox.next(0.0) is None


def test_worker_asks_to_park_after_its_trip_and_may_go_on() -> None:
    outbox = outbox_of(mark(a), PARK)
    outbox.back(trip_of(outbox), NEAR)
    assert order_of(outbox).effect == PARK
    assert outbox.next(0.0) is None
    assert not outbox.finished
    outbox.add(mark(b), "after `MailCame`")
    assert trip_of(outbox).closing is None


def test_worker_that_left_with_its_marks_needs_no_trip_to_finish() -> None:
    outbox = outbox_of(mark(a), Leave())
    trip = trip_of(outbox)
    assert trip.leaving
    outbox.back(trip, NEAR)
    assert outbox.left
    outbox.add(Finish(), "")
    assert outbox.next(0.0) is None
    assert outbox.finished


def test_a_worker_that_gets_more_work_stays_and_finishes_later() -> None:
    outbox = outbox_of(mark(a), Leave())
    outbox.back(trip_of(outbox), NEAR, stays=True)
    assert not outbox.left
    outbox.add(mark(b), "")
    trip = trip_of(outbox)
    assert not trip.leaving
    outbox.back(trip, NEAR)
    outbox.add(Finish(), "")
    assert trip_of(outbox).closing == Order(Finish(), "")


def test_worker_does_not_leave_with_the_trip_that_saves_outputs() -> None:
    outbox = outbox_of(Save(a), mark(b), Leave())
    load_next_save(outbox)
    trip = trip_of(outbox)
    assert trip.closing is None
    outbox.back(trip, NEAR)
    assert outbox.next(0.0) is None
    outbox.add(Finish(), "")
    assert trip_of(outbox).closing == Order(Finish(), "")


def test_worker_enters_with_its_first_trip() -> None:
    outbox = outbox_of(mark(a), entered=False)
    trip = trip_of(outbox)
    assert trip.entering
    outbox.back(trip, NEAR)
    outbox.add(mark(b), "")
    assert not trip_of(outbox).entering


def test_worker_that_cannot_wait_enters_with_an_empty_trip_and_keeps_its_load() -> None:
    outbox = outbox_of(mark(a), Save(b), entered=False)
    assert order_of(outbox).effect == Save(b)
    entry = outbox.entry(0.0, 0)
    assert (entry.load, entry.entering) == ([], True)
    outbox.back(entry, NEAR)
    trip = trip_of(outbox)
    assert (effects_of(trip), trip.entering) == ([mark(a)], False)


def test_near_the_store_a_slot_sends_after_a_long_task_or_when_idle() -> None:
    near, far = Outbox[str](REMOTE), Outbox[str](2 * REMOTE)
    assert [near.slot_waits(), near.slot_waits(SHORT), near.slot_waits(SHORT / 2)] == [
        True,
        True,
        False,
    ]
    assert not far.slot_waits()


def test_one_slow_trip_does_not_make_the_store_remote() -> None:
    outbox, found = outbox_of(), []
    for seconds in (1.0, 1.0, 1.0, 1.0, NEAR):
        outbox.back(outbox.entry(0.0, 0), seconds)
        found.append(outbox.remote)
    assert found == [False, False, False, True, False]


def test_silent_worker_reports() -> None:
    outbox = outbox_of(mark(a), silence=10.0)
    outbox.back(trip_of(outbox, now=5.0, executed=1), NEAR)
    outbox.remind(15.0, executed=1, idle=True)
    assert not outbox.pending
    outbox.remind(15.5, executed=1, idle=False)
    assert outbox.pending
    trip = trip_of(outbox, now=15.5, executed=1)
    assert (trip.load, trip.executed) == ([], 1)
    assert not outbox.pending


def test_an_idle_worker_reports_executions_that_the_store_does_not_know() -> None:
    outbox = outbox_of()
    outbox.remind(0.0, executed=3, idle=False)
    assert not outbox.pending
    outbox.remind(0.0, executed=3, idle=True)
    assert trip_of(outbox, executed=3).executed == 3
    outbox.remind(0.0, executed=3, idle=True)
    assert not outbox.pending


def test_a_report_travels_with_the_next_trip() -> None:
    outbox = outbox_of(mark(a))
    outbox.remind(0.0, executed=3, idle=True)
    assert effects_of(trip_of(outbox, executed=3)) == [mark(a)]
    assert outbox.next(0.0) is None


@pytest.mark.parametrize("closing", [Finish(), Leave()])
def test_worker_that_has_left_or_finished_reports_nothing(closing: Effect) -> None:
    outbox = outbox_of(mark(a), closing)
    outbox.back(trip_of(outbox), NEAR)
    outbox.remind(0.0, executed=3, idle=True)
    assert not outbox.pending


def test_dropped_orders_never_leave() -> None:
    outbox = outbox_of(mark(a), Save(b), Finish())
    outbox.drop()
    assert outbox.next(0.0) is None
