"""The machine as data: preloading, warming up, and copies of other workers' tasks."""

from __future__ import annotations

from dataclasses import replace

from execution_examples import (
    ONE_SLOT,
    CheckedMachine,
    a,
    b,
    c,
    machine_of,
    part_of,
    plan_of,
    w0,
    w1,
    w2,
)

from shoal.execution.effects import (
    Announce,
    Execute,
    Fetch,
    Finish,
    Forget,
    HandIn,
    Mark,
    Park,
    Save,
    SetTimer,
    WarmUp,
)
from shoal.execution.events import (
    Announced,
    Arrived,
    Executed,
    Failed,
    Fetched,
    MailCame,
    Saved,
    Started,
    TimerFired,
)
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.plan import Prewarm
from shoal.execution.retries import retry_pause
from shoal.execution.timers import CopyTimer, LimitTimer, ParkTimer, RetryTimer, WarmUpTimer
from shoal.types import MB_PER_CPU, Resources, TaskId

SMALL = INLINE_NBYTES
LARGE = INLINE_NBYTES + 1
TWO_SLOTS = Resources(memory_mb=2 * MB_PER_CPU)

# Preloading: `c` takes `a` of w0 and `b` of w1, and runs on w2.

JOIN = {"a": "", "b": "", "c": "ab"}
APART = {"w0": "a", "w1": "b", "w2": "c"}


def test_saved_output_for_a_preloaded_task_is_announced_before_it_is_marked() -> None:
    machine = machine_of(JOIN, APART, preload="c")
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Save(a)]
    assert machine.handle(Saved(a)) == [
        Announce(a, owner=w2),
        Mark(c, owner=w2, producers=(w0, w1), inline=(), saved=(a,)),
        Forget((a,)),
        Finish(),
    ]


def test_small_output_is_not_announced() -> None:
    machine = machine_of(JOIN, APART, preload="c")
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL)) == [
        Mark(c, owner=w2, producers=(w0, w1), inline=(a,), saved=()),
        Forget((a,)),
        Finish(),
    ]


def test_output_for_a_task_that_is_not_preloaded_is_not_announced() -> None:
    machine = machine_of(JOIN, APART, preload="b")
    machine.handle(Started())
    machine.handle(Executed(a, LARGE))
    assert Announce(a, w2) not in machine.handle(Saved(a))


def test_output_that_makes_its_task_ready_by_itself_is_not_announced() -> None:
    machine = machine_of({"a": "", "b": "", "c": "ab"}, {"w0": "ab", "w1": "c"}, preload="c")
    machine.handle(Started())
    machine.handle(Executed(a, LARGE))
    machine.handle(Executed(b, LARGE))
    assert machine.handle(Saved(a)) == [Announce(a, owner=w1), Forget((a,))]
    assert machine.handle(Saved(b))[0] == Mark(c, w1, (w0,), inline=(), saved=(a, b))


def test_output_for_two_preloaded_tasks_of_a_worker_is_announced_to_it_once() -> None:
    wiring = {"a": "", "b": "", "c": "ab", "d": "ab", "e": "ab"}
    machine = machine_of(wiring, {"w0": "a", "w1": "be", "w2": "cd"}, preload="cde")
    machine.handle(Started())
    machine.handle(Executed(a, LARGE))
    announced = [step for step in machine.handle(Saved(a)) if isinstance(step, Announce)]
    assert announced == [Announce(a, w2), Announce(a, w1)]


def test_announced_output_is_fetched_at_once_and_found_when_its_task_arrives() -> None:
    machine = machine_of(JOIN, APART, "w2", preload="c")
    machine.handle(Started())
    assert machine.handle(Announced((a,))) == [Fetch((a,))]
    assert machine.handle(Fetched((a,))) == []
    assert machine.handle(Arrived(c, held=(b,))) == [Execute(c)]
    assert machine.handle(Executed(c, SMALL))[1] == Forget((a, b, c))


def test_task_that_arrives_while_an_announced_output_is_fetched_waits_for_it() -> None:
    machine = machine_of(JOIN, APART, "w2", preload="c")
    machine.handle(Started())
    machine.handle(Announced((a,)))
    assert machine.handle(Arrived(c)) == [Fetch((b,))]
    assert machine.handle(Fetched((b,))) == []
    assert machine.handle(Fetched((a,))) == [Execute(c)]


