"""A worker that was lost begins again with what the store has of it."""

from __future__ import annotations

from execution_examples import a, b, c, machine_of, w0, w1

from shoal.execution.effects import (
    Abort,
    Execute,
    Fetch,
    Finish,
    Forget,
    HandIn,
    Mark,
    Park,
    Save,
    SetTimer,
)
from shoal.execution.events import (
    Arrived,
    Executed,
    Failed,
    Fetched,
    Recovered,
    Saved,
    Started,
    Stopped,
    TimerFired,
    Unsaved,
)
from shoal.execution.machine import IN_TIME, INLINE_NBYTES
from shoal.types import TaskId

t = TaskId("t")
SMALL, LARGE = 1, INLINE_NBYTES + 1
CHAIN = {"a": "", "b": "a", "c": "b"}
FEEDING = {"a": "", "b": "a", "t": "ab"}
TWO = {"w0": "ab", "w1": "t"}


def lost(**found: object) -> Started:
    return Started(recovered=Recovered(**found))  # type: ignore[arg-type]


def test_nothing_is_left_so_everything_is_repeated() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    assert machine.handle(lost()) == [Execute(a)]
    machine.handle(Executed(a, SMALL))
    machine.handle(Executed(b, SMALL))
    assert machine.handle(Executed(c, SMALL))[-1] == Finish()


def test_what_is_saved_is_fetched_and_what_led_to_it_is_not_repeated() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    assert machine.handle(lost(saved=frozenset({b}))) == [Fetch((b,))]
    assert machine.handle(Fetched((b,))) == [Execute(c)]


def test_outputs_that_were_saved_and_not_told_of_are_told_of() -> None:
    machine = machine_of(FEEDING, TWO)
    found = lost(saved=frozenset({a, b}))
    assert machine.handle(found) == [Mark(t, w1, (w0,), (), (a, b)), Finish()]


def test_a_small_output_that_travelled_with_a_mark_is_used_again() -> None:
    wiring = {"a": "", "t": "a", "b": "a"}
    machine = machine_of(wiring, {"w0": "ab", "w1": "t"})
    found = lost(held=(a,), marked=frozenset({t}))
    assert machine.handle(found) == [Execute(b)]
    assert machine.handle(Executed(b, SMALL)) == [
        HandIn(b, saved=False),
        Forget((a, b)),
        Finish(),
    ]


def test_a_small_output_that_is_needed_no_more_is_forgotten() -> None:
    machine = machine_of({"a": "", "t": "a"}, {"w0": "a", "w1": "t"})
    assert machine.handle(lost(held=(a,), marked=frozenset({t}))) == [Forget((a,)), Finish()]


def test_what_the_client_has_is_not_handed_in_again_and_what_it_lacks_is() -> None:
    machine = machine_of({"a": "", "b": ""}, {"w0": "ab"})
    found = lost(saved=frozenset({a, b}), handed_in=frozenset({a}))
    assert machine.handle(found) == [HandIn(b, saved=True), Finish()]


def test_a_task_that_is_repeated_for_an_own_one_is_not_marked_again() -> None:
    """`a` was marked for `t`; its output is lost, and `b` needs it."""
    machine = machine_of({"a": "", "t": "a", "b": "a"}, {"w0": "ab", "w1": "t"})
    assert machine.handle(lost(marked=frozenset({t}))) == [Execute(a)]
    assert machine.handle(Executed(a, LARGE)) == [Execute(b)]


def test_what_arrives_again_for_a_task_that_is_done_changes_nothing() -> None:
    wiring = {"a": "", "b": "a", "c": "b"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bc"}, "w1")
    assert machine.handle(lost(saved=frozenset({b}))) == [Fetch((b,))]
    assert machine.handle(Arrived(b, held=(a,))) == [Forget((a,))]
    assert machine.handle(Fetched((b,))) == [Execute(c)]


def test_a_worker_that_is_told_to_stop_saves_what_it_alone_has() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Stopped()) == [Save(a), Finish()]
    assert machine.handle(Executed(b, SMALL)) == []


def test_a_failure_saves_what_is_finished_for_who_resumes_the_run() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Failed(b)) == [Save(a), Abort(b)]


def test_a_worker_whose_time_is_nearly_over_saves_and_leaves_to_begin_anew() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"}, limit=10.0)
    assert machine.handle(Started()) == [SetTimer("limit", 10.0 * IN_TIME), Execute(a)]
    assert machine.handle(TimerFired("limit")) == []
    assert machine.handle(Executed(a, SMALL)) == [Save(a)]
    assert machine.handle(Saved(a)) == [Park(executed=(a,), again=True)]


def test_a_worker_that_has_to_leave_with_an_output_that_cannot_be_pickled_ends_the_run() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"}, limit=10.0)
    machine.handle(Started())
    machine.handle(TimerFired("limit"))
    assert machine.handle(Executed(a, SMALL)) == [Save(a)]
    assert machine.handle(Unsaved(a)) == [Abort(a)]


def test_a_run_that_ends_anyway_does_without_an_output_that_cannot_be_pickled() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Failed(b)) == [Save(a), Abort(b)]
    assert machine.handle(Unsaved(a)) == []
