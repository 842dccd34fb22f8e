"""A restarted worker recovers what the store has of its lost start."""

from __future__ import annotations

from execution_examples import a, b, c, machine_of, w0, w1

from shoal.execution.base import IN_TIME
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
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.timers import LimitTimer, ParkTimer
from shoal.types import TaskId

t = TaskId("t")
SMALL, LARGE = 1, INLINE_NBYTES + 1
CHAIN = {"a": "", "b": "a", "c": "b"}
FEEDING = {"a": "", "b": "a", "t": "ab"}
TWO = {"w0": "ab", "w1": "t"}


def lost(**found: object) -> Started:
    return Started(recovered=Recovered(**found))  # type: ignore[arg-type]


def test_if_nothing_was_saved_everything_is_repeated() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    assert machine.handle(lost()) == [Execute(a)]
    machine.handle(Executed(a, SMALL))
    machine.handle(Executed(b, SMALL))
    assert machine.handle(Executed(c, SMALL))[-1] == Finish()


def test_saved_outputs_are_fetched_and_their_upstream_tasks_not_repeated() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    assert machine.handle(lost(saved=frozenset({b}))) == [Fetch((b,))]
    assert machine.handle(Fetched((b,))) == [Execute(c)]


def test_outputs_that_were_saved_but_not_marked_are_marked() -> None:
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


def test_a_small_output_that_is_no_longer_needed_is_dropped() -> None:
    machine = machine_of({"a": "", "t": "a"}, {"w0": "a", "w1": "t"})
    assert machine.handle(lost(held=(a,), marked=frozenset({t}))) == [Forget((a,)), Finish()]


def test_only_results_that_the_client_lacks_are_handed_in_again() -> None:
    machine = machine_of({"a": "", "b": ""}, {"w0": "ab"})
    found = lost(saved=frozenset({a, b}), handed_in=frozenset({a}))
    assert machine.handle(found) == [HandIn(b, saved=True), Finish()]


def test_a_task_repeated_for_a_local_one_is_not_marked_again() -> None:
    """`a` was marked for `t`; its output is lost, and `b` needs it."""
    machine = machine_of({"a": "", "t": "a", "b": "a"}, {"w0": "ab", "w1": "t"})
    assert machine.handle(lost(marked=frozenset({t}))) == [Execute(a)]
    assert machine.handle(Executed(a, LARGE)) == [Execute(b)]


def test_a_repeated_arrival_of_a_completed_task_changes_nothing() -> None:
    wiring = {"a": "", "b": "a", "c": "b"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bc"}, "w1")
    assert machine.handle(lost(saved=frozenset({b}))) == [Fetch((b,))]
    assert machine.handle(Arrived(b, held=(a,))) == [Forget((a,))]
    assert machine.handle(Fetched((b,))) == [Execute(c)]


def test_a_worker_told_to_stop_saves_outputs_that_only_it_has() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Stopped()) == [Save(a), Finish()]
    assert machine.handle(Executed(b, SMALL)) == []


def test_a_failure_saves_completed_outputs_for_a_resumed_run() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Failed(b)) == [Save(a), Abort(b)]


def test_a_worker_near_its_time_limit_saves_and_leaves_to_be_restarted() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"}, limit=10.0)
    assert machine.handle(Started()) == [SetTimer(LimitTimer(), 10.0 * IN_TIME), Execute(a)]
    assert machine.handle(TimerFired(LimitTimer())) == []
    assert machine.handle(Executed(a, SMALL)) == [Save(a)]
    assert machine.handle(Saved(a)) == [Park(executed=(a,), again=True)]


def test_a_worker_that_must_leave_with_an_unpicklable_output_ends_the_run() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"}, limit=10.0)
    machine.handle(Started())
    machine.handle(TimerFired(LimitTimer()))
    assert machine.handle(Executed(a, SMALL)) == [Save(a)]
    assert machine.handle(Unsaved(a)) == [Abort(a)]


def test_a_worker_that_must_leave_with_an_output_known_as_unpicklable_ends_the_run() -> None:
    """The next start would fetch an output that nobody has saved.

    1. The worker is idle, tries to save `a` so that it can park, and stays because it can't.
    2. `c` still hasn't arrived when the time limit is near, and needs `a`.
    """
    wiring = {"a": "", "b": "", "c": "ab"}
    machine = machine_of(wiring, {"w0": "ac", "w1": "b"}, linger=0.5, limit=10.0)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Unsaved(a)) == []
    assert machine.handle(TimerFired(LimitTimer())) == [Abort(a)]


def test_an_unpicklable_output_does_not_matter_if_the_run_ends_anyway() -> None:
    machine = machine_of(CHAIN, {"w0": "abc"})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Failed(b)) == [Save(a), Abort(b)]
    assert machine.handle(Unsaved(a)) == []