def test_an_announcement_of_an_output_that_is_held_fetched_or_used_is_ignored() -> None:
    wiring = {"a": "", "b": "", "c": "ab", "d": "b", "e": "d"}
    assignment = {"w0": "a", "w1": "bd", "w2": "ce"}
    machine = machine_of(wiring, assignment, "w2", preload="c")
    machine.handle(Started())
    machine.handle(Announced((a,)))
    assert machine.handle(Announced((a,))) == []
    machine.handle(Fetched((a,)))
    assert machine.handle(Announced((a,))) == []
    machine.handle(Arrived(c, held=(b,)))
    machine.handle(Executed(c, SMALL))
    assert machine.handle(Announced((a,))) == []


def test_a_restarted_worker_does_not_fetch_announced_outputs_it_has_used() -> None:
    wiring = {"a": "", "b": "", "c": "ab", "d": "a"}
    machine = machine_of(wiring, {"w0": "a", "w1": "b", "w2": "cd"}, "w2", preload="c")
    machine.handle(Started(executed=(c,)))
    assert machine.handle(Announced((b,))) == []
    assert machine.handle(Announced((a,))) == [Fetch((a,))]


def test_an_announcement_does_not_keep_a_worker_forever() -> None:
    machine = machine_of(JOIN, APART, "w2", preload="c", linger=0.5)
    assert machine.handle(Started()) == [SetTimer(ParkTimer(1), 0.5)]
    assert machine.handle(Announced((a,))) == [Fetch((a,))]
    assert machine.handle(TimerFired(ParkTimer(1))) == []
    assert machine.handle(Fetched((a,))) == [SetTimer(ParkTimer(2), 0.5)]
    assert machine.handle(Announced((a,))) == []
    assert machine.handle(TimerFired(ParkTimer(2))) == [Park(executed=())]


def test_an_announcement_that_prevents_parking_is_followed() -> None:
    machine = machine_of(JOIN, APART, "w2", preload="c", linger=0.5)
    machine.handle(Started())
    assert machine.handle(TimerFired(ParkTimer(1))) == [Park(executed=())]
    assert machine.handle(Announced((a,))) == [Fetch((a,))]
    assert machine.handle(MailCame()) == []
    assert machine.handle(Fetched((a,))) == [SetTimer(ParkTimer(2), 0.5)]


def test_an_announcement_while_a_worker_saves_to_park_keeps_it() -> None:
    wiring = {"a": "", "b": "", "c": "ab"}
    machine = machine_of(wiring, {"w0": "a", "w2": "bc"}, "w2", preload="c", linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(b, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(b)]
    assert machine.handle(Announced((a,))) == [Fetch((a,))]
    assert machine.handle(Saved(b)) == []
    assert machine.handle(Fetched((a,))) == [SetTimer(ParkTimer(2), 0.5)]


# Warming up.


def warming(*prewarms: Prewarm, linger: float | None = None) -> CheckedMachine:
    """A worker whose first task warms sandboxes, and whose last one waits for another worker."""
    wiring = {"a": "", "b": "", "c": "ab"}
    prewarm = {"a": tuple(prewarms)}
    return machine_of(wiring, {"w0": "ac", "w1": "b"}, prewarm=prewarm, linger=linger)


def test_sandboxes_are_warmed_up_when_their_task_begins_each_after_its_delay() -> None:
    machine = warming(Prewarm(ONE_SLOT), Prewarm(TWO_SLOTS, 2.0), Prewarm(ONE_SLOT, 1.0))
    assert machine.handle(Started()) == [
        Execute(a),
        WarmUp(ONE_SLOT),
        SetTimer(WarmUpTimer(1), 2.0),
        SetTimer(WarmUpTimer(2), 1.0),
    ]
    assert machine.handle(TimerFired(WarmUpTimer(2))) == [WarmUp(ONE_SLOT)]
    assert machine.handle(TimerFired(WarmUpTimer(1))) == [WarmUp(TWO_SLOTS)]
    assert machine.handle(TimerFired(WarmUpTimer(1))) == []


def test_a_retried_task_does_not_warm_up_again() -> None:
    prewarm = {"a": (Prewarm(ONE_SLOT),)}
    machine = machine_of({"a": ""}, {"w0": "a"}, retries={"a": 1}, prewarm=prewarm)
    assert machine.handle(Started()) == [Execute(a), WarmUp(ONE_SLOT)]
    assert machine.handle(Failed(a)) == [SetTimer(RetryTimer(a), retry_pause(a, 0))]
    assert machine.handle(TimerFired(RetryTimer(a))) == [Execute(a)]


def test_a_worker_that_finishes_does_its_remaining_warm_ups() -> None:
    prewarm = {"a": (Prewarm(TWO_SLOTS, 60.0),)}
    machine = machine_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"}, prewarm=prewarm)
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL))[-2:] == [WarmUp(TWO_SLOTS), Finish()]


