"""WfCommons instances become workflows that do what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from instance_examples import current, older, written

from evaluating import evaluated
from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.experiments.grid import grid_named, instance_grid
from shoal.experiments.instances import instance_shape
from shoal.experiments.records import Records
from shoal.experiments.shapes import counted


@pytest.mark.parametrize("layout", [current, older])
def test_an_instance_has_the_recorded_tasks_times_and_files(
    layout: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    """Of what a task writes, only what others read is its output."""
    shape = instance_shape(written(tmp_path, layout()))
    assert [(t.name, t.seconds, t.upstream, t.nbytes) for t in shape.tasks] == [
        ("a", 0.4, (), 500_000),
        ("b", 0.2, (0,), 100_000),
        ("b", 0.3, (0,), 100_000),
        ("d", 0.1, (1, 2), 400_000),
    ]
    assert shape.constants == [1_000_000]
    assert shape.tasks[0].constants == (0,)
    assert tuple(shape.workflow.calls) == shape.ids
    (output,) = shape.outputs(hollow=True)
    assert counted(evaluated(output)) == shape.expected == 5


def test_files_can_be_scaled(tmp_path: Path) -> None:
    shape = instance_shape(written(tmp_path, current()), 0.1)
    assert shape.constants == [100_000]
    assert shape.tasks[0].nbytes == 50_000


def test_an_instance_may_have_several_sinks_and_dependencies_without_files(tmp_path: Path) -> None:
    given = current()
    *_, unread, last = given["workflow"]["specification"]["tasks"]
    unread["children"] = []
    last.update(parents=["b_ID02"], inputFiles=[])
    shape = instance_shape(written(tmp_path, given))
    assert [shape.tasks[sink].name for sink in shape.sinks] == ["b", "d"]
    assert sum(counted(evaluated(output)) for output in shape.outputs(hollow=True)) == 5
    assert shape.expected == 5


def test_kinds_of_tasks_are_told_by_category_program_or_name(tmp_path: Path) -> None:
    given = current()
    runs = given["workflow"]["execution"]["tasks"]
    runs[0]["command"] = {"program": "mProject", "arguments": ["-x"]}
    runs[1]["command"] = {"program": "printf '%s' | while read line; do echo; done"}
    runs[2]["category"] = "background"
    shape = instance_shape(written(tmp_path, given))
    assert [task.name for task in shape.tasks] == ["mProject", "b", "background", "d"]


def _without_execution(given: Any) -> None:
    del given["workflow"]["execution"]


def _without_tasks(given: Any) -> None:
    given["workflow"]["specification"]["tasks"] = []


def _with_a_cycle(given: Any) -> None:
    given["workflow"]["specification"]["tasks"][0]["parents"] = ["d_ID04"]


def _with_an_unknown_parent(given: Any) -> None:
    given["workflow"]["specification"]["tasks"][1]["parents"] = ["z"]


def _with_a_runtime_of(value: Any) -> Callable[[Any], None]:
    def change(given: Any) -> None:
        given["workflow"]["execution"]["tasks"][2]["runtimeInSeconds"] = value

    return change


def _with_an_unknown_file(given: Any) -> None:
    del given["workflow"]["specification"]["files"][1]


def _with_a_negative_size(given: Any) -> None:
    given["workflow"]["specification"]["files"][1]["sizeInBytes"] = -1


def _with_a_task_twice(given: Any) -> None:
    tasks = given["workflow"]["specification"]["tasks"]
    tasks.append(tasks[0])


def _without_an_id(given: Any) -> None:
    del given["workflow"]["specification"]["tasks"][1]["id"]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda given: given.pop("workflow"), "the file has no 'workflow'"),
        (lambda given: given["workflow"].pop("specification"), "neither workflow.specification"),
        (_without_execution, "no workflow.execution, so how long its tasks take is unknown"),
        (_without_tasks, "has no tasks"),
        (_with_a_cycle, "tasks need each other: '.*' -> "),
        (_with_an_unknown_parent, "task 'b_ID02' names 'z'"),
        (_with_a_runtime_of(None), "task 'b_ID03' has the runtime None"),
        (_with_a_runtime_of(-1), "task 'b_ID03' has the runtime -1"),
        (_with_an_unknown_file, "file 'a1' of task 'a_ID01' is not in"),
        (_with_a_negative_size, "file 'a1' has the size -1"),
        (_with_a_task_twice, "two tasks have the id 'a_ID01'"),
        (_without_an_id, "has no 'id', which must be a text"),
    ],
)
def test_a_malformed_instance_is_an_error_that_names_the_place(
    damage: Callable[[Any], object], error: str, tmp_path: Path
) -> None:
    given = current()
    damage(given)
    with pytest.raises(UsageError, match=error) as raised:
        instance_shape(written(tmp_path, given))
    assert "sample.json can't be used as a WfCommons instance" in str(raised.value)


@pytest.mark.parametrize(
    "text", ["{", "[]", "\x00", '{"workflow": 1}', '{"workflow": {"tasks": 1}}']
)
def test_a_file_that_is_no_instance_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UsageError, match=r"bad\.json can't be used as a WfCommons instance"):
        instance_shape(str(tmp_path / "bad.json"))
    with pytest.raises(UsageError, match="nowhere"):
        instance_shape(str(tmp_path / "nowhere.json"))


def test_instances_of_the_same_name_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = [written(folder, current()) for folder in (tmp_path, tmp_path / "other")]
    with pytest.raises(UsageError, match="Two instances are named 'sample'"):
        instance_grid(files)


def test_an_instance_runs_under_every_planner_and_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.experiments.grid_run.cores", lambda: 1)
    file, to = written(tmp_path, current()), str(tmp_path / "here")
    command = ["experiments", "run", "--instance", file, "--repeat", "1", "--warm-up", "1"]
    assert main([*command, "--to", to]) == 0
    rows, _ = Records(Path(to)).rows()
    assert {row.workflow for row in rows} == {"sample"}
    assert {row.planner for row in rows} >= set(grid_named("paper-000").planners)
    assert all(row.makespan > 0.5 for row in rows)
    assert ("HEFT" in {row.planner for row in rows}) == (find_spec("saga") is not None)
    assert main(["experiments", "report", to]) == 0
    assert "sample" in (tmp_path / "here" / "report.html").read_text()


def test_a_published_scheduler_needs_its_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.experiments.grid_run.cores", lambda: 1)
    if find_spec("saga"):
        pytest.skip("The extra is installed.")
    file = written(tmp_path, current())
    command = ["experiments", "run", "--instance", file, "--planners", "HEFT", "--repeat", "1"]
    assert main([*command, "--to", str(tmp_path / "here")]) == 2
    assert "pip install 'shoal[quality]'" in capsys.readouterr().err


def test_files_that_no_real_worker_can_hold_are_an_error_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = current()
    given["workflow"]["specification"]["files"][1]["sizeInBytes"] = 3e9
    command = ["experiments", "run", "--mode", "real", "--instance", written(tmp_path, given)]
    assert main([*command, "--to", str(tmp_path / "here")]) == 2
    error = capsys.readouterr().err
    assert "the files of task 'a#0' have 3.0 GB" in error
    assert "--bytes 0.5" in error
    assert not (tmp_path / "here").exists()


@pytest.mark.real
def test_an_instance_runs_for_real(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "there").mkdir()
    file, to = written(tmp_path / "there", current()), str(tmp_path / "here")
    command = ["experiments", "run", "--instance", file, "--mode", "real", "--repeat", "1"]
    options = ["--warm-up", "0", "--planners", "uniform,wukong", "--work", "0.1"]
    assert main([*command, *options, "--to", to]) == 0
    rows, _ = Records(Path(to)).rows()
    assert [row.mode for row in rows] == ["real", "real"]
    assert json.loads((tmp_path / "here" / "experiment.json").read_text())["grid"] == "instances"
