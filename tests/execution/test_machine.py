"""The machine as data: each event, and exactly the effects that follow."""

import gc
import weakref

import pytest
from execution_examples import a, b, c, d, e, f, g, machine_of, w0, w1, w2

from shoal.errors import ProtocolViolation
from shoal.execution.effects import (
    Abort,
    Execute,
    Fetch,
    Finish,
    Forget,
    HandIn,
    Mark,
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
)
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.retries import retry_pause
from shoal.execution.story import REMEMBERED
from shoal.execution.timers import CopyTimer, ParkTimer, RetryTimer
from shoal.types import Resources, TaskId

SMALL = INLINE_NBYTES
LARGE = INLINE_NBYTES + 1


def test_local_chain_is_neither_saved_nor_marked() -> None:
    machine = machine_of({"a": "", "b": "a", "c": "b"}, {"w0": "abc"})
    assert machine.handle(Started()) == [Execute(a)]
    assert machine.handle(Executed(a, LARGE), now=1.0) == [Execute(b)]
    assert machine.handle(Executed(b, LARGE), now=2.0) == [Forget((a,)), Execute(c)]
    assert machine.handle(Executed(c, SMALL)) == [HandIn(c, saved=False), Forget((b, c)), Finish()]
    assert machine.finished


def test_large_sink_is_saved_before_it_is_handed_in() -> None:
    machine = machine_of({"a": ""}, {"w0": "a"})
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Save(a)]
    assert machine.handle(Saved(a)) == [HandIn(a, saved=True), Forget((a,)), Finish()]


def test_a_sink_with_a_consumer_is_handed_in_once_and_kept_for_it() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "ab"}, sinks="aab")
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL)) == [HandIn(a, saved=False), Execute(b)]
    assert machine.handle(Executed(b, SMALL)) == [
        HandIn(b, saved=False),
        Forget((a, b)),
        Finish(),
    ]


def test_an_output_that_nobody_needs_is_dropped_at_once() -> None:
    machine = machine_of({"a": "", "b": ""}, {"w0": "ab"}, sinks="b")
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Forget((a,)), Execute(b)]


def test_a_small_output_needed_elsewhere_travels_with_the_mark() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"})
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL)) == [
        Mark(b, owner=w1, producers=(w0,), inline=(a,), saved=()),
        Forget((a,)),
        Finish(),
    ]


def test_large_output_is_not_marked_before_it_is_saved() -> None:
    machine = machine_of({"a": "", "b": "a", "c": ""}, {"w0": "ac", "w1": "b"})
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Save(a), Execute(c)]
    assert machine.handle(Saved(a)) == [
        Mark(b, owner=w1, producers=(w0,), inline=(), saved=(a,)),
        Forget((a,)),
    ]


def test_worker_does_not_finish_before_its_last_output_is_saved() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"})
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Save(a)]
    assert not machine.finished
    assert machine.handle(Saved(a))[-1] == Finish()


def test_task_elsewhere_is_marked_only_after_the_last_output_for_it() -> None:
    machine = machine_of({"a": "", "b": "", "c": "", "d": "abc"}, {"w0": "abc", "w1": "d"})
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL)) == [Execute(b)]
    assert machine.handle(Executed(b, LARGE)) == [Save(b), Execute(c)]
    assert machine.handle(Executed(c, SMALL)) == []
    assert machine.handle(Saved(b)) == [
        Mark(d, owner=w1, producers=(w0,), inline=(a, c), saved=(b,)),
        Forget((b, a, c)),
        Finish(),
    ]


def test_output_for_several_tasks_elsewhere_is_saved_once_and_marked_for_each() -> None:
    machine = machine_of({"a": "", "b": "a", "c": "a"}, {"w0": "a", "w1": "b", "w2": "c"})
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Save(a)]
    assert machine.handle(Saved(a)) == [
        Mark(b, owner=w1, producers=(w0,), inline=(), saved=(a,)),
        Mark(c, owner=w2, producers=(w0,), inline=(), saved=(a,)),
        Forget((a,)),
        Finish(),
    ]


def test_mark_names_every_worker_whose_marks_the_task_needs() -> None:
    wiring = {"a": "", "b": "", "c": "", "d": "bac"}
    machine = machine_of(wiring, {"w0": "a", "w1": "b", "w2": "cd"})
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL))[0] == Mark(d, w2, (w1, w0, w2), (a,), ())