def test_a_worker_that_parks_does_its_remaining_warm_ups_once() -> None:
    machine = warming(Prewarm(TWO_SLOTS, 60.0), linger=0.5)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Saved(a)) == [WarmUp(TWO_SLOTS), Park(executed=(a,))]
    machine.handle(MailCame())
    assert machine.handle(TimerFired(WarmUpTimer(1))) == []


def test_a_worker_that_leaves_at_its_time_limit_does_its_remaining_warm_ups() -> None:
    prewarm = {"a": (Prewarm(TWO_SLOTS, 60.0),)}
    machine = machine_of({"a": "", "b": "a"}, {"w0": "ab"}, prewarm=prewarm, limit=10.0)
    machine.handle(Started())
    machine.handle(TimerFired(LimitTimer()))
    assert machine.handle(Executed(a, SMALL)) == [Save(a)]
    assert machine.handle(Saved(a)) == [WarmUp(TWO_SLOTS), Park(executed=(a,), again=True)]


def test_the_timer_of_a_warm_up_neither_keeps_a_worker_nor_restarts_its_linger() -> None:
    machine = warming(Prewarm(TWO_SLOTS, 0.25), linger=0.5)
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL))[-1] == SetTimer(ParkTimer(1), 0.5)
    assert machine.handle(TimerFired(WarmUpTimer(1))) == [WarmUp(TWO_SLOTS)]
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]


def test_a_failed_run_warms_up_nothing_more() -> None:
    machine = warming(Prewarm(TWO_SLOTS, 60.0))
    machine.handle(Started())
    assert WarmUp(TWO_SLOTS) not in machine.handle(Failed(a))


# Copies: w1 waits for `s` of w0 with its task `t`.

s, t, u, x = (TaskId(name) for name in "stux")
WAITING = {"s": "", "t": "s"}
TWO = {"w0": "s", "w1": "t"}
GAIN = 0.5


def copying(seconds: float = 1.0, expected: float = 10.0, **options: object) -> CheckedMachine:
    """The machine of w1, which may copy `s`."""
    given = {"duplicable": "s", "expected": {"s": (seconds, expected)}, **options}
    return machine_of(WAITING, TWO, "w1", **given)


def test_copy_is_run_at_once_if_the_output_is_expected_much_later() -> None:
    machine = copying(seconds=1.0, expected=2.0 + GAIN)
    assert machine.handle(Started(), now=1.0) == [Execute(s)]


def test_a_copy_that_gains_too_little_runs_once_the_output_is_late_enough() -> None:
    machine = copying(seconds=1.0, expected=2.0, linger=0.0)
    assert machine.handle(Started(), now=0.75) == [SetTimer(CopyTimer(s), 2.75)]
    assert machine.handle(TimerFired(CopyTimer(s)), now=3.5) == [Execute(s)]


def test_copy_of_an_output_that_is_late_already_is_run_at_once() -> None:
    machine = copying(seconds=1.0, expected=2.0)
    assert machine.handle(Started(), now=3.5) == [Execute(s)]


def test_the_required_gain_comes_from_the_plan() -> None:
    plan = plan_of(WAITING, TWO, duplicable="s", expected={"s": (1.0, 2.0)})
    machine = CheckedMachine(part_of(replace(plan, duplication_gain=0.0), "w1"))
    assert machine.handle(Started(), now=1.0) == [Execute(s)]


def test_executed_copy_marks_its_target_in_the_name_of_its_worker() -> None:
    machine = copying()
    machine.handle(Started())
    assert machine.handle(Executed(s, LARGE)) == [
        Save(s),
        Mark(t, owner=w1, producers=(w0,), inline=(), saved=(s,), producer=w0),
    ]
    assert machine.handle(Saved(s)) == []
    assert machine.handle(Arrived(t)) == [Execute(t)]
    assert machine.handle(Executed(t, SMALL)) == [
        HandIn(t, saved=False),
        Forget((s, t)),
        Finish(),
    ]


