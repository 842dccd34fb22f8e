"""The papers' planners: clusters as in Algorithm 1, weaker workers off the critical path."""

from __future__ import annotations

import pytest
from planning_examples import (
    LARGE,
    MIDDLE,
    SMALL,
    Table,
    chain,
    conditions,
    fan,
    step,
    tasks_by_worker,
    tree,
    workflow,
)

from shoal import NonUniformPlanner, Resources, UniformPlanner, task
from shoal.errors import UsageError
from shoal.execution.costs import Costs
from shoal.planning.critical_path import critical_path
from shoal.planning.spread import SpreadPlanner
from shoal.types import TaskId


def test_first_tasks_of_equal_length_are_grouped_in_threes() -> None:
    flow = workflow(step(*[step() for _ in range(7)]))
    plan = UniformPlanner().plan(flow, conditions(Table(), workers=99))
    assert sorted(map(len, tasks_by_worker(plan.placements).values())) == [1, 3, 4]


def test_a_long_task_is_grouped_with_two_short_ones() -> None:
    seconds = {f"step#{i}": 9.0 for i in (0, 1)}
    flow = workflow(step(*[step() for _ in range(6)]))
    plan = UniformPlanner().plan(flow, conditions(Table(seconds), workers=99))
    together = [set(tasks) - {"6"} for tasks in tasks_by_worker(plan.placements).values()]
    assert sorted(map(sorted, together)) == [["0", "2", "3"], ["1", "4", "5"]]


def test_remaining_long_tasks_get_separate_workers() -> None:
    seconds = {f"step#{i}": 2.0 + i for i in range(9)}
    flow = workflow(step(*[step() for _ in range(9)]))
    plan = UniformPlanner(max_clustering=9).plan(flow, conditions(Table(seconds), workers=99))
    assert sorted(map(len, tasks_by_worker(plan.placements).values())) == [3, 7]
    plan = UniformPlanner(max_clustering=3).plan(flow, conditions(Table(seconds), workers=99))
    assert sorted(map(len, tasks_by_worker(plan.placements).values())) == [1, 2, 3, 4]


def test_short_tasks_with_the_largest_outputs_stay_with_the_task_before_them() -> None:
    sizes = {f"step#{i}": 10 * i for i in range(1, 7)}
    flow = workflow(fan(6))
    plan = UniformPlanner().plan(flow, conditions(Table(sizes=sizes), workers=99))
    assert {"0", "6", "5", "4"} <= set(
        tasks_by_worker(plan.placements)[plan.placements[TaskId("step#0")].worker]
    )


def test_a_chain_stays_on_one_worker() -> None:
    plan = UniformPlanner().plan(workflow(chain(9)), conditions(Table()))
    assert len(plan.workers) == 1


def test_a_join_is_placed_where_most_of_its_input_is_made() -> None:
    sizes = {"step#0": 10, "step#1": 10, "step#2": 10, "step#3": 1000}
    flow = workflow(step(*[step() for _ in range(4)]))
    plan = UniformPlanner(max_clustering=3).plan(flow, conditions(Table(sizes=sizes), workers=9))
    assert plan.placements[TaskId("step#4")] == plan.placements[TaskId("step#3")]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_plan_has_no_more_workers_than_may_run_at_once(workers: int) -> None:
    for planner in (UniformPlanner(), NonUniformPlanner()):
        plan = planner.plan(workflow(tree(64)), conditions(Table(), workers=workers))
        assert len(plan.workers) == workers


def test_a_uniform_plan_has_the_requested_resources() -> None:
    plan = UniformPlanner(LARGE).plan(workflow(tree(8)), conditions(Table()))
    assert set(plan.workers.values()) == {LARGE}


def test_every_planner_gives_a_task_the_resources_it_requests() -> None:
    @task(resources=Resources(512))
    def modest(*_: object) -> None: ...

    flow = workflow(step(modest(step()), step()))
    for planner in (UniformPlanner(), NonUniformPlanner()):
        plan = planner.plan(flow, conditions(Table()))
        assert plan.placements[TaskId("modest#0")].resources == Resources(512)