def test_own_shared_task_is_marked_without_its_output_and_waits_until_it_arrives() -> None:
    machine = machine_of({"a": "", "b": "", "c": "ab"}, {"w0": "ac", "w1": "b"})
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [
        Mark(c, owner=w0, producers=(w0, w1), inline=(), saved=())
    ]
    assert machine.handle(Arrived(c, held=(b,))) == [Execute(c)]
    assert machine.handle(Executed(c, SMALL)) == [
        HandIn(c, saved=False),
        Forget((a, b, c)),
        Finish(),
    ]


def test_own_shared_task_without_own_inputs_is_not_marked_by_its_worker() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"}, "w1")
    assert machine.handle(Started()) == []
    assert machine.handle(Arrived(b, held=(a,))) == [Execute(b)]


def test_an_output_for_local_and_remote_tasks_is_kept_until_both_are_served() -> None:
    machine = machine_of({"a": "", "b": "a", "c": "a"}, {"w0": "ac", "w1": "b"})
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Save(a), Execute(c)]
    assert machine.handle(Executed(c, SMALL)) == [HandIn(c, saved=False), Forget((c,))]
    assert machine.handle(Saved(a)) == [
        Mark(b, owner=w1, producers=(w0,), inline=(), saved=(a,)),
        Forget((a,)),
        Finish(),
    ]


def test_repeated_arrival_does_nothing_while_its_input_is_needed() -> None:
    machine = machine_of({"a": "", "b": "a", "c": "b"}, {"w0": "a", "w1": "bc"}, "w1")
    machine.handle(Started())
    assert machine.handle(Arrived(b, held=(a,))) == [Execute(b)]
    assert machine.handle(Arrived(b, held=(a,))) == []
    assert machine.handle(Executed(b, SMALL)) == [Forget((a,)), Execute(c)]


def test_a_repeated_arrival_after_the_task_drops_its_inputs_again() -> None:
    machine = machine_of({"a": "", "b": "a", "c": "b"}, {"w0": "a", "w1": "bc"}, "w1")
    machine.handle(Started())
    machine.handle(Arrived(b, held=(a,)))
    machine.handle(Executed(b, SMALL))
    assert machine.handle(Arrived(b, held=(a,))) == [Forget((a,))]


def test_repeated_arrival_keeps_what_another_task_still_needs() -> None:
    """An input arrives with two tasks, and the first task's message is repeated.

    1. `b` arrives with `a`, runs and is done; `c`, which also takes `a`, hasn't arrived.
    2. `b` arrives again: `a` is put into memory again, and stays for `c`.
    3. `c` arrives and runs, and only now `a` is dropped.
    """
    machine = machine_of({"a": "", "b": "a", "c": "a"}, {"w0": "a", "w1": "bc"}, "w1")
    machine.handle(Started())
    machine.handle(Arrived(b, held=(a,)))
    assert machine.handle(Executed(b, SMALL)) == [HandIn(b, saved=False), Forget((b,))]
    assert machine.handle(Arrived(b, held=(a,))) == []
    assert machine.handle(Arrived(c, held=(a,))) == [Execute(c)]
    assert Forget((a, c)) in machine.handle(Executed(c, SMALL))


def test_missing_inputs_are_fetched_together_before_the_task_runs() -> None:
    wiring = {"a": "", "b": "", "c": "", "d": "abc"}
    machine = machine_of(wiring, {"w0": "abc", "w1": "d"}, "w1")
    machine.handle(Started())
    assert machine.handle(Arrived(d, held=(b,))) == [Fetch((a, c))]
    assert machine.handle(Fetched((a, c))) == [Execute(d)]
    assert Forget((a, b, c, d)) in machine.handle(Executed(d, SMALL))


