"""What a plan must keep to; an error names the rule, and where it is broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from planning_examples import LARGE, SMALL, Table, chain, conditions, step, tree, workflow

from shoal import (
    AutoPlanner,
    NonUniformPlanner,
    Resources,
    UniformPlanner,
    WukongPlanner,
    task,
)
from shoal.errors import PlanError
from shoal.execution.plan import Placement, Plan, Prewarm
from shoal.execution.pool import WarmPool
from shoal.planning.base import Conditions, validated
from shoal.planning.choice import planned
from shoal.planning.spread import SpreadPlanner
from shoal.types import TaskId, WorkerId
from shoal.workflow import Workflow

UNDER = conditions(Table())


def on(flow: Workflow, worker: str = "w0", resources: Resources = SMALL, **fields: Any) -> Plan:
    """A plan that has everything on one worker."""
    return Plan(flow, {t: Placement(WorkerId(worker), resources) for t in flow.calls}, **fields)


def broken(plan: Any, flow: Workflow, under: Conditions = UNDER) -> str:
    """What is said of a plan."""
    with pytest.raises(PlanError) as found:
        validated(plan, flow, under)
    return str(found.value)


def test_a_plan_that_keeps_to_the_rules_is_returned() -> None:
    flow = workflow(chain(3))
    plan = on(flow)
    assert validated(plan, flow, UNDER) is plan


@pytest.mark.parametrize(
    "planner",
    [SpreadPlanner(), UniformPlanner(), NonUniformPlanner(), AutoPlanner(), WukongPlanner()],
)
@pytest.mark.parametrize("needs", [{}, {step.key: LARGE.memory_mb}])
def test_our_planners_keep_to_the_rules(planner: Any, needs: dict[str, int]) -> None:
    """Also if tasks have turned out to need more memory."""
    flow = workflow(tree(16)).needing(needs)
    assert planned(flow, UNDER, planner).plan.workflow is flow


def test_a_planner_returns_a_plan() -> None:
    assert "a planner returns a Plan, but this one returned dict" in broken({}, workflow(step()))


def test_a_plan_is_for_the_workflow_that_was_given() -> None:
    """One of the same shape has other arguments."""
    flow, same = workflow(chain(2)), workflow(chain(2))
    plan = on(same)
    assert "for the workflow that its planner was given" in broken(plan, flow)
    assert validated(replace(plan, workflow=flow), flow, UNDER)


def test_each_task_has_a_placement() -> None:
    flow = workflow(chain(2))
    with pytest.raises(PlanError, match=r"each task has a placement, .* 1, 'step#1' among them"):
        Plan(flow, {TaskId("step#0"): Placement(WorkerId("w0"), SMALL)})


def test_a_worker_has_one_configuration() -> None:
    flow = workflow(chain(2))
    placements = {
        TaskId("step#0"): Placement(WorkerId("w0"), SMALL),
        TaskId("step#1"): Placement(WorkerId("w0"), LARGE),
    }
    with pytest.raises(PlanError, match=r"worker w0 two configurations.* task 'step#1', 8192 MB"):
        Plan(flow, placements)


def test_a_plan_has_only_the_workflows_tasks() -> None:
    flow = workflow(step())
    plan = on(flow)
    placements: Mapping[TaskId, Placement] = {
        **plan.placements,
        TaskId("other#9"): Placement(WorkerId("w0"), SMALL),
    }
    assert "'other#9' isn't one" in broken(replace(plan, placements=placements), flow)


def test_a_plan_with_ranks_ranks_every_task() -> None:
    flow = workflow(chain(2))
    assert "'step#1' has none" in broken(on(flow, ranks={TaskId("step#0"): 0}), flow)


@pytest.mark.parametrize("rank", ["first", None, float("nan")])
def test_a_rank_is_a_number(rank: Any) -> None:
    """Workers compare them."""
    flow = workflow(chain(2))
    ranks: Any = {"step#0": 0, "step#1": rank}
    said = broken(on(flow, ranks=ranks), flow)
    assert f"a rank is a number, but that of 'step#1' is {rank!r}" in said
    assert validated(on(flow, ranks={TaskId("step#0"): 0.5, TaskId("step#1"): -1}), flow, UNDER)


@pytest.mark.parametrize(
    ("field", "wrong", "rule"),
    [
        ("ranks", [0, 1], "ranks are a dict from task to number"),
        ("expected", [(1.0, 2.0)], "expected times are a dict by task"),
        ("linger", "1", "a worker lingers for 0 s or more"),
        ("duplication_gain", None, "a copy saves 0 s or more"),
        ("limit", "900", "a worker has 0 s or more"),
        ("policies", None, "flexible workers have Policies"),
        ("notes", "hello", "notes are a tuple of strings"),
        ("notes", (1,), "notes are a tuple of strings"),
        ("planner", None, "a plan has its planner's name"),
    ],
)
def test_a_field_is_what_it_is_taken_for(field: str, wrong: Any, rule: str) -> None:
    flow = workflow(chain(2))
    assert f"{rule}, but `{field}` is {wrong!r}." in broken(on(flow, **{field: wrong}), flow)


@pytest.mark.parametrize("times", [5, (1.0,), (-5.0, -5.0), (1.0, "2"), (float("nan"), 1.0)])
def test_expected_are_two_times(times: Any) -> None:
    flow = workflow(chain(2))
    said = broken(on(flow, expected={TaskId("step#0"): times}), flow)
    assert "a task's expected times are two numbers of seconds" in said
    assert f"those of 'step#0' are {times!r}" in said


@pytest.mark.parametrize("worker", ["w0", None])
@pytest.mark.parametrize("resources", [None, 2048, "2048 MB"])
def test_a_worker_has_resources(worker: Any, resources: Any) -> None:
    flow = workflow(chain(2))
    said = broken(on(flow, worker, resources), flow)
    assert "a worker has Resources(memory_mb=…), but task 'step#0' on" in said
    assert f"has {resources!r}" in said


@pytest.mark.parametrize("placement", ["w0", None, ("w0", SMALL)])
def test_a_task_is_placed_with_a_placement(placement: Any) -> None:
    flow = workflow(chain(2))
    with pytest.raises(PlanError, match=r"Placement\(worker, resources\), but 'step#0' has"):
        Plan(flow, dict.fromkeys(flow.calls, placement))
    with pytest.raises(PlanError, match="for each task's id, but it is a list"):
        Plan(flow, [placement, placement])  # type: ignore[arg-type]


@pytest.mark.parametrize("worker", ["", "w" * 101, "w\n0", 7])
def test_a_workers_id_is_a_short_printable_name(worker: Any) -> None:
    flow = workflow(step())
    said = broken(on(flow, worker), flow)
    assert "a worker's id has 1 to 100 printable characters" in said
    assert repr(worker) in said


def test_no_worker_has_the_clients_mailbox() -> None:
    flow = workflow(step())
    said = broken(on(flow, "client"), flow)
    assert "no worker may be called 'client'" in said
    assert "'step#0' is placed there" in said


def test_workers_that_never_park_may_all_be_at_work_at_once() -> None:
    """They would hold the sandboxes that those they wait for need."""
    flow = workflow(tree(4))
    placements = {t: Placement(WorkerId(t), SMALL) for t in flow.calls}
    roomy = conditions(Table(), workers=7)
    for under, room in (
        (conditions(Table(), workers=7, pool=lambda: WarmPool(6)), 6),
        (conditions(Table(), workers=5), 5),
    ):
        said = broken(Plan(flow, placements, linger=None), flow, under)
        assert f"7 workers and only {room} can" in said
        assert validated(Plan(flow, placements, linger=0.5), flow, under)
    assert validated(Plan(flow, placements, linger=None), flow, roomy)


@pytest.mark.parametrize("linger", [-1.0, float("nan")])
def test_a_worker_lingers_for_no_negative_time(linger: float) -> None:
    flow = workflow(step())
    assert "lingers for 0 s or more" in broken(on(flow, linger=linger), flow)


def test_a_sandbox_is_not_warmed_before_its_task_begins() -> None:
    flow = workflow(step())
    for prewarm, said in (
        (Prewarm(SMALL, -0.1), "'step#0' pre-warms 1 after -0.1 s"),
        (Prewarm(SMALL, 0.5, 0), "'step#0' pre-warms 0 after 0.5 s"),
    ):
        placement = Placement(WorkerId("w0"), SMALL, prewarm=(prewarm,))
        assert said in broken(Plan(flow, {TaskId("step#0"): placement}), flow)


@pytest.mark.parametrize(
    ("prewarm", "said"),
    [
        (Prewarm(SMALL), "`prewarm` is a tuple, but that of 'step#0' is Prewarm("),
        (None, "`prewarm` is a tuple, but that of 'step#0' is None"),
        ((SMALL,), "warmed with Prewarm(Resources(memory_mb=…)), but 'step#0' has Resources("),
        ((Prewarm(2048),), "warmed with Prewarm(Resources(memory_mb=…)), but 'step#0' has"),  # type: ignore[arg-type]
        ((Prewarm(SMALL, "1"),), "'step#0' pre-warms 1 after '1' s"),  # type: ignore[arg-type]
        ((Prewarm(LARGE),), "at most 4096 MB, but 'step#0' pre-warms one of 8192 MB"),
    ],
)
def test_sandboxes_are_warmed_with_what_the_platform_has(prewarm: Any, said: str) -> None:
    flow, under = workflow(step()), conditions(Table(), memory_mb=4096)
    placement = Placement(WorkerId("w0"), SMALL, prewarm=prewarm)
    assert said in broken(Plan(flow, {TaskId("step#0"): placement}), flow, under)


def test_a_task_has_at_least_the_resources_that_it_asks_for() -> None:
    @task(resources=Resources(4096))
    def greedy() -> None: ...

    @task(resources=Resources(512, cpus=3))
    def busy() -> None: ...

    for asking, said in ((greedy, "requests 4096 MB"), (busy, "requests 512 MB, 3 CPUs")):
        flow = workflow(asking())
        assert f"{said}, and w0 has 2048 MB" in broken(on(flow), flow)
        assert validated(on(flow, resources=LARGE), flow, UNDER)


def test_resources_beyond_the_platforms_are_refused() -> None:
    flow = workflow(chain(2))
    under = conditions(Table(), memory_mb=4096)
    said = broken(on(flow, resources=LARGE), flow, under)
    assert "at most 4096 MB" in said
    assert "task 'step#0' on w0 has 8192 MB" in said
    assert validated(on(flow, resources=Resources(4096)), flow, under)


def test_planners_leave_out_configurations_that_the_platform_has_not() -> None:
    flow, under = workflow(tree(4)), conditions(Table(), memory_mb=4096)
    for planner in (NonUniformPlanner(), AutoPlanner([LARGE, SMALL], seconds=0.2)):
        plan = validated(planner.plan(flow, under), flow, under)
        assert LARGE not in plan.workers.values()


def test_a_planner_all_of_whose_configurations_are_too_large_is_told() -> None:
    flow, under = workflow(tree(4)), conditions(Table(), memory_mb=4096)
    with pytest.raises(PlanError, match="has 8192 MB"):
        planned(flow, under, NonUniformPlanner([LARGE]))


class Heavy(Table):
    """A second for each MB of input on a small worker, half of it on a large one."""

    constants: ClassVar = {TaskId("step#0"): {TaskId("constant:1"): 10**8}}

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        return input_nbytes / 10**6 / (2 if resources == LARGE else 1)


def test_a_task_that_takes_too_long_on_its_worker_is_told_before_anything_runs() -> None:
    flow, under = workflow(step()), conditions(Heavy(), limit=60.0)
    with pytest.raises(PlanError, match="'step#0' takes about 100 s of 60"):
        planned(flow, under, UniformPlanner(SMALL))
    assert planned(flow, under, UniformPlanner(LARGE)).plan.workers