def test_a_copy_does_not_start_once_its_output_has_arrived() -> None:
    machine = copying(expected=2.0, seconds=2.0)
    assert machine.handle(Started()) == [SetTimer(CopyTimer(s), 4.5)]
    assert machine.handle(Arrived(t, held=(s,)), now=1.0) == [Execute(t)]
    assert machine.handle(TimerFired(CopyTimer(s)), now=4.5) == []


def test_an_output_that_arrives_while_its_copy_runs_is_used_and_the_copy_dropped() -> None:
    machine = copying(resources={"w1": TWO_SLOTS})
    machine.handle(Started())
    assert machine.handle(Arrived(t, held=(s,))) == [Execute(t)]
    assert machine.handle(Executed(t, SMALL)) == [HandIn(t, saved=False), Forget((s, t))]
    assert machine.handle(Executed(s, SMALL)) == [Forget((s,)), Finish()]


def test_copy_that_ends_while_its_output_is_fetched_is_used_and_the_fetched_one_dropped() -> None:
    """Both the copy and the output arrive.

    1. The copy of `s` runs when `t` arrives, whose input has to be fetched.
    2. The copy returns first: `t` runs with it.
    3. The fetched output arrives when nobody needs it any more.
    """
    machine = copying(resources={"w1": TWO_SLOTS})
    machine.handle(Started())
    assert machine.handle(Arrived(t)) == [Fetch((s,))]
    assert machine.handle(Executed(s, LARGE)) == [Execute(t)]
    assert machine.handle(Executed(t, SMALL)) == [HandIn(t, saved=False), Forget((s, t))]
    assert machine.handle(Fetched((s,))) == [Forget((s,)), Finish()]


def test_a_failed_copy_is_ignored_and_not_retried() -> None:
    machine = copying(retries={"s": 3}, linger=0.5)
    machine.handle(Started())
    assert machine.handle(Failed(s)) == [SetTimer(ParkTimer(1), 0.5)]
    assert machine.handle(Arrived(t, held=(s,))) == [Execute(t)]


def test_own_ready_task_goes_before_a_copy() -> None:
    wiring = {"s": "", "t": "s", "a": "", "b": ""}
    expected = {"s": (1.0, 60.0)}
    assignment = {"w0": "s", "w1": "tab"}
    machine = machine_of(wiring, assignment, "w1", duplicable="s", expected=expected)
    assert machine.handle(Started()) == [Execute(a)]
    assert machine.handle(Executed(a, SMALL))[-1] == Execute(b)
    assert machine.handle(Executed(b, SMALL))[-1] == Execute(s)


def test_free_slot_beside_an_own_task_runs_a_copy() -> None:
    machine = machine_of(
        {"s": "", "t": "s", "a": ""},
        {"w0": "s", "w1": "ta"},
        "w1",
        resources={"w1": TWO_SLOTS},
        duplicable="s",
        expected={"s": (1.0, 60.0)},
    )
    assert machine.handle(Started()) == [Execute(a), Execute(s)]


def test_a_task_without_a_prediction_or_permission_is_not_copied() -> None:
    for options in ({"duplicable": "s"}, {"expected": {"s": (1.0, 60.0)}}):
        machine = machine_of(WAITING, TWO, "w1", linger=0.5, **options)
        assert machine.handle(Started()) == [SetTimer(ParkTimer(1), 0.5)]


def test_copy_warms_up_nothing() -> None:
    machine = copying(prewarm={"s": (Prewarm(ONE_SLOT),)})
    assert machine.handle(Started()) == [Execute(s)]


def test_a_copy_keeps_local_and_received_inputs_as_long_as_it_may_run() -> None:
    """`s` takes `a` of w1 itself and `x`, which w1 gets for `b`."""
    wiring = {"a": "", "x": "", "b": "x", "s": "ax", "t": "s"}
    assignment = {"w0": "xs", "w1": "abt"}
    machine = machine_of(wiring, assignment, "w1", duplicable="s", expected={"s": (1.0, 60.0)})
    assert machine.handle(Started()) == [Execute(a)]
    assert machine.handle(Executed(a, SMALL)) == [Mark(s, w0, (w1, w0), inline=(a,), saved=())]
    assert machine.handle(Arrived(b, held=(x,))) == [Execute(b)]
    assert machine.handle(Executed(b, SMALL)) == [HandIn(b, saved=False), Forget((b,)), Execute(s)]
    assert machine.handle(Executed(s, SMALL)) == [
        Mark(t, w1, (w0,), (s,), (), producer=w0),
        Forget((a, x)),
    ]