def test_input_of_two_tasks_is_fetched_once() -> None:
    wiring = {"a": "", "b": "a", "c": "a"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bc"}, "w1")
    machine.handle(Started())
    assert machine.handle(Arrived(b)) == [Fetch((a,))]
    assert machine.handle(Arrived(c)) == []
    assert machine.handle(Fetched((a,))) == [Execute(b)]
    assert machine.handle(Executed(b, SMALL)) == [
        HandIn(b, saved=False),
        Forget((b,)),
        Execute(c),
    ]
    assert Forget((a, c)) in machine.handle(Executed(c, SMALL))


def test_input_that_is_still_in_memory_is_not_fetched_again() -> None:
    wiring = {"a": "", "b": "a", "c": "a"}
    machine = machine_of(wiring, {"w0": "a", "w1": "bc"}, "w1")
    machine.handle(Started())
    machine.handle(Arrived(b))
    machine.handle(Fetched((a,)))
    machine.handle(Executed(b, SMALL))
    assert machine.handle(Arrived(c)) == [Execute(c)]


def test_input_that_comes_with_a_message_while_it_is_fetched_serves_both_tasks() -> None:
    """One output reaches a worker both ways.

    1. The producer parks between the marks of `b` and `c`, so `a` travels with `b` only.
    2. `c` overtakes `b`: `a` is being fetched for it.
    3. `b` arrives with `a`, and needn't wait for the fetch; `c` does.
    """
    machine = machine_of({"a": "", "b": "a", "c": "a"}, {"w0": "a", "w1": "bc"}, "w1")
    machine.handle(Started())
    assert machine.handle(Arrived(c)) == [Fetch((a,))]
    assert machine.handle(Arrived(b, held=(a,))) == [Execute(b)]
    assert machine.handle(Executed(b, SMALL)) == [HandIn(b, saved=False), Forget((b,))]
    assert machine.handle(Fetched((a,))) == [Execute(c)]
    assert Forget((a, c)) in machine.handle(Executed(c, SMALL))


def test_constants_are_fetched_once_per_worker_and_freed_after_the_last_task() -> None:
    big = TaskId("constant")
    machine = machine_of(
        {"a": "", "b": "a", "c": ""},
        {"w0": "abc"},
        constants={"a": ["constant", "constant"], "c": ["constant"]},
    )
    assert machine.handle(Started()) == [Fetch((big,))]
    assert machine.handle(Fetched((big,))) == [Execute(a)]
    assert machine.handle(Executed(a, SMALL)) == [Execute(b)]
    assert machine.handle(Executed(b, SMALL)) == [
        HandIn(b, saved=False),
        Forget((a, b)),
        Execute(c),
    ]
    assert machine.handle(Executed(c, SMALL)) == [
        HandIn(c, saved=False),
        Forget((big, c)),
        Finish(),
    ]


def test_a_worker_runs_as_many_tasks_at_once_as_it_has_slots() -> None:
    wiring = {name: "" for name in "abcdef"}
    resources = {"w0": Resources(memory_mb=4 * 1769)}
    machine = machine_of(wiring, {"w0": "abcdef"}, resources=resources)
    assert machine.handle(Started()) == [Execute(a), Execute(b), Execute(c), Execute(d)]
    assert machine.handle(Executed(c, SMALL))[-1] == Execute(e)
    assert machine.handle(Executed(a, SMALL))[-1] == Execute(f)
    assert Finish() not in machine.handle(Executed(b, SMALL))
    assert Finish() not in machine.handle(Executed(e, SMALL))
    assert Finish() not in machine.handle(Executed(f, SMALL))
    assert machine.handle(Executed(d, SMALL))[-1] == Finish()


def test_ready_tasks_run_in_the_workflows_order() -> None:
    machine = machine_of({"a": "", "b": "a", "c": "", "d": "c"}, {"w0": "abcd"})
    order = []
    effects = machine.handle(Started())
    while not machine.finished:
        (task,) = [effect.task for effect in effects if isinstance(effect, Execute)]
        order.append(task)
        effects = machine.handle(Executed(task, SMALL))
    assert order == [a, b, c, d]


def test_tasks_that_others_wait_for_go_first() -> None:
    wiring = {"a": "", "b": "", "c": "", "d": "c"}
    machine = machine_of(wiring, {"w0": "abc", "w1": "d"})
    assert machine.handle(Started()) == [Execute(c)]
    assert machine.handle(Executed(c, SMALL))[-1] == Execute(a)


def test_a_failed_task_is_retried_with_doubling_pauses_and_then_ends_the_run() -> None:
    machine = machine_of({"a": ""}, {"w0": "a"}, retries={"a": 3}, linger=0.5)
    machine.handle(Started())
    for pause in (retry_pause(a, tried) for tried in range(3)):
        (timer,) = machine.handle(Failed(a))
        assert isinstance(timer, SetTimer)
        assert timer.seconds == pytest.approx(pause)
        assert machine.handle(TimerFired(timer.timer)) == [Execute(a)]
    assert machine.handle(Failed(a)) == [Abort(a)]
    assert machine.finished


def test_task_without_retries_ends_the_run_at_its_first_failure() -> None:
    machine = machine_of({"a": "", "b": ""}, {"w0": "ab"})
    machine.handle(Started())
    assert machine.handle(Failed(a)) == [Abort(a)]
    assert machine.handle(TimerFired(ParkTimer(1))) == []


def test_another_task_uses_the_slot_during_the_pause() -> None:
    machine = machine_of({"a": "", "b": ""}, {"w0": "ab"}, retries={"a": 1})
    machine.handle(Started())
    assert machine.handle(Failed(a)) == [SetTimer(RetryTimer(a), retry_pause(a, 0)), Execute(b)]
    assert machine.handle(TimerFired(RetryTimer(a))) == []
    assert machine.handle(Executed(b, SMALL))[-1] == Execute(a)


def test_inputs_are_kept_for_the_retry() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "ab"}, retries={"b": 1})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Failed(b)) == [SetTimer(RetryTimer(b), retry_pause(b, 0))]
    assert machine.handle(TimerFired(RetryTimer(b))) == [Execute(b)]
    assert Forget((a, b)) in machine.handle(Executed(b, SMALL))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Executed(a, SMALL), "executed, but not running"),
        (Failed(a), "failed, but not running"),
        (Saved(a), "saved, but not asked for"),
        (Fetched((a,)), "fetched, but not asked for"),
        (Arrived(a), "waits for no other worker"),
        (Arrived(g), "another worker runs it"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_an_invalid_event_is_a_protocol_violation(event: object, reason: str) -> None:
    machine = machine_of({"a": "", "b": "a", "g": "b"}, {"w0": "ab", "w1": "g"})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    with pytest.raises(ProtocolViolation, match=reason):
        machine.handle(event)  # type: ignore[arg-type]


def test_a_protocol_violation_includes_the_tasks_story() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "ab"})
    machine.handle(Started())
    machine.handle(Executed(a, 10), now=1.5)
    with pytest.raises(ProtocolViolation) as caught:
        machine.handle(Executed(a, 10), now=2.0)
    assert str(caught.value).splitlines() == [
        "worker w0, task 'a': executed, but not running",
        "0.000000 Execute(task='a')",
        "1.500000 Executed(task='a', nbytes=10)",
        "2.000000 Executed(task='a', nbytes=10)",
    ]


