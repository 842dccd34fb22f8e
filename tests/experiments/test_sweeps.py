"""Workloads come in several sizes, and run with ideal storage and on Dask beside."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.experiments.grid import GRIDS, IDEAL_STORAGE, PEERS, Grid, restricted
from shoal.experiments.grid_run import cells_of, run_virtual
from shoal.experiments.records import Experiment, Records, Row
from shoal.experiments.shapes import Shape, ShapeTask, shape_named
from shoal.experiments.sweeps import DELAYS, SIZED, decoded, encoded, version, version_shape

SMALL = replace(
    restricted(GRIDS["paper-003-sizes"], ["svd1@20000"], ["delayed-io", IDEAL_STORAGE]), warm_up=0
)


def ran(folder: Path, grid: Grid = SMALL) -> dict[str, Row]:
    records = Records(folder)
    records.begin(Experiment(grid.name, "virtual", 1, 0, "", "", "", "", grid.settings()))
    run_virtual(records, grid, 1, 0, lambda count: None, processes=1)
    return {row.planner: row for row in records.rows()[0]}


@pytest.mark.parametrize(
    ("name", "workload", "parameters"),
    [
        ("gemm@2500", "gemm", {"size": 2500}),
        ("svd1@20000", "svd1", {"rows": 20_000}),
        ("tr@250ms", "tr", {"milliseconds": 250}),
        ("gemm", "gemm", {}),
        ("mine@3", "mine@3", {}),
    ],
)
def test_a_versions_name_has_its_workload_and_parameter(
    name: str, workload: str, parameters: dict[str, int]
) -> None:
    assert version(name) == (workload, parameters)


@pytest.mark.parametrize("name", ["gemm@1", "tr@5", "gemm@ms", "@"])
def test_a_version_that_was_not_measured_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match="no workflow"):
        version_shape(name)


def test_a_tree_can_have_any_delay_in_every_task() -> None:
    plain, delayed = shape_named("tr"), version_shape("tr@70ms")
    for task, later in zip(plain.tasks, delayed.tasks, strict=True):
        assert later.seconds == pytest.approx(task.seconds + 0.07)
        assert later.upstream == task.upstream


def test_larger_versions_work_more_and_move_more() -> None:
    for smaller, larger in pairwise(SIZED):
        if version(smaller)[0] == version(larger)[0]:
            small, large = version_shape(smaller), version_shape(larger)
            assert sum(task.seconds for task in small.tasks) < sum(
                task.seconds for task in large.tasks
            )
            assert sum(task.nbytes for task in small.tasks) < sum(
                task.nbytes for task in large.tasks
            )


def test_tasks_of_a_kind_take_the_same_time() -> None:
    tasks = [ShapeTask("a", (), (), seconds, 8) for seconds in (1.0, 2.0, 9.0)]
    tasks.append(ShapeTask("a", (0, 1, 2), (), 5.0, 16))
    found = decoded("x", encoded(Shape("x", tasks, (), "about")))
    assert [task.seconds for task in found.tasks] == [2.0, 2.0, 2.0, 5.0]
    assert [task.upstream for task in found.tasks] == [task.upstream for task in tasks]
    assert found.about == "about"


def test_ideal_storage_moves_nothing_but_does_the_same_work(tmp_path: Path) -> None:
    found = ran(tmp_path)
    stored, ideal = found["delayed-io"], found[IDEAL_STORAGE]
    assert (ideal.workflow, ideal.parameters) == ("svd1", {"rows": 20_000})
    assert ideal.tasks == stored.tasks
    assert ideal.uploaded < stored.uploaded / 100
    assert ideal.makespan < stored.makespan


def test_dask_only_runs_for_real() -> None:
    grid = GRIDS["paper-003-sizes"]
    assert {c.planner for c in cells_of(grid, "virtual")}.isdisjoint(PEERS)
    assert {c.planner for c in cells_of(grid, "real")}.issuperset(PEERS)
    assert set(DELAYS) < set(grid.workflows)


@pytest.mark.real
@pytest.mark.parametrize(("name", "package"), [("laptop", "dask"), ("dask", "distributed")])
def test_dask_computes_the_same_result(name: str, package: str) -> None:
    """In a process of its own, because Dask leaves helpers behind until its process ends."""
    pytest.importorskip(package)
    subprocess.run([sys.executable, "-c", _RUN, name], check=True, timeout=100)


_RUN = """
import sys
from shoal.experiments.dask_peer import DaskPeer
from shoal.experiments.shapes import counted, shape_named

if __name__ == "__main__":
    shape = shape_named("tree")
    with DaskPeer(sys.argv[1]) as peer:
        values = peer.run(shape, lambda task: 0.0)
    assert sum(map(counted, values)) == shape.expected
"""