def test_inputs_kept_for_a_copy_are_dropped_when_its_output_arrives() -> None:
    wiring = {"a": "", "x": "", "b": "x", "s": "ax", "t": "s"}
    assignment = {"w0": "xs", "w1": "abt"}
    machine = machine_of(wiring, assignment, "w1", duplicable="s", expected={"s": (9.0, 9.0)})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    machine.handle(Arrived(b, held=(x,)))
    assert machine.handle(Executed(b, SMALL))[-1] == SetTimer(CopyTimer(s), 18.5)
    assert machine.handle(Arrived(t, held=(s,))) == [Forget((a, x)), Execute(t)]


def test_the_constants_of_a_copy_are_fetched_when_it_is_chosen() -> None:
    plan = plan_of(WAITING, TWO, duplicable="s", expected={"s": (1.0, 60.0)})
    constant = TaskId("constant:1")
    machine = CheckedMachine(part_of(plan, "w1", {"s": [constant]}))
    assert machine.handle(Started()) == [Fetch((constant,))]
    assert machine.handle(Fetched((constant,))) == [Execute(s)]
    assert machine.handle(Executed(s, SMALL))[-1] == Forget((constant,))


def test_a_copy_that_gathers_its_constants_is_abandoned_when_its_output_arrives() -> None:
    plan = plan_of(WAITING, TWO, duplicable="s", expected={"s": (1.0, 60.0)})
    constant = TaskId("constant:1")
    machine = CheckedMachine(part_of(plan, "w1", {"s": [constant]}))
    machine.handle(Started())
    assert machine.handle(Arrived(t, held=(s,))) == [Execute(t)]
    assert machine.handle(Fetched((constant,))) == [Forget((constant,))]
    assert machine.handle(Executed(t, SMALL))[-1] == Finish()


def test_the_target_is_marked_only_when_all_outputs_owed_by_the_other_worker_are_here() -> None:
    wiring = {"s": "", "u": "", "t": "su"}
    expected = {"s": (1.0, 60.0), "u": (1.0, 60.0)}
    assignment = {"w0": "su", "w1": "t"}
    machine = machine_of(wiring, assignment, "w1", duplicable="su", expected=expected)
    assert machine.handle(Started()) == [Execute(s)]
    assert machine.handle(Executed(s, SMALL)) == [Execute(u)]
    assert machine.handle(Executed(u, SMALL)) == [Mark(t, w1, (w0,), (s, u), (), producer=w0)]


def test_the_target_is_not_marked_if_the_other_worker_owes_it_more() -> None:
    wiring = {"s": "", "u": "", "t": "su"}
    machine = machine_of(
        wiring, {"w0": "su", "w1": "t"}, "w1", duplicable="s", expected={"s": (1.0, 60.0)}
    )
    machine.handle(Started())
    assert machine.handle(Executed(s, SMALL)) == []
    assert machine.handle(Arrived(t, held=(s, u))) == [Execute(t)]


def test_announced_output_is_fetched_and_not_copied() -> None:
    wiring = {"s": "", "a": "", "t": "sa"}
    expected = {"s": (5.0, 5.0)}
    machine = machine_of(
        wiring,
        {"w0": "s", "w1": "t", "w2": "a"},
        "w1",
        preload="t",
        duplicable="s",
        expected=expected,
    )
    assert machine.handle(Started()) == [SetTimer(CopyTimer(s), 10.5)]
    assert machine.handle(Announced((s,))) == [Fetch((s,))]
    assert machine.handle(Fetched((s,))) == []
    assert machine.handle(TimerFired(CopyTimer(s)), now=10.5) == []