def test_story_names_only_steps_of_the_task() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "ab"})
    machine.handle(Started())
    machine.handle(Executed(a, SMALL), now=1.0)
    assert machine.story(b) == ["1.000000 Execute(task='b')"]


def test_story_goes_back_a_limited_number_of_events() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"}, "w1")
    machine.handle(Started())
    for _ in range(REMEMBERED + 10):
        machine.handle(TimerFired(CopyTimer(b)))
    assert len(machine._log) == REMEMBERED


def test_events_after_the_end_have_no_effect() -> None:
    machine = machine_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"}, "w1")
    machine.handle(Started())
    machine.handle(Arrived(b, held=(a,)))
    assert machine.handle(Executed(b, SMALL))[-1] == Finish()
    for event in (Arrived(b, held=(a,)), TimerFired(ParkTimer(1)), MailCame(), Executed(b, SMALL)):
        assert machine.handle(event) == []


def test_a_failure_that_no_retry_can_cure_ends_the_run() -> None:
    machine = machine_of({"a": ""}, {"w0": "a"}, retries={"a": 3})
    machine.handle(Started())
    assert machine.handle(Failed(a, final=True)) == [Abort(a)]


def test_pauses_double_and_differ_between_tasks() -> None:
    pauses = [retry_pause(a, tried) for tried in range(8)]
    assert all(0.5 <= pause / (0.1 * 2**tried) <= 1.5 for tried, pause in enumerate(pauses))
    assert retry_pause(a, 0) != retry_pause(b, 0)


def test_an_unreferenced_machine_is_freed_without_the_garbage_collector() -> None:
    machine = machine_of({"a": ""}, {"w0": "a"})
    machine.handle(Started())
    held = weakref.ref(machine)
    gc.disable()
    try:
        del machine
        assert held() is None
    finally:
        gc.enable()
