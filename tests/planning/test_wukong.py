"""`WukongPlanner`, and how plans without placements are shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planning_examples import LARGE, SMALL, Table, chain, conditions, fan, step, tree, workflow

from shoal import (
    Percentile,
    PreLoadOptimization,
    PreWarmOptimization,
    Resources,
    TaskDupOptimization,
    UniformPlanner,
    WukongPlanner,
    task,
)
from shoal.errors import PlanError, UsageError
from shoal.execution.plan import Placement, Plan
from shoal.metadata.predictions import DefaultCosts
from shoal.planning.base import validated
from shoal.planning.choice import named_planner
from shoal.planning.preview import Preview
from shoal.planning.report import report
from shoal.types import TaskId, WorkerId


def previewed(output: Any, **costs: Any) -> Preview:
    known = conditions(Table(**costs), workers=4)
    return Preview(WukongPlanner(SMALL).plan(workflow(output), known), known)


def test_no_task_is_placed() -> None:
    known = conditions(Table(), workers=4)
    plan = WukongPlanner().plan(workflow(tree(8)), known)
    assert plan.flexible
    assert plan.planner == "wukong"
    assert {placement.worker for placement in plan.placements.values()} == {None}
    assert {placement.resources for placement in plan.placements.values()} == {known.resources}
    assert validated(plan, plan.workflow, known) is plan


def test_it_has_a_name_and_a_service_level() -> None:
    planner = named_planner("wukong", Percentile(90))
    assert isinstance(planner, WukongPlanner)
    assert planner.sla == Percentile(90)


def test_all_workers_have_the_largest_requested_resources() -> None:
    @task(resources=LARGE)
    def hungry(*sources: Any) -> None: ...

    @task(resources=Resources(256, 6))
    def busy(*sources: Any) -> None: ...

    flow = workflow(hungry(step(), busy()))
    plan = WukongPlanner(SMALL).plan(flow, conditions(Table(), workers=4))
    assert {placement.resources for placement in plan.placements.values()} == {Resources(8192, 6)}
    assert plan.notes == ("All workers have 8192 MB, 6 CPUs, because a task requests it.",)


def test_optimizations_that_need_workers_are_left_out_and_named() -> None:
    @task(forced_optimizations=[PreLoadOptimization(), TaskDupOptimization])
    def insistent(*sources: Any) -> None: ...

    planner = WukongPlanner(optimizations=[PreWarmOptimization, PreLoadOptimization])
    flow = workflow(insistent(step(), insistent(step())))
    plan = planner.plan(flow, conditions(Table(), workers=4))
    assert not any(p.preload or p.prewarm or p.duplicable for p in plan.placements.values())
    assert [note.partition(" ")[0] for note in plan.notes] == [
        "PreWarmOptimization",
        "PreLoadOptimization",
        "TaskDupOptimization",
    ]


def test_other_optimizations_are_applied() -> None:
    class Named:
        def apply(self, plan: Plan, *_: Any) -> Plan:
            return replace(plan, planner="refined")

    planner = WukongPlanner(optimizations=[Named])  # type: ignore[list-item]
    known = conditions(Table(), workers=4)
    assert planner.plan(workflow(chain(3)), known).planner == "refined"


def test_a_plan_with_only_some_tasks_placed_is_rejected() -> None:
    flow = workflow(chain(2))
    first, second = flow.calls
    placed = {first: Placement(WorkerId("w0"), SMALL), second: Placement(None, SMALL)}
    with pytest.raises(PlanError, match="either every task has a worker or none has"):
        validated(Plan(flow, placed), flow, conditions(Table(), workers=4))


def test_a_chain_is_predicted_to_stay_on_one_worker() -> None:
    preview = previewed(chain(5), start=1.0)
    assert preview.timeline.workers == ("step#0",)
    assert preview.timeline.makespan == 6.0
    assert preview.cost.gb_seconds == pytest.approx(6.0 * 2)
    assert preview.cost.nbytes == 0


def test_each_branch_beyond_the_first_is_predicted_to_get_a_worker() -> None:
    preview = previewed(fan(6), start=1.0)
    assert len(preview.workers) == 6
    assert preview.cost.invocations == 6
    assert set(preview.workers.values()) == {SMALL}


def test_the_preview_says_that_no_task_is_placed() -> None:
    preview = previewed(tree(8))
    assert "workers    8: 8 of 2048 MB" in str(preview)
    assert "dynamic: the worker that completes a task's inputs runs it" in str(preview)
    assert preview.show(color=False)
    assert preview.critical_path


def test_comparison_with_a_placed_plan_counts_predicted_workers() -> None:
    preview = previewed(fan(6))
    known = preview.conditions
    placed = Preview(UniformPlanner(SMALL).plan(preview.plan.workflow, known), known)
    for text in (preview.compare(placed), placed.compare(preview)):
        assert "wukong (6)" in text
        assert text.endswith("wukong: tasks are placed at run time")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("step#0", "the client invokes a worker for it. It is predicted to run on a worker of its"),
        ("step#1", "ready after step#0, whose worker runs it too. It is predicted to run on worker "
         "step#0."),
        ("step#2", "ready after step#0, whose worker runs it if it has a free slot"),
        ("step#7", "the worker that finishes the last of its 6 upstream tasks runs it"),
    ],
)  # fmt: skip
def test_explain_names_the_worker_that_readies_a_task(name: str, said: str) -> None:
    assert said in previewed(fan(6)).explain(name)


def test_the_report_lists_no_tasks_that_ran_elsewhere() -> None:
    preview = previewed(fan(6))
    text = report(preview, preview.timeline)
    assert "another worker" not in text
    assert "GB-seconds" in text


def test_the_predicted_placement_is_that_of_the_timeline() -> None:
    placements = previewed(fan(3)).timeline.placements
    assert placements[TaskId("step#1")] == "step#0"
    assert placements[TaskId("step#2")] == "step#2"


# Policies.


def test_each_policy_can_be_switched_off_by_itself() -> None:
    known = conditions(Table(), workers=4)
    switches = ("fan_out_clustering", "fan_in_clustering", "delayed_io")
    for off in switches:
        planner = WukongPlanner(**{off: False}, big_output_nbytes=7, large_fan_out=None)  # type: ignore[arg-type]
        chosen = planner.plan(workflow(fan(3)), known).policies
        assert [getattr(chosen, name) for name in switches] == [name != off for name in switches]
        assert (chosen.big_output_nbytes, chosen.large_fan_out) == (7, None)
        assert chosen.forecast is None


def test_a_prediction_needs_history_and_then_covers_every_task() -> None:
    flow = workflow(fan(6))
    plan = WukongPlanner(SMALL, decide="predicted").plan(flow, conditions(Table(), workers=4))
    forecast = plan.policies.forecast
    assert forecast is not None
    assert forecast.seconds.keys() == forecast.ends.keys() == flow.calls.keys()
    without = replace(conditions(Table(), workers=4), predictions=DefaultCosts())
    plan = WukongPlanner(SMALL, decide="predicted").plan(flow, without)
    assert plan.policies.forecast is None
    assert "no history" in plan.notes[-1]


def test_with_predictions_short_tasks_stay_where_a_start_would_take_longer() -> None:
    known = conditions(Table(start=100.0), workers=4)
    flow = workflow(fan(6))
    by_size = Preview(WukongPlanner(SMALL).plan(flow, known), known)
    foreseen = Preview(WukongPlanner(SMALL, decide="predicted").plan(flow, known), known)
    assert len(by_size.workers) == 6
    assert len(foreseen.workers) == 1
    assert foreseen.timeline.makespan < by_size.timeline.makespan


def test_predictions_that_would_lengthen_the_run_are_not_used() -> None:
    """A branch would wait for the other's chain, which runs before waiting tasks."""
    first = step()
    branches = [first, first]
    for _ in range(8):
        branches = [step(branch) for branch in branches]
    known = conditions(Table(start=1.5), workers=4)
    plan = WukongPlanner(SMALL, decide="predicted").plan(workflow(step(*branches)), known)
    assert plan.policies.forecast is None
    assert "would lengthen the run" in plan.notes[-1]


@pytest.mark.parametrize(
    "wrong", [{"decide": "guess"}, {"big_output_nbytes": -1}, {"large_fan_out": 0}]
)
def test_an_invalid_argument_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        WukongPlanner(**wrong)