def test_workers_off_the_critical_path_get_the_weakest_sufficient_resources() -> None:
    """`step#3` takes ten times as long as its parallel tasks, which have slack."""
    seconds = {"step#3": 10.0}
    flow = workflow(step(*[step() for _ in range(4)]))
    plan = NonUniformPlanner(max_clustering=1).plan(flow, conditions(Table(seconds), workers=9))
    assert plan.placements[TaskId("step#3")].resources == LARGE
    assert plan.placements[TaskId("step#1")].resources == SMALL


def test_a_worker_is_not_downgraded_if_the_plan_gets_longer() -> None:
    """Everything takes twice as long with less than the strongest resources."""

    class Slower(Table):
        def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
            return 1.0 if resources == LARGE else 2.0

    flow = workflow(step(*[step() for _ in range(4)]))
    plan = NonUniformPlanner(max_clustering=1).plan(flow, conditions(Slower(), workers=9))
    assert set(plan.workers.values()) == {LARGE}


def test_without_time_to_simulate_no_worker_is_downgraded_and_the_plan_says_so() -> None:
    flow = workflow(step(*[step() for _ in range(4)]))
    under = conditions(Table({"step#3": 10.0}), workers=9, seconds=1e-6)
    plan = NonUniformPlanner(max_clustering=1).plan(flow, under)
    assert set(plan.workers.values()) == {LARGE}
    assert "no time" in plan.notes[0]


def test_the_strongest_resources_are_found_in_any_order() -> None:
    asked: list[Resources] = []

    class Asked(Table):
        def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
            asked.append(resources)
            return 1.0

    NonUniformPlanner([SMALL, LARGE, MIDDLE]).plan(workflow(chain(3)), conditions(Asked()))
    assert asked[0] == LARGE


def test_an_empty_list_of_configurations_is_an_error() -> None:
    with pytest.raises(UsageError, match="at least one configuration"):
        NonUniformPlanner([])


@pytest.mark.parametrize("planner", [UniformPlanner(), NonUniformPlanner()])
def test_planning_twice_gives_the_same_plan(planner: UniformPlanner | NonUniformPlanner) -> None:
    costs = Table({f"step#{i}": 1.0 + i % 7 for i in range(127)})
    plans = [planner.plan(workflow(tree(64)), conditions(costs)) for _ in range(2)]
    assert plans[0].placements == plans[1].placements


def test_the_critical_path_leads_from_a_first_task_to_the_sink() -> None:
    costs: Costs = Table({"step#2": 5.0}, start=0.5)
    flow = workflow(step(step(step()), step()))
    given = conditions(Table({"step#2": 5.0}), workers=2)
    plan = SpreadPlanner().plan(flow, given)
    path = critical_path(flow, given.simulate(plan, costs))
    assert path == ("step#2", "step#3")


def test_the_critical_path_is_finite_even_if_tasks_take_no_time() -> None:
    source = step()
    flow = workflow(step(source, step(), step(step(source))))
    given = conditions(Table(1e-10), workers=1)
    path = critical_path(flow, given.simulate(SpreadPlanner().plan(flow, given), Table(1e-10)))
    assert path[-1] in flow.sinks
    assert len(set(path)) == len(path)


def test_the_critical_path_ends_though_names_sort_tasks_before_their_inputs() -> None:
    @task
    def after(*_: object) -> None: ...

    flow = workflow(step(after(step()), after(), step()))
    given = conditions(Table(0.0, 0), workers=1)
    path = critical_path(flow, given.simulate(SpreadPlanner().plan(flow, given), Table(0.0, 0)))
    assert path[-1] in flow.sinks
    assert len(set(path)) == len(path)


def test_a_task_that_waits_for_its_worker_is_preceded_by_what_ran_there() -> None:
    flow = workflow(step(step(), step()))
    given = conditions(Table(), workers=1)
    plan = UniformPlanner().plan(flow, given)
    assert critical_path(flow, given.simulate(plan, Table())) == ("step#0", "step#1", "step#2")
