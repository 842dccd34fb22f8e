"""Plans, and each worker's part of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from execution_examples import (
    ONE_SLOT,
    a,
    b,
    c,
    d,
    e,
    part_of,
    plan_of,
    w0,
    w1,
    w2,
    w3,
    workflow_of,
)
from execution_strategies import Scenario, scenarios
from hypothesis import given

from examples_drawn import examples
from shoal.errors import WorkflowError
from shoal.execution.plan import Copy, Placement, Plan, Prewarm
from shoal.types import Resources, TaskId

TWO_SLOTS = Resources(memory_mb=2 * 1769)

DIAMOND = {"a": "", "b": "a", "c": "a", "d": "bc", "e": "d"}
"""`a` feeds `b` and `c`, both feed `d`, and `e` follows it."""
APART = {"w0": "ab", "w1": "c", "w2": "de"}
"""A diamond whose corners are on three workers."""


def test_plan_must_place_every_task() -> None:
    with pytest.raises(WorkflowError, match=r"no placement for .*'b' among them"):
        plan_of({"a": "", "b": "a"}, {"w0": "a"})


def test_all_tasks_of_a_worker_have_the_same_resources() -> None:
    placements = {a: Placement(w0, ONE_SLOT), b: Placement(w0, TWO_SLOTS)}
    with pytest.raises(WorkflowError, match="worker w0 two configurations"):
        Plan(workflow_of({"a": "", "b": "a"}), placements)


def test_workers_come_in_the_order_of_their_first_tasks() -> None:
    plan = plan_of(DIAMOND, {"w2": "de", "w1": "ac", "w0": "b"}, resources={"w0": TWO_SLOTS})
    assert list(plan.workers.items()) == [(w1, ONE_SLOT), (w0, TWO_SLOTS), (w2, ONE_SLOT)]
    assert [part.worker for part in plan.parts()] == [w1, w0, w2]


def test_placements_of_unknown_tasks_create_no_workers() -> None:
    plan = plan_of({"a": ""}, {"w0": "a", "w1": "z"})
    assert list(plan.workers) == [w0]


def test_changed_copy_of_a_plan_has_its_own_workers() -> None:
    plan = plan_of({"a": ""}, {"w0": "a"})
    moved = replace(plan, placements={a: Placement(w1, ONE_SLOT)})
    assert list(plan.workers) == [w0]
    assert list(moved.workers) == [w1]


def test_part_has_its_own_tasks_with_their_numbers_and_upstream_tasks() -> None:
    part = part_of(plan_of(DIAMOND, {"w0": "ad", "w1": "bce"}), "w1")
    assert list(part.tasks) == [b, c, e]
    assert part.numbers == (1, 2, 4)
    assert part.upstream == {b: (a,), c: (a,), e: (d,)}


def test_wholly_local_tasks_are_not_shared() -> None:
    part = part_of(plan_of(DIAMOND, {"w0": "abcde"}), "w0")
    assert part.shared == {}
    assert part.owners == {}
    assert part.feeds == {}
    assert part.sinks == {e}


def test_a_shared_task_is_known_to_its_owner_and_its_producers() -> None:
    plan = plan_of(DIAMOND, APART)
    assert part_of(plan, "w0").shared == {c: (w0,), d: (w0, w1)}
    assert part_of(plan, "w1").shared == {c: (w0,), d: (w0, w1)}
    assert part_of(plan, "w2").shared == {d: (w0, w1)}


def test_producers_are_named_once_and_include_the_owner_if_it_is_one() -> None:
    plan = plan_of({"a": "", "b": "", "c": "", "d": "abc"}, {"w0": "ac", "w1": "bd"})
    assert part_of(plan, "w1").shared == {d: (w0, w1)}


def test_a_part_knows_the_owner_and_producers_of_each_task_it_feeds() -> None:
    plan = plan_of(DIAMOND, APART, resources={"w2": TWO_SLOTS})
    part = part_of(plan, "w0")
    assert part.feeds == {a: (c,), b: (d,)}
    assert part.owners == {c: w1, d: w2}


def test_part_has_only_its_own_sinks_each_once() -> None:
    plan = plan_of(DIAMOND, APART, sinks="aee")
    assert part_of(plan, "w0").sinks == {a}
    assert part_of(plan, "w1").sinks == frozenset()
    assert part_of(plan, "w2").sinks == {e}


def test_part_has_its_own_tasks_constants_each_once() -> None:
    constants: Mapping[str, Sequence[str]] = {"b": ["k1", "k2", "k1"], "c": ["k2"]}
    plan = plan_of(DIAMOND, APART)
    assert part_of(plan, "w0", constants).constants == {b: (TaskId("k1"), TaskId("k2"))}
    assert part_of(plan, "w1", constants).constants == {c: (TaskId("k2"),)}
    assert part_of(plan, "w2", constants).constants == {}


def test_part_has_its_own_tasks_retries_and_the_plans_linger() -> None:
    plan = plan_of(DIAMOND, APART, retries={"b": 2, "c": 1}, linger=3.0)
    assert part_of(plan, "w0").retries == {b: 2}
    assert part_of(plan, "w2").retries == {}
    assert part_of(plan, "w2").linger == 3.0


def test_a_part_is_rooted_if_one_of_its_tasks_has_no_upstream() -> None:
    wiring = {"a": "", "b": "a", "c": "", "d": "bc"}
    plan = plan_of(wiring, {"w0": "a", "w1": "b", "w2": "c", "w3": "d"})
    rooted = {part.worker: part.rooted for part in plan.parts()}
    assert rooted == {w0: True, w1: False, w2: True, w3: False}


@examples(300)
@given(scenarios())
def test_parts_together_are_the_plan(scenario: Scenario) -> None:
    plan = scenario.plan
    parts = plan.parts()
    owner = {task: placement.worker for task, placement in plan.placements.items()}
    order = list(plan.workflow.calls)
    assert sorted(task for part in parts for task in part.tasks) == sorted(order)
    for part in parts:
        assert [order[number] for number in part.numbers] == list(part.tasks)
        assert all(owner[task] == part.worker for task in part.tasks)
        for source, takers in part.feeds.items():
            assert owner[source] == part.worker
            assert all(source in plan.workflow.upstream[taker] for taker in takers)
    fed = {(source, t) for part in parts for source, takers in part.feeds.items() for t in takers}
    assert fed == {
        (source, task)
        for task, sources in plan.workflow.upstream.items()
        for source in sources
        if owner[source] != owner[task]
    }
    crossing = {task for _, task in fed}
    for part in parts:
        assert part.shared.keys() == {
            task
            for task in crossing
            if part.worker in {owner[task], *(owner[s] for s in plan.workflow.upstream[task])}
        }
        assert part.owners == {task: owner[task] for task in part.shared}


def copies_of(plan: Plan, worker: str) -> dict[TaskId, Copy]:
    return dict(part_of(plan, worker).copies)


def test_part_names_the_preloaded_tasks_of_others_and_what_own_tasks_warm_up() -> None:
    wiring = {"a": "", "b": "a", "c": "b", "d": "b"}
    prewarm = {"b": (Prewarm(ONE_SLOT, 1.0),)}
    plan = plan_of(wiring, {"w0": "abd", "w1": "c"}, preload="bcd", prewarm=prewarm)
    part = part_of(plan, "w0")
    assert part.preloaded == {c}
    assert part.prewarms == {b: (Prewarm(ONE_SLOT, 1.0),)}
    assert part_of(plan, "w1").preloaded == frozenset()
    assert part_of(plan, "w1").prewarms == {}


def test_a_duplicable_task_may_be_copied_where_its_output_is_awaited() -> None:
    wiring = {"a": "", "b": "", "c": "ab", "d": "a", "e": "b"}
    assignment = {"w0": "abd", "w1": "c", "w2": "e"}
    plan = plan_of(wiring, assignment, duplicable="a", expected={"a": (1.0, 3.0), "b": (1.0, 3.0)})
    copy = Copy(w0, 0, (), seconds=1.0, expected=3.0, targets={c: (a, b)})
    assert copies_of(plan, "w1") == {a: copy}
    assert copies_of(plan, "w0") == {}
    assert copies_of(plan, "w2") == {}
    assert part_of(plan, "w1").numbered() == {c: 2, a: 0}


def test_a_task_may_be_copied_only_where_its_inputs_arrive_anyway() -> None:
    wiring = {"a": "", "b": "", "c": "ab", "d": "c", "e": "c", "f": "b"}
    assignment = {"w0": "bc", "w1": "adf", "w2": "e"}
    plan = plan_of(wiring, assignment, duplicable="c", expected={"c": (1.0, 3.0)})
    assert copies_of(plan, "w1").keys() == {c}
    assert copies_of(plan, "w1")[c].upstream == (a, b)
    assert copies_of(plan, "w2") == {}


def test_constants_of_a_copy_are_named_where_it_may_run() -> None:
    plan = plan_of({"a": "", "b": "a"}, {"w0": "a", "w1": "b"}, duplicable="a")
    constants = {"a": ["constant:1"]}
    assert part_of(plan, "w1", constants).constants == {}
    plan = replace(plan, expected={a: (1.0, 3.0)})
    assert part_of(plan, "w1", constants).constants == {a: ("constant:1",)}
