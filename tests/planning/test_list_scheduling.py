"""List schedules place every task, in whatever order, and can keep parts of a plan."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from planning_examples import SMALL, Table, fan, step, tasks_by_worker, workflow
from planning_strategies import cases

from examples_drawn import examples
from shoal.planning.estimates import Estimates
from shoal.planning.list_scheduling import Lister, Order, Style
from shoal.workflow import Workflow


@pytest.mark.parametrize("order", get_args(Order))
@examples(20)
@given(cases())
def test_every_order_places_every_task(order: Order, case: tuple[Workflow, Table, int]) -> None:
    flow, costs, workers = case
    plan = Lister(Estimates(flow, costs), [SMALL] * workers).listed(Style(order=order))
    assert plan.placements.keys() == flow.calls.keys()
    assert plan.ranks is not None
    assert len(plan.workers) <= workers
    for task, sources in flow.upstream.items():
        assert all(plan.ranks[source] < plan.ranks[task] for source in sources)


def test_the_longest_task_is_placed_first_or_last() -> None:
    """One worker gets the tasks in the order in which they are placed."""
    flow = Workflow.of(step(), step(), step())
    costs = Table({"step#0": 2.0, "step#1": 3.0, "step#2": 1.0})
    lister = Lister(Estimates(flow, costs), [SMALL])
    for order, expected in (("shortest", [1, 2, 0]), ("longest", [1, 0, 2])):
        plan = lister.listed(Style(order=order))  # type: ignore[arg-type]
        assert plan.ranks is not None
        assert [plan.ranks[task] for task in flow.calls] == expected


def test_tasks_that_are_kept_keep_their_workers() -> None:
    flow = workflow(fan(6))
    lister = Lister(Estimates(flow, Table()), [SMALL] * 3)
    kept = {task: 2 for task in list(flow.calls)[:4]}
    starts = {task: float(i) for i, task in enumerate(flow.calls)}
    plan = lister.relisted(kept, starts, Style())
    together = tasks_by_worker(plan.placements)[plan.placements[next(iter(kept))].worker or ""]
    assert {task.rpartition("#")[2] for task in kept} <= set(together)
    assert len(plan.workers) == 3
