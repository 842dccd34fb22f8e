"""The solver's model of the simulator, which the benchmark of plans holds Auto against."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shoal.execution.plan import Placement, Plan
from shoal.execution.simulator import makespan_of, simulate
from shoal.types import MB_PER_CPU, Resources, WorkerId
from shoal.workflow import Workflow

for package in ("ortools.sat.python.cp_model", "saga", "wfcommons"):
    pytest.importorskip(package, reason="needs the extra `quality`")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

ONE_SLOT = Resources(memory_mb=MB_PER_CPU)
Given = Mapping[str, tuple[float, float, list[str]]]
"""The seconds of each task, those of saving or fetching its output, and its upstream tasks."""


def shaped(given: Given) -> tuple[Workflow, Any]:
    """Return a workflow and its costs."""
    from quality.costs import BANDWIDTH, FixedCosts
    from quality.shapes import Step, shape_of

    steps = {
        name: Step("t", seconds, moving * BANDWIDTH, upstream)
        for name, (seconds, moving, upstream) in given.items()
    }
    shape = shape_of("given", steps)
    taken = [task for task in shape.workflow.calls if shape.workflow.downstream(task)]
    nbytes = {task: round(shape.nbytes[task]) if task in taken else 0 for task in shape.nbytes}
    return shape.workflow, FixedCosts(shape.seconds, nbytes)


def on_one_worker(workflow: Workflow) -> Plan:
    here = Placement(WorkerId("w0"), ONE_SLOT)
    return Plan(workflow, dict.fromkeys(workflow.calls, here), linger=None)


def solved(given: Given, workers: int) -> tuple[float, float]:
    """Return the bound, and the best simulated makespan of the solver's plans."""
    from quality.optimum import bounded

    workflow, costs = shaped(given)
    known = simulate(on_one_worker(workflow), costs)
    answer = bounded(workflow, costs, workers, known, 10)
    plans = [plan for schedule in answer.schedules for plan in schedule.plans(workflow)]
    return answer.bound, min(makespan_of(plan, costs) for plan in plans)


def all_plans(workflow: Workflow, workers: int) -> Iterator[Plan]:
    """Yield the plans of all placements and orders, with and without pre-loading."""
    tasks = list(workflow.calls)
    for homes in product(range(workers), repeat=len(tasks)):
        for order in permutations(tasks):
            place = {task: order.index(task) for task in tasks}
            if any(place[s] > place[t] for t in tasks for s in workflow.upstream[t]):
                continue
            for preload in (False, True):
                placements = {
                    task: Placement(WorkerId(f"w{home}"), ONE_SLOT, preload=preload)
                    for task, home in zip(tasks, homes, strict=True)
                }
                yield Plan(workflow, placements, linger=None, ranks=place)


def random_graph(seed: int) -> dict[str, tuple[float, float, list[str]]]:
    rng = Random(seed)
    scale = rng.choice((0.2, 1.0, 3.0))
    return {
        f"{number}": (
            rng.uniform(0.5, 2.0),
            scale * rng.uniform(0.3, 1.0),
            [f"{other}" for other in range(number) if rng.random() < 0.5],
        )
        for number in range(5)
    }


def test_independent_tasks_are_shared_among_the_workers() -> None:
    given: Given = {name: (1.0, 0.5, []) for name in "abc"}
    assert solved(given, 2) == pytest.approx((2.0, 2.0), rel=1e-3)


def test_a_chain_stays_on_one_worker() -> None:
    given: Given = {"a": (1.0, 0.1, []), "b": (1.0, 0.1, ["a"]), "c": (1.0, 0.1, ["b"])}
    assert solved(given, 2) == pytest.approx((3.0, 3.0), rel=1e-3)


def test_a_worker_runs_no_task_while_it_saves_an_output() -> None:
    """The shortest of all plans keeps one branch and moves the other, and the sink with it.

    1. `a` ends at 1.0 and is saved until 1.5, so the first branch runs from 1.5 to 5.5.
    2. The second worker fetches until 2.0 and runs the other branch until 6.0.
    3. The first branch is saved until 6.0 and fetched until 6.5. The sink runs until 7.5.
    """
    given: Given = {
        "a": (1.0, 0.5, []),
        "b": (4.0, 0.5, ["a"]),
        "c": (4.0, 0.5, ["a"]),
        "d": (1.0, 0.5, ["b", "c"]),
    }
    assert solved(given, 2) == pytest.approx((7.5, 7.5), rel=1e-3)


def test_a_transfer_that_takes_longer_than_it_saves_is_avoided() -> None:
    given: Given = {"a": (1.0, 5.0, []), "b": (2.0, 0.1, ["a"]), "c": (2.0, 0.1, ["a"])}
    assert solved(given, 2) == pytest.approx((5.0, 5.0), rel=1e-3)


def test_a_worker_fetches_one_output_at_a_time() -> None:
    """Three inputs are made at once, and two of them fetched one after the other."""
    given: Given = {name: (1.0, 0.2, []) for name in "abc"} | {"d": (1.0, 0.0, ["a", "b", "c"])}
    assert solved(given, 3) == pytest.approx((2.6, 2.6), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_shorter_than_the_bound(seed: int) -> None:
    given = random_graph(seed)
    workflow, costs = shaped(given)
    bound, _ = solved(given, 2)
    best = min(makespan_of(plan, costs) for plan in all_plans(workflow, 2))
    assert bound <= best * (1 + 1e-9)
    assert bound == pytest.approx(best, rel=1e-3)


def test_a_known_makespan_that_no_plan_has_is_an_error() -> None:
    from quality.optimum import bounded

    workflow, costs = shaped({name: (1.0, 0.5, []) for name in "abc"})
    known = simulate(on_one_worker(workflow), costs)
    with pytest.raises(RuntimeError, match="forbids"):
        bounded(workflow, costs, 2, replace(known, makespan=1.9), 10)


@pytest.mark.parametrize(
    ("given", "workers", "bound"),
    [
        ({name: (1.0, 0.5, []) for name in "abc"}, 2, 1.5),
        ({"a": (1.0, 0.5, []), "b": (1.0, 0.0, ["a"]), "c": (1.0, 0.0, ["a"])}, 2, 2.5),
        ({"a": (1.0, 5.0, []), "b": (1.0, 0.0, ["a"]), "c": (1.0, 0.0, ["a"])}, 2, 3.0),
    ],
)
def test_a_worker_is_idle_until_its_first_inputs_have_come(
    given: Given, workers: int, bound: float
) -> None:
    """In the second case, one of two workers waits 2 of 5 s; in the third, one has no task."""
    from quality.bounds import shared_bound

    workflow, costs = shaped(given)
    assert shared_bound(workflow, costs, workers, ONE_SLOT) == pytest.approx(bound, rel=1e-3)
