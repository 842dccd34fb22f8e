"""After a run, plan and reality stand side by side: figures, notes, and one chart with both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_examples import LARGE, SMALL, Table, chain, conditions, workflow

from shoal import Preview
from shoal.execution.plan import Placement, Plan
from shoal.execution.timeline import Span, Timeline
from shoal.planning.report import report
from shoal.types import TaskId, WorkerId

A, B = TaskId("step#0"), TaskId("step#1")
W0, W1 = WorkerId("w0"), WorkerId("w1")

FLOW = workflow(chain(2))
PLAN = Plan(FLOW, {A: Placement(W0, SMALL), B: Placement(W1, LARGE)}, planner="mine")


def preview(basis: str = "5 runs") -> Preview:
    """Preview one second on 2 GB, then two on 8 GB; each worker takes half a second to start."""
    costs = Table({"step#1": 2.0}, {"step#0": 10**7}, start=0.5, basis=basis)
    return Preview(PLAN, conditions(costs), planning=0.125)


def recorded(*more: Span) -> Timeline:
    """Record a run in which the first task took twice as long, on a warm worker."""
    spans = (
        Span("warm start", W0, None, 0.0, 0.1),
        Span("execute", W0, A, 0.1, 2.1, 0.0, 10**7),
        Span("save", W0, A, 2.1, 2.2, 0.0, 10**7),
        Span("cold start", W1, None, 2.2, 2.7),
        Span("fetch", W1, A, 2.7, 2.8, 0.0, 10**7),
        Span("execute", W1, B, 2.8, 4.8, 0.0, 100),
    )
    spans = tuple(sorted((*spans, *more), key=lambda span: span.start))
    return Timeline(spans, makespan=5.0)


def rows(text: str) -> dict[str, list[str]]:
    """Return the figures by label."""
    lines = text.partition("\n\n")[0].splitlines()
    return {line[:11].strip(): line[11:].split() for line in lines[1:]}


def test_predicted_and_recorded_figures_are_side_by_side() -> None:
    found = rows(report(preview(), recorded()))
    assert found[""] == ["predicted", "recorded"]
    assert found["makespan s"] == ["4.2", "5", "+19%"]
    assert found["GB-seconds"] == ["24", "25.2", "+5%"]
    assert found["price $"] == ["0.0004", "0.00042", "+5%"]
    assert found["cold starts"] == ["2", "1", "-50%"]
    assert found["MB moved"] == ["20", "20", "+0%"]
    assert found["executing s"] == ["3", "4", "+33%"]


def test_a_chart_explains_its_letters() -> None:
    chart = report(preview(), recorded()).splitlines()
    assert "start" in chart[-1]


def test_the_report_names_the_planner_its_basis_and_the_error_of_tasks() -> None:
    text = report(preview(), recorded())
    assert text.startswith("planned by mine from 5 runs in 125 ms\n")
    assert "the median error of task times was 25%" in text
    assert "no history" not in text
    assert "another worker" not in text


def test_a_cached_plan_has_no_planning_time() -> None:
    text = report(Preview(PLAN, preview().conditions), recorded())
    assert text.startswith("planned by mine from 5 runs\n")


def test_the_report_shows_the_prediction_recorded_with_the_run() -> None:
    found = rows(report(preview(), recorded(), makespan=4.0))
    assert found["makespan s"] == ["4", "5", "+25%"]


def test_large_figures_and_errors_are_readable() -> None:
    costs = Table(30_000.0, basis="5 runs")
    text = report(Preview(PLAN, conditions(costs)), recorded())
    assert rows(text)["makespan s"] == ["60,000", "5", "-100%"]
    assert "the median error of task times was a factor of 15,000" in text
    costs = Table(0.01, basis="5 runs")
    text = report(Preview(PLAN, conditions(costs)), recorded())
    assert rows(text)["makespan s"] == ["0.02", "5", "\N{MULTIPLICATION SIGN}250"]


def test_each_worker_has_a_planned_row_above_its_recorded_row() -> None:
    text = report(preview(), recorded(), width=60)
    lines = text.partition("\n\n")[2].splitlines()
    labels = [line[:7] for line in lines if line.startswith("w")]
    assert labels == ["w0 plan", "w0 run ", "w1 plan", "w1 run "]
    assert max(map(len, lines)) <= 60


def test_a_guess_is_called_a_guess() -> None:
    text = report(preview("no history"), recorded())
    assert "There was no history, so the prediction is a guess; the next one is better." in text


def test_the_report_names_a_task_that_ran_elsewhere() -> None:
    copy = Span("execute", W1, A, 1.0, 2.0)
    text = report(preview(), recorded(copy))
    assert "1 task ran on another worker than planned, such as step#0" in text


def test_the_report_works_without_recorded_spans() -> None:
    text = report(preview(), replace(recorded(), spans=()))
    assert rows(text)["executing s"] == ["3", "0", "-100%"]
    assert "median error" not in text


def test_a_prediction_of_zero_has_no_relative_change() -> None:
    costs = Table(0.0, basis="no history")
    text = report(Preview(PLAN, conditions(costs)), recorded())
    assert rows(text)["makespan s"] == ["0", "5"]


@pytest.mark.parametrize("color", [True, False])
def test_the_report_has_no_colours_by_default(color: bool) -> None:
    assert ("\x1b[" in report(preview(), recorded(), color=color)) == color
