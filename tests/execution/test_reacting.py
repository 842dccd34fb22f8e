"""The machine as data: reactions are told events, and their orders are followed if they fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from execution_examples import (
    ONE_SLOT,
    CheckedMachine,
    a,
    b,
    c,
    d,
    machine_of,
    part_of,
    plan_of,
    w0,
    w1,
    w2,
)

from shoal.errors import ReactionError
from shoal.execution.effects import (
    Announce,
    Effect,
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
    Event,
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
from shoal.execution.machine import WorkerMachine
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.obligations import Obligations
from shoal.execution.plan import Prewarm
from shoal.execution.reacting import ReactingMachine, planned_machine
from shoal.execution.reactions import (
    Duplicate,
    Linger,
    Order,
    Preload,
    Reaction,
    RunAfter,
    RunFirst,
    SaveEarly,
    WorkerView,
)
from shoal.execution.retries import retry_pause
from shoal.execution.timers import LimitTimer, ParkTimer, RetryTimer, WarmUpTimer
from shoal.types import MB_PER_CPU, Resources, TaskId

SMALL = INLINE_NBYTES
LARGE = INLINE_NBYTES + 1
TWO_SLOTS = Resources(memory_mb=2 * MB_PER_CPU)


@dataclass(frozen=True)
class Told:
    """A reaction that is a function."""

    function: Callable[[Event, WorkerView], Any]

    def react(self, event: Event, worker: WorkerView) -> Any:
        """What the function returns."""
        return self.function(event, worker)


def after(*kinds: type[Event], give: list[Order]) -> Told:
    """A reaction that gives these orders after events of these kinds."""
    return Told(lambda event, _: give if isinstance(event, kinds) else None)


def reacting(
    wiring: dict[str, str],
    assignment: dict[str, str],
    *reactions: Reaction,
    worker: str = "w0",
    **options: Any,
) -> CheckedMachine:
    return machine_of(wiring, assignment, worker, reactions=reactions, **options)


def seen(
    look: Callable[[Event, WorkerView], Any], wanted: type[Event] | None = None
) -> tuple[Told, list[Any]]:
    """A reaction that notes what it sees, and its notes."""
    notes: list[Any] = []

    def note(event: Event, worker: WorkerView) -> None:
        if wanted is None or isinstance(event, wanted):
            notes.append(look(event, worker))

    return Told(note), notes


CHAIN = {"a": "", "b": "a", "c": "b"}
APART = {"a": "", "b": "", "c": "ab"}


def test_only_a_worker_with_reactions_has_a_machine_that_asks_them() -> None:
    plain = part_of(plan_of(CHAIN, {"w0": "abc"}), "w0")
    asking = part_of(plan_of(CHAIN, {"w0": "abc"}, reactions=(after(give=[]),)), "w0")
    assert type(planned_machine(plain)) is WorkerMachine
    assert type(planned_machine(asking)) is ReactingMachine


def test_every_worker_of_a_plan_has_its_reactions() -> None:
    reaction = after(give=[])
    plan = plan_of(APART, {"w0": "a", "w1": "b", "w2": "c"}, reactions=(reaction,))
    assert [part.reactions for part in plan.parts()] == [(reaction,)] * 3


# What a reaction is told, and sees.


def test_a_reaction_is_told_events_but_no_timers_other_than_those_of_retries() -> None:
    reaction, told = seen(lambda event, _: event)
    machine = reacting(
        APART,
        {"w0": "ac", "w1": "b"},
        reaction,
        retries={"a": 1},
        prewarm={"a": (Prewarm(ONE_SLOT, 1.0),)},
        linger=0.5,
    )
    events: list[Event] = [
        *(Started(), Failed(a), TimerFired(RetryTimer(a)), TimerFired(WarmUpTimer(1))),
        *(Executed(a, SMALL), TimerFired(ParkTimer(1)), Saved(a), Arrived(c, held=(b,))),
    ]
    for event in events:
        machine.handle(event)
    unheard = [TimerFired(WarmUpTimer(1)), TimerFired(ParkTimer(1))]
    assert told == [event for event in events if event not in unheard]


def test_a_reaction_is_not_told_that_the_run_ends() -> None:
    reaction, told = seen(lambda event, _: event)
    machine = reacting(CHAIN, {"w0": "abc"}, reaction)
    machine.handle(Started())
    machine.handle(Stopped())
    machine.handle(Executed(a, SMALL))
    assert told == [Started()]


def test_a_worker_whose_time_limit_is_near_asks_nothing_more() -> None:
    reaction, told = seen(lambda event, _: type(event))
    machine = reacting(CHAIN, {"w0": "abc"}, reaction, limit=10.0)
    machine.handle(Started())
    machine.handle(TimerFired(LimitTimer()))
    assert machine.handle(Executed(a, SMALL)) == [Save(a)]
    assert told == [Started]


def test_a_reaction_sees_the_state_after_the_event_and_before_the_next_steps() -> None:
    def look(event: Event, worker: WorkerView) -> dict[str, Any]:
        names = ("worker", "resources", "now", "ready", "idle")
        facts = {name: getattr(worker, name) for name in names}
        sets = {n: set(getattr(worker, n)) for n in ("tasks", "running", "executed", "held")}
        return facts | sets | {"nbytes": worker.nbytes(a)}

    reaction, notes = seen(look)
    machine = reacting(CHAIN, {"w0": "abc"}, reaction)
    machine.handle(Started(), now=1.0)
    machine.handle(Executed(a, 70), now=2.0)
    same = {"worker": w0, "resources": ONE_SLOT, "tasks": {a, b, c}, "running": set()}
    first = {"now": 1.0, "ready": (a,), "idle": False, "executed": set(), "held": set()}
    second = {"now": 2.0, "ready": (b,), "idle": False, "executed": {a}, "held": {a}}
    assert notes == [same | first | {"nbytes": 0}, same | second | {"nbytes": 70}]


def test_a_reaction_sees_that_its_worker_has_nothing_to_do() -> None:
    reaction, notes = seen(lambda _, worker: worker.idle)
    machine = reacting(APART, {"w0": "ac", "w1": "b"}, reaction)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert notes == [False, True]


def test_a_reaction_can_not_change_what_it_sees() -> None:
    reaction, notes = seen(lambda _, worker: (worker.held, worker.running, worker.executed))
    machine = reacting(CHAIN, {"w0": "abc"}, reaction)
    machine.handle(Started())
    held, running, executed = notes[0]
    assert not [each for each in notes[0] if hasattr(each, "add") or hasattr(each, "clear")]
    assert (held | running, running - executed, len(executed)) == ({a}, {a}, 0)


def test_ready_tasks_are_seen_in_the_order_in_which_they_are_to_run() -> None:
    reaction, notes = seen(lambda _, worker: worker.ready)
    plan = plan_of({"a": "", "b": "", "c": ""}, {"w0": "abc"}, reactions=(reaction,))
    ranked = replace(plan, ranks={a: 3, b: 1, c: 2})
    planned_machine(part_of(ranked, "w0")).handle(Started(), 0.0)
    assert notes == [(b, c, a)]


def test_reactions_are_asked_in_turn_and_see_what_earlier_ones_did() -> None:
    swap = after(Started, give=[RunFirst(b)])
    reaction, notes = seen(lambda _, worker: worker.ready)
    machine = reacting({"a": "", "b": ""}, {"w0": "ab"}, swap, reaction)
    machine.handle(Started())
    assert notes == [(b, a)]


# Orders.


def test_run_first_puts_a_ready_task_before_the_others() -> None:
    wiring = {"a": "", "b": "", "c": "", "d": ""}
    machine = reacting(wiring, {"w0": "abcd"}, after(Started, give=[RunFirst(c)]))
    order = [machine.handle(Started())[0]]
    order += [machine.handle(Executed(task, SMALL))[-1] for task in (c, a, b)]
    assert order == [Execute(task) for task in (c, a, b, d)]


def test_run_first_does_not_concern_a_task_that_is_not_ready() -> None:
    machine = reacting({"a": "", "b": "a"}, {"w0": "ab"}, after(Started, give=[RunFirst(b)]))
    assert machine.handle(Started()) == [Execute(a)]


def test_the_ranks_of_other_starts_stay_as_they_are() -> None:
    wiring, home = {"a": "", "b": ""}, {"w0": "ab"}
    plan = plan_of(wiring, home, reactions=(after(Started, give=[RunFirst(b)]),))
    part = part_of(plan, "w0")
    shared = Obligations.of(part)
    planned_machine(part, shared).handle(Started(), 0.0)
    assert shared == Obligations.of(part)


def test_run_after_begins_a_task_when_the_other_has_ended() -> None:
    wiring = {"a": "", "b": "", "c": ""}
    once = after(Started, give=[RunAfter(b, a)])
    machine = reacting(wiring, {"w0": "abc"}, once, resources={"w0": TWO_SLOTS})
    assert machine.handle(Started()) == [Execute(a), Execute(c)]
    assert Execute(b) not in machine.handle(Executed(c, SMALL))
    assert machine.handle(Executed(a, SMALL))[-1] == Execute(b)


def test_run_after_waits_for_one_try_of_the_other_task() -> None:
    once = after(Started, give=[RunAfter(b, a)])
    machine = reacting({"a": "", "b": ""}, {"w0": "ab"}, once, retries={"a": 1})
    assert machine.handle(Started()) == [Execute(a)]
    assert machine.handle(Failed(a)) == [SetTimer(RetryTimer(a), retry_pause(a, 0)), Execute(b)]


@pytest.mark.parametrize("orders", [
    [RunAfter(a, a)],
    [RunAfter(a, b), RunAfter(b, a)],
    [RunAfter(a, b), RunAfter(b, c), RunAfter(c, a)],
    [RunAfter(a, d)],
    [RunAfter(a, TaskId("nobody's"))],
])  # fmt: skip
def test_tasks_never_wait_for_each_other_nor_for_one_that_is_not_ready(
    orders: list[Order],
) -> None:
    wiring = {"a": "", "b": "", "c": "", "d": "abc"}
    machine = reacting(wiring, {"w0": "abcd"}, after(Started, Executed, give=orders))
    effects = machine.handle(Started())
    ran = []
    while not machine.finished:
        (task,) = [effect.task for effect in effects if isinstance(effect, Execute)]
        ran.append(task)
        effects = machine.handle(Executed(task, SMALL))
    assert sorted(ran) == [a, b, c, d]


def test_a_task_does_not_wait_for_a_copy_that_may_be_dropped() -> None:
    """A copy that is ready is dropped when its output comes, and never leaves a slot.

    1. The copy of `a` gathers its constant while `b` takes the only slot.
    2. The constant comes: the copy is ready, and so is `d`, which shall run after it.
    3. The output of `a` comes from its owner.
    """
    wiring = {"a": "", "b": "", "c": "a", "d": ""}
    machine = reacting(
        wiring,
        {"w0": "a", "w1": "bcd"},
        after(Fetched, give=[RunAfter(d, a)]),
        worker="w1",
        duplicable="a",
        expected={"a": (1.0, 100.0)},
        constants={"a": ["k"], "b": ["l"], "d": ["m"]},
    )
    k, m = TaskId("k"), TaskId("m")
    assert Fetch((k,)) in machine.handle(Started())
    assert machine.handle(Fetched((TaskId("l"),))) == [Execute(b)]
    machine.handle(Fetched((k,)))
    machine.handle(Fetched((m,)))
    machine.handle(Arrived(c, held=(a,)))
    ran = [e for e in machine.handle(Executed(b, SMALL)) if isinstance(e, Execute)]
    ran += [e for e in machine.handle(Executed(c, SMALL)) if isinstance(e, Execute)]
    assert sorted(step.task for step in ran) == [c, d]


def test_save_early_saves_a_small_output_that_is_still_needed_once() -> None:
    machine = reacting(CHAIN, {"w0": "abc"}, after(Executed, Saved, give=[SaveEarly(a)]))
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL)) == [Save(a), Execute(b)]
    assert machine.handle(Saved(a)) == []
    assert machine.handle(Executed(b, SMALL)) == [Forget((a,)), Execute(c)]


def test_an_output_that_was_saved_early_is_not_made_again_by_a_restarted_worker() -> None:
    machine = reacting(CHAIN, {"w0": "abc"}, after(Executed, give=[SaveEarly(a)]))
    found = Recovered(saved=frozenset({a}))
    assert machine.handle(Started(recovered=found)) == [Fetch((a,))]
    assert machine.handle(Fetched((a,))) == [Execute(b)]


def test_save_early_does_not_concern_an_output_that_nobody_needs_or_that_is_not_here() -> None:
    orders: list[Order] = [SaveEarly(a), SaveEarly(b), SaveEarly(TaskId("nobody's"))]
    machine = reacting({"a": ""}, {"w0": "a"}, after(Started, Executed, give=orders))
    assert machine.handle(Started()) == [Execute(a)]
    assert machine.handle(Executed(a, SMALL)) == [HandIn(a, saved=False), Forget((a,)), Finish()]


def test_save_early_does_not_concern_an_output_of_another_worker() -> None:
    orders = after(Arrived, give=[SaveEarly(b)])
    machine = reacting(APART, {"w0": "ac", "w1": "b"}, orders)
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Arrived(c, held=(b,))) == [Execute(c)]


def test_an_output_that_can_not_be_saved_early_stays_in_memory() -> None:
    machine = reacting(CHAIN, {"w0": "abc"}, after(Executed, Unsaved, give=[SaveEarly(a)]))
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL)) == [Save(a), Execute(b)]
    assert machine.handle(Unsaved(a)) == []
    assert machine.handle(Executed(b, SMALL)) == [Forget((a,)), Execute(c)]


def test_preload_announces_large_outputs_to_the_worker_of_a_task() -> None:
    machine = reacting(APART, {"w0": "a", "w1": "b", "w2": "c"}, after(Executed, give=[Preload(c)]))
    machine.handle(Started())
    assert machine.handle(Executed(a, LARGE)) == [Save(a)]
    assert machine.handle(Saved(a))[:2] == [
        Announce(a, owner=w2),
        Mark(c, owner=w2, producers=(w0, w1), inline=(), saved=(a,)),
    ]


def test_preload_fetches_the_large_constants_of_an_own_task_that_waits() -> None:
    k = TaskId("k")
    machine = reacting(
        APART, {"w0": "b", "w1": "ac"}, after(Started, Fetched, give=[Preload(c), Preload(a)]),
        worker="w1", constants={"c": ["k"]},
    )  # fmt: skip
    assert machine.handle(Started()) == [Fetch((k,)), Execute(a)]
    assert machine.handle(Fetched((k,))) == []
    machine.handle(Executed(a, SMALL))
    assert machine.handle(Arrived(c, held=(b,))) == [Execute(c)]


def test_preload_fetches_nothing_for_a_task_that_has_been_executed() -> None:
    orders = after(Executed, give=[Preload(a)])
    machine = reacting(CHAIN, {"w0": "abc"}, orders, constants={"a": ["k"]})
    assert machine.handle(Started()) == [Fetch((TaskId("k"),))]
    assert machine.handle(Fetched((TaskId("k"),))) == [Execute(a)]
    assert machine.handle(Executed(a, SMALL)) == [Forget((TaskId("k"),)), Execute(b)]
    assert machine.handle(Executed(b, SMALL)) == [Forget((a,)), Execute(c)]


def test_a_preloaded_constant_does_not_keep_a_worker_that_prepares_to_park() -> None:
    machine = reacting(
        APART, {"w0": "b", "w1": "ac"}, after(Saved, give=[Preload(c)]),
        worker="w1", constants={"c": ["k"]}, linger=0.5,
    )  # fmt: skip
    machine.handle(Started())
    machine.handle(Executed(a, SMALL))
    assert machine.handle(TimerFired(ParkTimer(1))) == [Save(a)]
    assert machine.handle(Saved(a)) == [Park(executed=(a,))]


def test_prewarm_warms_up_sandboxes_now_or_after_a_delay() -> None:
    orders: list[Order] = [Prewarm(TWO_SLOTS, count=3), Prewarm(ONE_SLOT, 2.0)]
    machine = reacting(CHAIN, {"w0": "abc"}, after(Started, give=orders))
    expected: list[Effect] = [WarmUp(TWO_SLOTS, 3), SetTimer(WarmUpTimer(1), 2.0), Execute(a)]
    assert machine.handle(Started()) == expected
    assert machine.handle(TimerFired(WarmUpTimer(1))) == [WarmUp(ONE_SLOT)]


def test_duplicate_begins_a_copy_before_the_plan_would() -> None:
    options: dict[str, Any] = {"duplicable": "a", "expected": {"a": (1.0, 1.0)}, "linger": 0.5}
    home = {"w0": "a", "w1": "b"}
    plain = machine_of({"a": "", "b": "a"}, home, "w1", **options)
    assert not [e for e in plain.handle(Started()) if isinstance(e, Execute)]
    machine = reacting(
        {"a": "", "b": "a"}, home, after(Started, give=[Duplicate(a)]), worker="w1", **options
    )
    assert machine.handle(Started()) == [Execute(a)]
    mark = Mark(b, owner=w1, producers=(w0,), inline=(a,), saved=(), producer=w0)
    assert mark in machine.handle(Executed(a, SMALL))


def test_a_task_is_not_duplicated_unless_the_plan_allows_it_and_a_slot_is_free() -> None:
    wiring, home = {"a": "", "b": "a", "c": ""}, {"w0": "a", "w1": "bc"}
    order = after(Started, give=[Duplicate(a)])
    assert reacting(wiring, home, order, worker="w1").handle(Started()) == [Execute(c)]
    allowed: dict[str, Any] = {"duplicable": "a", "expected": {"a": (1.0, 1.0)}}
    machine = reacting(wiring, home, order, worker="w1", **allowed)
    assert machine.handle(Started()) == [Execute(c)]
    assert Execute(a) not in machine.handle(Executed(c, SMALL))


def test_linger_says_how_long_the_worker_waits_before_it_parks() -> None:
    machine = reacting(APART, {"w0": "ac", "w1": "b"}, after(Executed, give=[Linger(2.0)]))
    machine.handle(Started())
    assert machine.handle(Executed(a, SMALL))[-1] == SetTimer(ParkTimer(1), 2.0)


def test_orders_about_tasks_of_others_are_ignored() -> None:
    orders: list[Order] = []
    for task in (a, c, TaskId("nobody's")):
        orders += [RunFirst(task), RunAfter(task, b), RunAfter(b, task), SaveEarly(task)]
        orders += [Preload(task), Duplicate(task)]
    every = after(Started, Executed, Announced, Arrived, give=orders)
    home = {"w0": "a", "w1": "b", "w2": "c"}
    machine, plain = reacting(APART, home, every, worker="w1"), machine_of(APART, home, "w1")
    for event in (Started(), Announced((a,)), Executed(b, SMALL)):
        assert machine.handle(event) == plain.handle(event)


# Broken reactions.


def raising(event: Event, worker: WorkerView) -> None:
    raise KeyError(f"no {worker.worker}")


BROKEN: list[tuple[Callable[[Event, WorkerView], Any], str]] = [
    (raising, r"raised KeyError: 'no w0' \(line \d+ of .*test_reacting.py\)"),
    (lambda *_: 5, "raised TypeError: 'int' object is not iterable"),
    (lambda *_: [None], "gave None, which is not a valid order"),
    (lambda *_: "abc", "gave 'a', which is not a valid order"),
    (lambda *_: [Execute(a)], r"gave Execute\(task='a'\), which is not a valid order"),
    (lambda *_: [RunFirst], "which is not a valid order"),
    (lambda *_: [RunFirst(7)], r"gave RunFirst\(task=7\)"),  # type: ignore[arg-type]
    (lambda *_: [RunAfter(a, [])], r"gave RunAfter\("),  # type: ignore[arg-type]
    (lambda *_: [Prewarm(2048)], r"gave Prewarm\("),  # type: ignore[arg-type]
    (lambda *_: [Prewarm(ONE_SLOT, count=0)], r"gave Prewarm\("),
    (lambda *_: [Prewarm(ONE_SLOT, delay=float("inf"))], r"gave Prewarm\("),
    (lambda *_: [Linger(-1.0)], r"gave Linger\(seconds=-1.0\)"),
    (lambda *_: [Linger(float("nan"))], r"gave Linger\(seconds=nan\)"),
    (lambda *_: [Linger(3600.0)], r"gave Linger\(seconds=3600.0\)"),
]


@pytest.mark.parametrize(("function", "what"), BROKEN)
def test_a_broken_reaction_is_an_error_that_names_it_the_worker_and_the_event(
    function: Callable[[Event, WorkerView], Any], what: str
) -> None:
    machine = reacting(CHAIN, {"w0": "abc"}, Told(function))
    expected = f"reaction Told is broken: after Started.* on worker w0, .*{what}"
    with pytest.raises(ReactionError, match=expected) as caught:
        machine.handle(Started())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
