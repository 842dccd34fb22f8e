"""`SpreadPlanner`, which needs no predictions."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_drawn import examples
from shoal.execution.plan import Plan
from shoal.metadata.predictions import DefaultCosts
from shoal.planning.base import Conditions
from shoal.planning.spread import SpreadPlanner
from shoal.types import Resources, TaskId
from shoal.workflow import Output, Task, Workflow, task

DEFAULT = Resources(memory_mb=1769)
LARGE = Resources(memory_mb=8192)


@task
def load(*sources: Any) -> None: ...


@task
def clean(*sources: Any) -> None: ...


@task
def add(*sources: Any) -> None: ...


@task(resources=LARGE)
def train(*sources: Any) -> None: ...


def conditions(workers: int) -> Conditions:
    return Conditions(DefaultCosts(), workers, DEFAULT)


def spread(*outputs: Output[Any], workers: int) -> Plan:
    return SpreadPlanner().plan(Workflow.of(*outputs), conditions(workers))


def sizes(plan: Plan, name: str = "") -> list[int]:
    """Return how many tasks (of a name) each worker has, in order."""
    counts = Counter({worker: 0 for worker in plan.workers})
    counts.update(p.worker for t, p in plan.placements.items() if t.startswith(name))
    return sorted(counts.values())


def shared(plan: Plan) -> set[TaskId]:
    """Return the tasks that need coordination between workers."""
    return {task for part in plan.parts() for task in part.shared}


def tree(leaves: list[Output[Any]]) -> Output[Any]:
    """Add neighbours in pairs until one is left."""
    while len(leaves) > 1:
        leaves = [add(*leaves[i : i + 2]) for i in range(0, len(leaves), 2)]
    return leaves[0]


def chain(length: int) -> Output[Any]:
    output = load()
    for _ in range(length - 1):
        output = clean(output)
    return output


def test_a_tree_is_split_evenly_with_hardly_any_shared_tasks() -> None:
    plan = spread(tree([load(i) for i in range(1024)]), workers=2)
    assert len(shared(plan)) <= 2
    smaller, larger = sizes(plan)
    assert larger - smaller <= 2


def test_chain_stays_on_one_worker() -> None:
    plan = spread(chain(100), workers=8)
    assert sizes(plan) == [100]


def test_parallel_chains_are_spread_and_none_is_split() -> None:
    plan = spread(*[chain(10) for _ in range(64)], workers=8)
    assert sizes(plan) == [80] * 8
    assert not shared(plan)


def test_fan_out_from_a_single_root_is_spread() -> None:
    root = load()
    plan = spread(add(*[clean(root, i) for i in range(100)]), workers=4)
    assert sizes(plan, "clean") == [25] * 4


def test_a_fan_out_is_spread_in_blocks_that_keep_its_subtrees_together() -> None:
    root = load()
    plan = spread(tree([clean(root, i) for i in range(1024)]), workers=8)
    assert sizes(plan, "clean") == [128] * 8
    assert len({t for t in shared(plan) if t.startswith("add")}) <= 7


def test_fan_is_split_evenly() -> None:
    plan = spread(add(*[load(i) for i in range(1000)]), workers=8)
    assert sizes(plan, "load") == [125] * 8
    assert shared(plan) == {"add#0"}


def test_a_join_is_placed_with_one_of_its_inputs() -> None:
    plan = spread(add(load(0), load(1)), workers=8)
    assert plan.placements[TaskId("add#0")] in {
        plan.placements[TaskId("load#0")],
        plan.placements[TaskId("load#1")],
    }


def test_tasks_of_many_names_are_spread_too() -> None:
    outputs = [Task(load.function, name=f"source{i}")() for i in range(16)]
    plan = spread(add(*outputs), workers=4)
    assert sizes(plan, "source") == [4] * 4


def test_fewer_tasks_than_workers_use_as_many_workers_as_there_are_tasks() -> None:
    plan = spread(*[load(i) for i in range(3)], workers=8)
    assert sizes(plan) == [1, 1, 1]


def test_a_task_that_requests_resources_gets_a_worker_that_has_them() -> None:
    plan = spread(add(train(load(0))), workers=4)
    for name, placement in plan.placements.items():
        assert placement.resources == (LARGE if name.startswith("train") else DEFAULT)
        assert plan.workers[placement.worker] == placement.resources


def test_tasks_with_different_resources_share_workers_if_there_are_too_many() -> None:
    plan = spread(add(*[train(load(i)) for i in range(8)]), workers=4)
    assert Counter(plan.workers.values()) == {LARGE: 4}


@pytest.mark.parametrize("workers", [1, 3])
def test_plan_says_who_made_it(workers: int) -> None:
    assert spread(load(), workers=workers).planner == "spread"


@st.composite
def outputs(draw: st.DrawFn) -> list[Output[Any]]:
    """Generate DAGs with four different tasks."""
    made: list[Output[Any]] = []
    kinds = st.sampled_from([load, clean, add, train])
    back = st.lists(st.integers(1, 10), max_size=3)
    for kind, distances in draw(st.lists(st.tuples(kinds, back), min_size=1, max_size=30)):
        made.append(kind(*[made[-distance] for distance in distances if distance <= len(made)]))
    return made


@examples(300)
@given(outputs(), st.integers(1, 9))
def test_every_task_is_placed_once_with_its_resources_within_the_allowed_workers(
    made: list[Output[Any]], workers: int
) -> None:
    workflow = Workflow.of(*made)
    plan = SpreadPlanner().plan(workflow, conditions(workers))
    assert list(plan.placements) == list(workflow.calls)
    for name, placement in plan.placements.items():
        asked = workflow.calls[name].task.resources or DEFAULT
        assert placement.resources.memory_mb >= asked.memory_mb
        assert placement.resources.cpu_share >= asked.cpu_share
    assert len(plan.workers) <= workers


@examples(200)
@given(outputs(), st.integers(1, 9))
def test_planning_twice_gives_the_same_plan(made: list[Output[Any]], workers: int) -> None:
    assert spread(*made, workers=workers).placements == spread(*made, workers=workers).placements