def test_worker_does_not_park_as_long_as_a_copy_is_scheduled() -> None:
    machine = copying(seconds=2.0, expected=2.0, linger=0.5)
    assert machine.handle(Started()) == [SetTimer(CopyTimer(s), 4.5)]
    assert machine.handle(TimerFired(CopyTimer(s)), now=4.5) == [Execute(s)]
    machine.handle(Executed(s, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(s)]


def test_timer_of_an_earlier_wait_does_not_make_a_worker_park_while_a_copy_is_scheduled() -> None:
    """`s` takes `x`, which comes for `b` when the worker already lingers."""
    wiring = {"x": "", "b": "x", "s": "x", "t": "s"}
    assignment = {"w0": "xs", "w1": "bt"}
    options = {"linger": 0.5, "duplicable": "s", "expected": {"s": (9.0, 9.0)}}
    machine = machine_of(wiring, assignment, "w1", **options)
    assert machine.handle(Started()) == [SetTimer(ParkTimer(1), 0.5)]
    machine.handle(Arrived(b, held=(x,)))
    assert machine.handle(Executed(b, SMALL))[-1] == SetTimer(CopyTimer(s), 18.5)
    assert machine.handle(TimerFired(ParkTimer(1))) == []
    assert machine.handle(TimerFired(CopyTimer(s)), now=18.5) == [Execute(s)]


STAND_IN = {"s": "", "a": "", "t": "sa"}
THREE = {"w0": "s", "w1": "t", "w2": "a"}


def test_the_output_of_a_marked_copy_is_saved_before_the_worker_parks() -> None:
    """No other worker may ever save it.

    1. w1 has copied `s` and marked `t` in w0's name; w0's own mark arrives later and is ignored,
       with the output that travels with it.
    2. `t` also waits for `a` of w2: w1 saves `s` and parks.
    3. When `t` is ready, w1 comes back, finds that no output came with `t`, and fetches `s`.
    """
    options = {"linger": 0.5, "duplicable": "s", "expected": {"s": (1.0, 60.0)}}
    machine = machine_of(STAND_IN, THREE, "w1", **options)
    machine.handle(Started())
    assert machine.handle(Executed(s, SMALL)) == [
        Mark(t, w1, (w0, w2), (s,), (), producer=w0),
        SetTimer(ParkTimer(1), 0.5),
    ]
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(s)]
    assert machine.handle(Saved(s)) == [Park(executed=(s,))]

    resumed = machine_of(STAND_IN, THREE, "w1", **options)
    assert resumed.handle(Started(executed=(s,))) == [SetTimer(ParkTimer(1), 0.5)]
    assert resumed.handle(Arrived(t, held=(a,))) == [Fetch((s,))]
    assert resumed.handle(Fetched((s,))) == [Execute(t)]


def test_a_marked_copy_is_not_run_again_however_often_the_worker_parks() -> None:
    options = {"linger": 0.5, "duplicable": "s", "expected": {"s": (1.0, 60.0)}}
    machine = machine_of(STAND_IN, THREE, "w1", **options)
    machine.handle(Started(executed=(s,)))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Park(executed=(s,))]


def test_a_worker_that_parks_drops_its_copies_and_their_inputs() -> None:
    """`s` takes `x`, which came for `b`, and `a`, which hasn't come."""
    wiring = {"x": "", "a": "", "b": "x", "c": "a", "s": "xa", "t": "s"}
    assignment = {"w0": "xas", "w1": "bct"}
    options = {"linger": 0.5, "duplicable": "s", "expected": {"s": (1.0, 60.0)}}
    machine = machine_of(wiring, assignment, "w1", **options)
    machine.handle(Started())
    machine.handle(Arrived(b, held=(x,)))
    machine.handle(Executed(b, SMALL))
    assert machine.handle(TimerFired(ParkTimer(2))) == [Forget((x,)), Park(executed=(b,))]


def test_a_restarted_worker_holds_inputs_that_arrive_again_for_a_copy() -> None:
    wiring = {"x": "", "b": "x", "s": "x", "t": "s"}
    assignment = {"w0": "xs", "w1": "bt"}
    machine = machine_of(wiring, assignment, "w1", duplicable="s", expected={"s": (1.0, 60.0)})
    assert machine.handle(Started(executed=(b,))) == []
    assert machine.handle(Arrived(b, held=(x,))) == [Execute(s)]


def test_an_announcement_is_not_followed_for_a_copy_alone() -> None:
    wiring = {"x": "", "b": "x", "s": "x", "t": "s"}
    assignment = {"w0": "xs", "w1": "bt"}
    options = {"preload": "b", "duplicable": "s", "expected": {"s": (1.0, 60.0)}}
    machine = machine_of(wiring, assignment, "w1", **options)
    machine.handle(Started(executed=(b,)))
    assert machine.handle(Announced((x,))) == []
