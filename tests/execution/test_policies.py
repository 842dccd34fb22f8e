"""The policies of flexible workers: each decision by itself, then each policy in a machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from execution_examples import ONE_SLOT, a, b, c, d, e
from execution_strategies import DrawnCosts, Outcome, Scenario, scenarios
from flexible_examples import flexible_machine, flexible_plan, made_flexible, policies
from hypothesis import given
from hypothesis import strategies as st

from examples_drawn import examples
from shoal.execution.effects import (
    Execute,
    Fetch,
    Finish,
    Forget,
    Invoke,
    Leave,
    Mark,
    Save,
    SetTimer,
)
from shoal.execution.events import Arrived, Executed, Marked, Saved, TimerFired
from shoal.execution.memory import INLINE_NBYTES
from shoal.execution.plan import Plan
from shoal.execution.policies import Forecast, Pace, Policies, branches, invoked_after
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import Simulation
from shoal.execution.timers import HoldTimer, LimitTimer
from shoal.types import Resources, TaskId, WorkerId

BIG = 1_000_000
INFINITY = float("inf")
SECOND_PER_MB = Pace(0.0, 1e-6)
FORECAST = Forecast({}, {}, start=2.0, message=0.25)


def deciding(**switches: Any) -> Policies:
    """Create policies for which a megabyte is big and takes a second."""
    pace = {"save": SECOND_PER_MB, "fetch": SECOND_PER_MB}
    return Policies(**({"big_output_nbytes": BIG} | pace | switches))


# Decisions.


@pytest.mark.parametrize(("nbytes", "kept"), [(BIG - 1, False), (BIG, True)])
def test_without_a_forecast_tasks_stay_with_big_inputs(nbytes: int, kept: bool) -> None:
    situation = {"nbytes": nbytes, "moved": nbytes, "unsaved": nbytes, "backlog": 0.0}
    fan_outs, fan_ins = deciding(fan_out_clustering=True), deciding(fan_in_clustering=True)
    assert fan_outs.keeps(join=False, **situation) is kept
    assert fan_ins.keeps(join=True, **situation) is kept
    assert not fan_outs.keeps(join=True, **situation)
    assert not fan_ins.keeps(join=False, **situation)


@pytest.mark.parametrize(("backlog", "kept"), [(3.9, True), (4.0, True), (4.1, False)])
def test_with_a_forecast_tasks_stay_where_they_begin_sooner(backlog: float, kept: bool) -> None:
    """Another worker would take 2 s to start; writing and fetching its input a second each."""
    known = deciding(fan_out_clustering=True, forecast=FORECAST)
    assert known.keeps(join=False, nbytes=BIG, moved=BIG, unsaved=BIG, backlog=backlog) is kept


def test_saved_inputs_make_another_worker_cheaper() -> None:
    known = deciding(fan_out_clustering=True, forecast=FORECAST)
    assert not known.keeps(join=False, nbytes=BIG, moved=BIG, unsaved=0, backlog=3.5)
    assert not known.keeps(join=False, nbytes=1, moved=0, unsaved=0, backlog=2.5)


def test_outputs_are_held_while_there_is_other_work() -> None:
    known = deciding(delayed_io=True)
    assert known.hold_seconds(BIG, busy=True, wait=0.0, left=None) == INFINITY
    assert known.hold_seconds(BIG, busy=False, wait=0.0, left=None) is None


def test_nothing_is_held_for_longer_than_there_is_time_to_write_it() -> None:
    known = deciding(delayed_io=True)
    assert known.hold_seconds(BIG, busy=True, wait=0.0, left=5.0) == 3.0
    assert known.hold_seconds(BIG, busy=True, wait=0.0, left=2.0) is None
    foreseen = deciding(delayed_io=True, forecast=FORECAST)
    assert foreseen.hold_seconds(BIG, busy=False, wait=1.0, left=2.25) == 0.25


@pytest.mark.parametrize(
    ("wait", "seconds"), [(0.0, 0.5), (-9.0, 0.5), (1.0, 1.5), (1.9, 2.0), (2.0, None)]
)
def test_with_a_forecast_a_wait_costs_less_than_it_saves(
    wait: float, seconds: float | None
) -> None:
    """Writing and fetching a megabyte takes 2 s."""
    known = deciding(delayed_io=True, forecast=FORECAST)
    assert known.hold_seconds(BIG, busy=False, wait=wait, left=None) == seconds


@given(
    policies,
    st.integers(0, 10**9),
    st.booleans(),
    st.floats(-1e3, 1e3),
    st.none() | st.floats(0, 1e3),
)
def test_a_hold_always_leaves_the_time_to_write(
    chosen: Policies, nbytes: int, busy: bool, wait: float, left: float | None
) -> None:
    seconds = chosen.hold_seconds(nbytes, busy=busy, wait=wait, left=left)
    if seconds is not None and left is not None:
        assert 0 < seconds <= left - chosen.save.seconds(nbytes)
    if seconds is not None and chosen.forecast is not None:
        assert seconds <= chosen.save.seconds(nbytes) + chosen.fetch.seconds(nbytes)


@given(st.integers(0, 20_000), st.integers(1, 60))
def test_an_invoker_delegates_what_exceeds_its_share(count: int, most: int) -> None:
    shares = branches(range(count), most)
    assert len(shares) <= most or most == 1
    assert [key for share in shares for key in share] == (list(range(count)) if shares else [])
    assert bool(shares) is (count > most)
    sizes = [len(share) for share in shares]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_tree_of_invokers_is_only_as_deep_as_needed() -> None:
    assert invoked_after(3, 1.0, 0.25) == [0.25, 0.5, 0.75]
    assert max(invoked_after(50, 1.0, 0.0)) == 0.0
    assert max(invoked_after(2_500, 1.0, 0.0)) == 1.0
    assert max(invoked_after(2_501, 1.0, 0.0)) == 2.0
    assert max(invoked_after(1_000, 1.0, 0.25)) == 1.0 + 50 * 0.25


# One worker.

FAN_OUT = {"a": "", "b": "a", "c": "a", "d": "a"}


def test_a_big_output_keeps_all_branches_on_its_worker() -> None:
    machine = flexible_machine(FAN_OUT, "a", policies=deciding(fan_out_clustering=True))
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, BIG)) == [Execute(b)]
    assert machine.handle(Executed(b, 1))[-2:] == [Execute(c), Forget((b,))]
    assert Execute(d) in machine.handle(Executed(c, 1))
    assert machine.handle(Executed(d, 1))[-2:] == [Forget((d, a)), Finish()]


def test_newly_ready_tasks_run_before_waiting_ones() -> None:
    wiring = {"a": "", "b": "a", "c": "a", "d": "b"}
    machine = flexible_machine(wiring, "a", policies=deciding(fan_out_clustering=True))
    machine.handle(Arrived(a))
    machine.handle(Executed(a, BIG))
    assert machine.handle(Executed(b, 1))[0] == Execute(d)
    assert Execute(c) in machine.handle(Executed(d, 1))


def test_near_the_time_limit_waiting_tasks_get_workers() -> None:
    known = deciding(fan_out_clustering=True)
    machine = flexible_machine(FAN_OUT, "a", policies=known, limit=10.0)
    assert SetTimer(LimitTimer(), 7.0) in machine.handle(Arrived(a))
    machine.handle(Executed(a, BIG))
    assert machine.handle(TimerFired(LimitTimer())) == [Save(a)]
    assert machine.handle(Saved(a)) == [Invoke(c, ()), Invoke(d, ())]


FAN_IN = {"a": "", "b": "", "c": "a", "d": "ab"}
"""The worker that runs `a` continues with `c`, and `d` takes the outputs of both roots."""
ASK = Mark(d, None, (a, b), (), (), a, held=(a,))


def asking(**switches: Any) -> Any:
    """Create a worker that holds `a`, runs `c`, and asks whether `d` only waits for `a`."""
    known = deciding(**({"fan_in_clustering": True, "delayed_io": True} | switches))
    machine = flexible_machine(FAN_IN, "a", policies=known)
    machine.handle(Arrived(a))
    return machine, machine.handle(Executed(a, BIG))


def test_nothing_is_written_if_only_this_output_was_missing() -> None:
    machine, effects = asking()
    assert effects == [Execute(c), ASK]
    assert machine.handle(Marked(d, a, claimed=True)) == []
    assert machine.handle(Executed(c, 1))[1] == Fetch((b,))


def test_an_output_is_held_until_there_is_no_other_work_and_then_written() -> None:
    machine, _ = asking()
    refused = Marked(d, a, claimed=False, refused=True)
    assert machine.handle(refused) == []
    assert ASK in machine.handle(Executed(c, 1))
    assert machine.handle(refused) == [Save(a)]
    assert machine.handle(Saved(a)) == [Mark(d, None, (a, b), (), (a,), a), Leave()]
    assert machine.handle(Marked(d, a, claimed=False))[-1] == Finish()


def test_a_busy_worker_that_keeps_no_fan_ins_asks_when_it_is_free() -> None:
    machine, effects = asking(fan_in_clustering=False)
    assert effects == [Execute(c)]
    assert ASK in machine.handle(Executed(c, 1))


def test_a_fan_in_with_a_big_input_here_waits_for_the_slot() -> None:
    machine, effects = asking(delayed_io=False)
    assert effects == [Execute(c), Save(a)]
    machine.handle(Saved(a))
    assert machine.handle(Marked(d, a, claimed=True, held=(b,))) == []
    assert Execute(d) in machine.handle(Executed(c, 1))


def test_a_task_that_must_fetch_delays_the_tasks_behind_it() -> None:
    """`d` has to fetch `b` here, which takes longer than starting a worker for `e`."""
    slow = deciding(fan_in_clustering=True, forecast=FORECAST, fetch=Pace(3.0, 0.0))
    wiring = {"a": "", "b": "", "c": "a", "d": "ab", "e": "ab"}
    machine = flexible_machine(wiring, "a", policies=slow)
    machine.handle(Arrived(a))
    assert Execute(c) in machine.handle(Executed(a, 1))
    assert machine.handle(Marked(d, a, claimed=True)) == []
    assert machine.handle(Marked(e, a, claimed=True)) == [Invoke(e, (a,))]


def clustering() -> Any:
    """Create a worker that has a whole diamond, and asks whether `d` only waits for `b`."""
    known = deciding(fan_out_clustering=True, fan_in_clustering=True, delayed_io=True)
    machine = flexible_machine({"a": "", "b": "a", "c": "a", "d": "bc"}, "a", policies=known)
    machine.handle(Arrived(a))
    machine.handle(Executed(a, BIG))
    machine.handle(Executed(b, BIG))
    return machine


def test_two_outputs_for_one_task_are_marked_together() -> None:
    machine = clustering()
    machine.handle(Marked(d, b, claimed=False, refused=True))
    assert Mark(d, None, (b, c), (), (), c, held=(c, b)) in machine.handle(Executed(c, BIG))
    assert machine.handle(Marked(d, c, claimed=True)) == [Execute(d)]


def test_an_output_made_while_a_mark_is_pending_is_marked_with_it() -> None:
    """Two marks in flight at once would each be refused because of the other."""
    machine = clustering()
    assert machine.handle(Executed(c, BIG)) == [Forget((a,))]
    together = Mark(d, None, (b, c), (), (), c, held=(c, b))
    assert machine.handle(Marked(d, b, claimed=False, refused=True)) == [together]
    assert machine.handle(Marked(d, c, claimed=True)) == [Execute(d)]


def test_nothing_is_held_for_a_task_that_has_become_the_workers_own() -> None:
    """An earlier start of the worker had marked `d` for `c` with a small output."""
    machine = clustering()
    machine.handle(Executed(c, BIG))
    assert Execute(d) in machine.handle(Marked(d, b, claimed=True))
    assert machine.handle(Executed(d, 1))[-1] == Finish()


def test_a_forecast_determines_how_long_an_output_is_held() -> None:
    """`b` is predicted to end in a second, and moving `a` would take two."""
    forecast = replace(FORECAST, ends={b: 1.0})
    machine, _ = asking(forecast=forecast)
    machine.handle(Executed(c, 1))
    refused = Marked(d, a, claimed=False, refused=True)
    assert machine.handle(refused) == [SetTimer(HoldTimer(a), 1.5)]
    assert machine.handle(TimerFired(HoldTimer(a)), now=1.5) == [ASK]
    assert machine.handle(refused, now=1.5) == [Save(a)]


def test_held_outputs_are_written_near_the_time_limit() -> None:
    machine, _ = asking()
    machine.handle(Marked(d, a, claimed=False, refused=True))
    assert machine.handle(TimerFired(LimitTimer())) == [Save(a)]
    assert machine.handle(Saved(a)) == [Mark(d, None, (a, b), (), (a,), a)]


def test_many_workers_are_invoked_by_the_invoker() -> None:
    machine = flexible_machine(FAN_OUT, "a", policies=deciding(large_fan_out=2))
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, 1))[1:] == [Invoke(c, (a,), True), Invoke(d, (a,), True)]
    machine = flexible_machine(FAN_OUT, "a", policies=deciding(large_fan_out=3))
    machine.handle(Arrived(a))
    assert machine.handle(Executed(a, BIG))[1:] == [Save(a)]
    assert machine.handle(Saved(a)) == [Invoke(c, ()), Invoke(d, ())]


def test_an_invocation_carries_no_more_than_the_platform_accepts() -> None:
    for inline_nbytes, effects in ((99, [Save(a)]), (100, [Invoke(c, (a,)), Invoke(d, (a,))])):
        machine = flexible_machine(FAN_OUT, "a", policies=deciding(inline_nbytes=inline_nbytes))
        machine.handle(Arrived(a))
        assert machine.handle(Executed(a, 100))[1:] == effects


# Simulated runs.


def simulated(plan: Plan, *sizes: int, seconds: float = 0.5) -> Simulation:
    simulation = Simulation(plan, DrawnCosts([seconds], sizes or [BIG]), WarmPool())
    simulation.run()
    return simulation


def spans(simulation: Simulation, kind: str) -> int:
    return len([span for span in simulation._spans.found if span.kind == kind])


def test_clustering_leaves_a_big_output_unwritten() -> None:
    wiring = {"a": "", **{f"b{number}": "a" for number in range(5)}}
    for clustered, workers, saves in ((False, 5, 6), (True, 1, 5)):
        known = deciding(fan_out_clustering=clustered)
        simulation = simulated(flexible_plan(wiring, policies=known))
        assert len(simulation._workers) == workers
        assert spans(simulation, "save") == saves  # sinks are written in any case


def test_clustering_and_delaying_write_nothing_between_tasks_of_one_worker() -> None:
    wiring = {"a": "", "b": "a", "c": "a", "d": ["b", "c"]}
    known = deciding(fan_out_clustering=True, fan_in_clustering=True, delayed_io=True)
    simulation = simulated(flexible_plan(wiring, policies=known))
    assert list(simulation._workers) == ["a"]
    assert (spans(simulation, "save"), spans(simulation, "fetch")) == (1, 0)


@examples(300)
@given(scenarios(), policies)
def test_without_a_forecast_nobody_waits_at_a_fan_in(scenario: Scenario, chosen: Policies) -> None:
    """A worker is always executing, moving, retrying or waiting for an answer; never idle."""
    plan = made_flexible(scenario.plan, ONE_SLOT, replace(chosen, forecast=None))
    outcome: Outcome = replace(scenario, plan=plan).run()
    for name, worker in outcome.simulation._workers.items():
        assert worker.machine is not None
        for now, event, effects in worker.machine._log:
            holds = [
                e for e in effects if isinstance(e, SetTimer) and isinstance(e.timer, HoldTimer)
            ]
            assert not holds, (name, now, event)


@examples(300)
@given(scenarios(), policies, st.sampled_from([1.0, 6.0]))
def test_held_outputs_are_written_in_time(
    scenario: Scenario, chosen: Policies, limit: float
) -> None:
    """No output is held so late that it could not be written before the limit."""
    plan = replace(made_flexible(scenario.plan, ONE_SLOT, chosen), limit=limit)
    outcome = replace(scenario, plan=plan).run()
    for worker in outcome.simulation._workers.values():
        assert worker.machine is not None
        began = worker.machine._since  # type: ignore[union-attr]
        for now, _, effects in worker.machine._log:
            for effect in effects:
                if isinstance(effect, SetTimer) and isinstance(effect.timer, HoldTimer):
                    assert now + effect.seconds + chosen.save.seconds(0) <= began + limit


def test_many_workers_are_invoked_by_a_tree() -> None:
    class Invoking(DrawnCosts):
        def invocation(self) -> float:
            return 1.0

    wiring = {"a": "", **{f"b{number}": "a" for number in range(61)}}
    starts = []
    for large_fan_out in (None, 10):
        plan = flexible_plan(wiring, policies=Policies(large_fan_out=large_fan_out))
        simulation = Simulation(plan, Invoking([0.0], [1]), WarmPool(100))
        simulation.run()
        starts.append(max(s.start for s in simulation._spans.found if s.kind.endswith(" start")))
    assert starts == [61.0, 31.0]  # after a cold start of a second


def test_workers_named_by_the_invoker_begin_with_their_tasks() -> None:
    simulation = simulated(flexible_plan(FAN_OUT, policies=Policies(large_fan_out=1)), 1)
    assert set(simulation._workers) == {WorkerId("a"), WorkerId("c"), WorkerId("d")}
    assert (TaskId("c"), WorkerId("c")) in simulation.performed
    assert Resources(ONE_SLOT.memory_mb) == simulation.plan.resources_of(WorkerId("c"))


def test_an_input_is_kept_for_the_next_task_that_needs_it() -> None:
    """`c` and `e` both need an output of another worker, and wait here one after the other."""
    wiring = {"a": "", "b": "", "c": "ba", "d": "a", "e": "db"}
    chosen = Policies(fan_in_clustering=True, delayed_io=True, big_output_nbytes=0)
    plan = flexible_plan(wiring, policies=chosen)
    scenario = Scenario(plan, (0.125, 0.0), (INLINE_NBYTES + 1,), capacity=2, constant_every=1)
    outcome = scenario.run()
    assert outcome.simulation.results == {
        sink: scenario.sequential()[sink] for sink in plan.workflow.sinks
    }
    fetched = Counter(
        (s.worker, s.task) for s in outcome.simulation._spans.found if s.kind == "fetch"
    )
    assert fetched[WorkerId("a"), TaskId("b")] <= 1
