"""Medians, changes and kept promises, as the report shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_examples import ROW, runs

from shoal.experiments.records import Scale
from shoal.experiments.report.statistics import (
    PLANNERS,
    Promises,
    breakdown,
    by_planner,
    change,
    configurations,
    curves,
    middle_run,
    missing,
    promises,
    spread,
    typical_change,
    values,
)


def test_a_change_compares_the_medians_over_all_workflows_and_slas() -> None:
    rows = [
        *runs("tree", "wukong", 1.0, 2.0),
        *runs("text", "wukong", 10.0, sla=90),
        *runs("tree", "uniform", 0.5, 1.0),
        *runs("text", "uniform", 40.0, sla=90),
    ]
    found = change(rows, "makespan", "uniform", "wukong")
    assert found is not None
    assert found.value == pytest.approx(-0.5)


def test_a_typical_change_is_the_median_of_the_changes_within_each_workflow_and_sla() -> None:
    rows = [
        *runs("tree", "wukong", 1.0), *runs("tree", "uniform", 0.9),
        *runs("text", "wukong", 10.0), *runs("text", "uniform", 8.0),
        *runs("image", "wukong", 100.0, sla=90), *runs("image", "uniform", 300.0, sla=90),
        *runs("matrix", "wukong", 1.0),
    ]  # fmt: skip
    found = typical_change(rows, "makespan", "uniform", "wukong")
    assert found is not None
    assert found.value == pytest.approx(-0.1)


def test_a_change_that_cannot_be_computed_is_none() -> None:
    rows = runs("tree", "uniform", 1.0)
    assert change(rows, "makespan", "uniform", "wukong") is None
    assert typical_change(rows, "makespan", "uniform", "wukong") is None
    instant = [*rows, *runs("tree", "wukong", 0.0)]
    assert change(instant, "makespan", "uniform", "wukong") is None


def test_a_promise_is_kept_by_a_run_that_took_no_longer_than_predicted() -> None:
    rows = [replace(row, predicted=2.0) for row in runs("tree", "uniform", 1.0, 2.0, 2.1)]
    assert promises([*rows, *runs("tree", "wukong", 9.0)]) == Promises(made=3, kept=2)
    assert promises(runs("tree", "wukong", 9.0)) is None


def test_a_promise_of_zero_seconds_is_broken_not_overlooked() -> None:
    assert promises([replace(ROW, predicted=0.0)]) == Promises(made=1, kept=0)


def test_planners_come_in_their_order_and_others_after_them() -> None:
    rows = [replace(ROW, planner=name) for name in ("mine", *reversed(PLANNERS))]
    assert list(by_planner(rows)) == [*PLANNERS, "mine"]


def test_designs_come_in_historical_order() -> None:
    names = ("auto-fastest", "mine", "predicted", "decentralised", "strawman")
    rows = [replace(ROW, planner=name) for name in names]
    assert list(by_planner(rows)) == [
        "strawman", "decentralised", "predicted", "auto-fastest", "mine"
    ]  # fmt: skip


def test_a_spread_has_the_quartiles() -> None:
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.low, found.first, found.median, found.third, found.high) == (1, 2, 3, 4, 5)
    assert spread([7.0]).first == spread([7.0]).high == 7.0


def test_a_breakdown_has_means_of_what_workers_did() -> None:
    rows = [ROW, replace(ROW, startup=1.5)]
    assert breakdown(rows)["startup"].value == 1.0
    assert breakdown(rows)["executing"].value == 2.0


def test_missing_values_are_left_out() -> None:
    assert values([ROW, replace(ROW, execution_error=0.1)], "execution_error") == [0.1]


def test_the_middle_run_has_the_median_makespan() -> None:
    assert middle_run(runs("tree", "uniform", 3.0, 1.0, 2.0)).repeat == 2
    assert middle_run(runs("tree", "uniform", 3.0, 1.0)).repeat == 1


def test_a_configuration_has_its_repeats() -> None:
    rows = [*runs("tree", "uniform", 1.0, 2.0), *runs("tree", "uniform", 3.0, sla=90)]
    assert [len(each) for each in configurations(rows)] == [2, 1]
    larger = [replace(row, parameters={"numbers": 256}) for row in rows]
    assert len(configurations([*rows, *larger])) == 4


def test_runs_are_missing_until_every_planner_has_equally_many_in_each_case() -> None:
    rows = [*runs("tree", "uniform", 1.0, 2.0), *runs("text", "wukong", 3.0)]
    assert missing(rows, repeat=2) == 5
    rows += [*runs("tree", "wukong", 1.0, 2.0), *runs("text", "wukong", 3.0)]
    assert missing([*rows, *runs("text", "uniform", 1.0, 2.0, 3.0)], repeat=2) == 0


def test_curves_go_by_tasks_or_workers_and_take_the_median_of_repeats() -> None:
    lines = [
        Scale("tree", 10_000, workers, makespan, 1.0, 1, 1.0, 1.0)
        for workers, makespan in ((1000, 2.0), (100, 9.0), (100, 11.0), (100, 10.0))
    ]
    found = curves(lines, lambda line: line.makespan / line.ideal, "workers")
    assert found == {("tree", "10,000 tasks"): [(100, 10.0), (1000, 2.0)]}
    found = curves(lines, lambda line: line.makespan / line.ideal, "tasks")
    assert found == {
        ("tree", "100 workers"): [(10_000, 10.0)],
        ("tree", "1,000 workers"): [(10_000, 2.0)],
    }
