"""Grids name only what exists, and shapes do the work of the papers' workflows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluating import evaluated
from shoal.errors import UsageError
from shoal.experiments.grid import (
    CENTRALISED,
    GRIDS,
    PLANNERS,
    REAL_ONLY,
    checked,
    grid_named,
    restricted,
)
from shoal.experiments.grid_run import cells_of
from shoal.experiments.shapes import counted, shape_named
from shoal.experiments.virtual_costs import BASE, Service, WorkModel
from shoal.types import Resources

TASKS = {"matrix": 17, "tree": 63, "text": 59, "image": 130, "tr": 1023}


def test_the_papers_grid_has_every_combination() -> None:
    cells = cells_of(GRIDS["paper-000"], "virtual")
    assert len(cells) == 4 * 8 * 3
    assert len(set(map(str, cells))) == len(cells)


def test_everything_that_grids_name_exists() -> None:
    for grid in GRIDS.values():
        assert checked(grid) is grid


def test_centralised_designs_only_run_for_real() -> None:
    grid = GRIDS["paper-003"]
    assert {c.planner for c in cells_of(grid, "virtual")}.isdisjoint(CENTRALISED)
    assert {c.planner for c in cells_of(grid, "real")}.issuperset(CENTRALISED)


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ({"workflows": ["treee"]}, "no workflow 'treee'"),
        ({"planners": ["unform"]}, "no planner 'unform'"),
        ({"slas": [100]}, "must be a percentile"),
    ],
)
def test_a_wrong_name_is_an_error(part: dict[str, list[str]], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        restricted(GRIDS["paper-000"], **part)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no grid"):
        grid_named("paper-999")


def test_a_grid_can_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    given = {"workflows": ["tree"], "planners": ["uniform"], "work": {"scale": 2.0}}
    path.write_text(json.dumps(given))
    grid = grid_named(str(path))
    assert (grid.name, grid.workflows, grid.work.scale) == ("mine", ["tree"], 2.0)
    path.write_text(json.dumps({**given, "planner": "uniform"}))
    with pytest.raises(UsageError, match="unknown key 'planner'"):
        grid_named(str(path))
    path.write_text("[")
    with pytest.raises(UsageError, match="is not a grid"):
        grid_named(str(path))


@pytest.mark.parametrize("name", TASKS)
def test_a_shape_is_a_workflow_that_adds_up_its_outputs(name: str) -> None:
    shape = shape_named(name)
    assert len(shape.workflow) == TASKS[name]
    assert tuple(shape.workflow.calls) == shape.ids
    assert sum(counted(evaluated(out)) for out in shape.outputs(hollow=True)) == shape.expected


def test_large_constants_are_shared_by_tasks() -> None:
    sizes = shape_named("matrix").constant_sizes
    assert len(sizes) == 16
    assert len({name for named in sizes.values() for name in named}) == 8


def test_the_same_seed_does_the_same_work_and_more_cpus_are_faster() -> None:
    shape = shape_named("text")
    task = shape.ids[1]
    one, other = (Service(shape, WorkModel(), "7/text/50/0") for _ in range(2))
    assert one.seconds(task, BASE) == other.seconds(task, BASE)
    assert one.seconds(task, BASE) != Service(shape, WorkModel(), "8").seconds(task, BASE)
    assert one.seconds(task, Resources(8192)) < one.seconds(task, Resources(4096))
    flat = Service(shape, WorkModel(gain=0.0), "7/text/50/0")
    assert flat.seconds(task, Resources(8192)) == flat.seconds(task, BASE)


def test_every_planner_of_a_grid_has_a_maker() -> None:
    for grid in GRIDS.values():
        assert set(grid.planners) <= {*PLANNERS, *REAL_ONLY}
