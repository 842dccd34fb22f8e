"""The machine as data: waiting, parking, and coming back."""

from execution_examples import a, b, c, d, e, machine_of, w0, w1, w2

from shoal.execution.effects import (
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
    MailCame,
    Saved,
    Started,
    TimerFired,
    Unsaved,
)
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.retries import retry_pause
from shoal.execution.timers import ParkTimer, RetryTimer

SMALL = INLINE_NBYTES
LARGE = INLINE_NBYTES + 1

WAITING = {"a": "", "b": "", "c": "ab"}
"""`c` takes `a` of its own worker w0, and `b` of w1."""


def test_worker_with_nothing_to_do_lingers() -> None:
    machine = machine_of(WAITING, {"w0": "ac", "w1": "b"}, linger=0.5)
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL)) == [
        Mark(c, owner=w0, producers=(w0, w1), inline=(), saved=()),
        SetTimer(ParkTimer(1), 0.5),
    ]


def test_a_worker_without_a_limit_lingers_forever() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"}, "w1", linger=None)
    assert machine.handle(Started()) == []


def test_worker_saves_what_it_holds_and_then_parks_with_its_executed_tasks() -> None:
    machine = machine_of(WAITING, {"w0": "ac", "w1": "b"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Saved(a)) == [Park(executed=(a,))]


def test_worker_that_holds_nothing_parks_at_once() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"}, "w1", linger=0.5)
    machine.handle(Started())
    assert machine.handle(TimerFired(ParkTimer(1))) == [Park(executed=())]


def test_inputs_from_other_workers_are_not_saved_before_parking() -> None:
    wiring = {"a": "", "b": "a", "c": "", "d": "bc"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bd", "w2": "c"}, "w1", linger=0.5)
    machine.handle(Started())
    machine.handle(Arrived(b, held=(a,)))
    machine.handle(Executed(b, SMALL))
    assert machine.handle(TimerFired(ParkTimer(2))) == [Save(b)]


def test_an_output_saved_for_others_is_not_saved_again_before_parking() -> None:
    wiring = {"a": "", "b": "", "c": "ab", "d": "a"}
    machine = machine_of(wiring, {"w0": "ac", "w1": "bd"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, LARGE))
    assert machine.handle(Saved(a))[-1] == SetTimer(ParkTimer(1), 0.5)
    assert machine.handle(TimerFired(ParkTimer(1))) == [Park(executed=(a,))]


def test_a_worker_refused_to_park_lingers_again_and_saves_nothing_twice() -> None:
    """A message arrives while the worker asks to park.

    1. The worker has saved `a` and asks to park.
    2. A message is in its mailbox: the store refuses, and the worker lingers again.
    3. The message was a repeat, so nothing follows; `a` needn't be saved again to park.
    """
    machine = machine_of(WAITING, {"w0": "ac", "w1": "b"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    machine.handle(TimerFired(ParkTimer(1)))
    assert machine.handle(Saved(a)) == [Park(executed=(a,))]
    assert machine.handle(MailCame()) == [SetTimer(ParkTimer(2), 0.5)]
    assert machine.handle(TimerFired(ParkTimer(2))) == [Park(executed=(a,))]
    assert machine.handle(MailCame()) == [SetTimer(ParkTimer(3), 0.5)]
    assert machine.handle(Arrived(c, held=(b,))) == [Execute(c)]
    assert machine.handle(TimerFired(ParkTimer(3))) == []
    assert machine.handle(Executed(c, SMALL))[-1] == Finish()


def test_a_message_that_arrives_while_saving_to_park_is_handled_first() -> None:
    """A task arrives when the worker has already decided to park.

    1. The worker saves `a` in order to park.
    2. Before that is done, `c` arrives, takes `a` from memory and runs: no parking.
    3. `a` is saved while `c` runs, and the worker doesn't park either.
    """
    wiring = {"a": "", "b": "", "c": "ab", "d": "b", "e": "cd"}
    machine = machine_of(wiring, {"w0": "ace", "w1": "bd"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Arrived(c, held=(b,))) == [Execute(c)]
    assert machine.handle(Saved(a)) == []
    assert machine.handle(Executed(c, SMALL)) == [
        Mark(e, owner=w0, producers=(w0, w1), inline=(), saved=()),
        Forget((a, b)),
        SetTimer(ParkTimer(2), 0.5),
    ]


def test_an_output_is_kept_until_it_is_saved_even_if_nobody_needs_it() -> None:
    """The output is still being saved when the last task that needs it is done.

    1. The worker saves `a` in order to park; `c` arrives and takes `a` from memory.
    2. `c` is executed: nobody needs `a` any more, but the driver may not have read it yet.
    3. The worker, with nothing left to do, waits for that save before it finishes.
    """
    machine = machine_of(WAITING, {"w0": "ac", "w1": "b"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Arrived(c, held=(b,))) == [Execute(c)]
    assert machine.handle(Executed(c, SMALL)) == [HandIn(c, saved=False), Forget((b, c))]
    assert machine.handle(Saved(a)) == [Forget((a,)), Finish()]


def test_a_message_whose_inputs_must_be_fetched_also_prevents_parking() -> None:
    """A fetch is in progress when the last save before parking is done.

    1. The worker saves `a` in order to park; `c` arrives and `b` is fetched.
    2. `a` is saved: the fetch is still in progress, so the worker doesn't park.
    3. `b` is fetched, and `c` runs.
    """
    machine = machine_of(WAITING, {"w0": "ac", "w1": "b"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Arrived(c)) == [Fetch((b,))]
    assert machine.handle(Saved(a)) == []
    assert machine.handle(Fetched((b,))) == [Execute(c)]


def test_worker_does_not_park_while_an_output_for_others_is_being_saved() -> None:
    wiring = {"a": "", "b": "a", "c": "b"}
    machine = machine_of(wiring, {"w0": "ac", "w1": "b"}, linger=0.0)
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Save(a)]
    assert machine.handle(TimerFired(ParkTimer(0))) == []
    assert machine.handle(Saved(a))[-1] == SetTimer(ParkTimer(1), 0.0)


def test_worker_does_not_park_during_the_pause_before_a_retry() -> None:
    wiring = {"a": "", "b": "", "c": "ab"}
    machine = machine_of(wiring, {"w0": "ac", "w1": "b"}, retries={"a": 1}, linger=0.0)
    machine.handle(Started())
    assert machine.handle(Failed(a)) == [SetTimer(RetryTimer(a), retry_pause(a, 0))]


def test_the_timer_of_an_earlier_wait_neither_parks_the_worker_nor_prolongs_the_wait() -> None:
    """A worker that is woken repeatedly must still park in the end.

    1. The worker lingers (timer 1), works on `b`, and lingers again (timer 2).
    2. Timer 1 fires: it belongs to the earlier wait, so nothing happens.
    3. Timer 2 fires: the worker parks. Had timer 1 set a third timer, timer 2 would have been
       outdated too, and so on forever.
    """
    wiring = {"a": "", "b": "a", "c": "a"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bc"}, "w1", linger=0.5)
    assert machine.handle(Started()) == [SetTimer(ParkTimer(1), 0.5)]
    assert machine.handle(Arrived(b, held=(a,)), now=0.1) == [Execute(b)]
    assert machine.handle(Executed(b, SMALL), now=0.2)[-1] == SetTimer(ParkTimer(2), 0.5)
    assert machine.handle(TimerFired(ParkTimer(1)), now=0.5) == []
    assert machine.handle(TimerFired(ParkTimer(2)), now=0.7) == [Park(executed=(b,))]


def test_repeated_message_does_not_prolong_the_wait() -> None:
    wiring = {"a": "", "b": "a", "c": "a"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bc"}, "w1", linger=0.5)
    machine.handle(Started())
    machine.handle(Arrived(b, held=(a,)))
    assert machine.handle(Executed(b, SMALL))[-1] == SetTimer(ParkTimer(2), 0.5)
    assert machine.handle(Arrived(b)) == []
    assert machine.handle(TimerFired(ParkTimer(2))) == [Park(executed=(b,))]


def test_worker_asks_to_park_only_once() -> None:
    wiring = {"a": "", "b": "a", "c": "a"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bc"}, "w1", linger=0.5)
    machine.handle(Started())
    machine.handle(Arrived(b, held=(a,)))
    machine.handle(Executed(b, SMALL))
    assert machine.handle(TimerFired(ParkTimer(2))) == [Park(executed=(b,))]
    assert machine.handle(TimerFired(ParkTimer(1))) == []


def test_a_worker_that_parked_fetches_its_own_saved_outputs() -> None:
    machine = machine_of(WAITING, {"w0": "ac", "w1": "b"}, linger=0.5)
    assert machine.handle(Started(executed=(a,))) == [SetTimer(ParkTimer(1), 0.5)]
    assert machine.handle(Arrived(c, held=(b,))) == [Fetch((a,))]
    assert machine.handle(Fetched((a,))) == [Execute(c)]
    assert machine.handle(Executed(c, SMALL)) == [
        HandIn(c, saved=False),
        Forget((a, b, c)),
        Finish(),
    ]


def test_a_worker_that_parked_does_not_repeat_its_marks_and_results() -> None:
    wiring = {"a": "", "b": "", "c": "ab", "d": "a"}
    machine = machine_of(wiring, {"w0": "ac", "w1": "bd"}, sinks="acd", linger=0.5)
    assert machine.handle(Started(executed=(a,))) == [SetTimer(ParkTimer(1), 0.5)]


def test_a_small_output_kept_for_a_later_mark_is_saved_to_park_and_marked_as_saved() -> None:
    """A worker parks between two outputs for one task of another worker.

    1. `a` is small and waits in memory to travel with the mark of `d`, which also takes `c`.
    2. `c` has to wait for `b` of another worker: this worker saves `a` and parks.
    3. Back again, it executes `c` and marks `d`: `c` travels with the mark, `a` has to be fetched.
    """
    wiring = {"a": "", "b": "", "c": "b", "d": "ac"}
    assignment = {"w0": "ac", "w1": "b", "w2": "d"}
    machine = machine_of(wiring, assignment, linger=0.5)
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL)) == [SetTimer(ParkTimer(1), 0.5)]
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Saved(a)) == [Park(executed=(a,))]

    resumed = machine_of(wiring, assignment, linger=0.5)
    assert resumed.handle(Started(executed=(a,))) == [SetTimer(ParkTimer(1), 0.5)]
    assert resumed.handle(Arrived(c, held=(b,))) == [Execute(c)]
    assert resumed.handle(Executed(c, SMALL)) == [
        Mark(d, owner=w2, producers=(w0,), inline=(c,), saved=(a,)),
        Forget((b, c)),
        Finish(),
    ]


def test_small_output_still_travels_with_the_mark_if_parking_was_refused() -> None:
    wiring = {"a": "", "b": "", "c": "b", "d": "ac"}
    machine = machine_of(wiring, {"w0": "ac", "w1": "b", "w2": "d"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    machine.handle(TimerFired(ParkTimer(1)))
    machine.handle(Saved(a))
    machine.handle(MailCame())
    machine.handle(Arrived(c, held=(b,)))
    assert machine.handle(Executed(c, SMALL)) == [
        Mark(d, owner=w2, producers=(w0,), inline=(a, c), saved=()),
        Forget((b, a, c)),
        Finish(),
    ]


def test_a_worker_that_parked_ignores_replayed_messages_of_executed_tasks() -> None:
    wiring = {"a": "", "b": "a", "c": "a"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bc"}, "w1", linger=0.5)
    machine.handle(Started(executed=(b,)))
    assert machine.handle(Arrived(b, held=(a,))) == []
    assert machine.handle(Arrived(c, held=(a,))) == [Execute(c)]
    assert Forget((a, c)) in machine.handle(Executed(c, SMALL))


def test_worker_that_parks_again_saves_only_what_is_new() -> None:
    wiring = {"a": "", "b": "", "c": "b", "d": "b", "e": "acd"}
    machine = machine_of(wiring, {"w0": "acde", "w1": "b"}, linger=0.5)
    machine.handle(Started(executed=(a,)))
    machine.handle(Arrived(c, held=(b,)))
    assert machine.handle(Executed(c, SMALL))[-1] == SetTimer(ParkTimer(2), 0.5)
    assert machine.handle(TimerFired(ParkTimer(2))) == [Save(c)]
    assert machine.handle(Saved(c)) == [Park(executed=(a, c))]


def test_an_unpicklable_output_keeps_the_worker_until_nobody_needs_it() -> None:
    wiring = {"a": "", "b": "", "c": "ab", "d": "", "e": "cd"}
    machine = machine_of(wiring, {"w0": "ace", "w1": "b", "w2": "d"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Unsaved(a)) == []
    assert machine.handle(Arrived(c, held=(b,))) == [Execute(c)]
    assert machine.handle(Executed(c, SMALL))[-1] == SetTimer(ParkTimer(2), 0.5)
    assert machine.handle(TimerFired(ParkTimer(2))) == [Save(c)]
    assert machine.handle(Saved(c)) == [Park(executed=(a, c))]


def test_a_worker_with_an_unpicklable_output_stays_with_all_its_outputs() -> None:
    wiring = {"a": "", "b": "", "c": "", "d": "abc"}
    machine = machine_of(wiring, {"w0": "abd", "w1": "c"}, linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    machine.handle(Executed(b, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a), Save(b)]
    assert machine.handle(Unsaved(a)) == []
    assert machine.handle(Saved(b)) == []
    assert machine.handle(Arrived(d, held=(c,))) == [Execute(d)]
