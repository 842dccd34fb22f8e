"""The keys by which history knows tasks and workflows."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import cloudpickle
import numpy as np
import pytest

from shoal import Output, Task, Workflow, task
from shoal.experiments.tree_reduction import tree_reduction
from shoal.workflow import origin_of, program

SCRIPT = """
from shoal import task

@task
def total(*numbers):
    return sum(numbers)

if __name__ == "__main__":
    print(total.key, end="")
"""


class Called:
    """A function that is an object."""

    def __call__(self) -> int:
        return 1


@task
def one() -> int:
    return 1


def module_of(file: Path) -> ModuleType:
    """Load a script as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script_of_tests.py"
    file.write_text(SCRIPT)
    return file


def test_a_task_of_a_package_is_known_by_its_module() -> None:
    key = Workflow.of(tree_reduction(4)).key
    assert key.startswith("shoal.experiments.tree_reduction:")


def test_script_is_known_by_its_file_however_it_is_loaded(script: Path, tmp_path: Path) -> None:
    expected = f"{script.resolve()}:total"
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for command in ([script], [link / script.name], ["-m", script.stem], [script.name]):
        ran = subprocess.run(
            [sys.executable, *map(str, command)], cwd=tmp_path, capture_output=True, check=True
        )
        assert ran.stdout.decode() == expected
    assert module_of(script).total.key == expected


def test_tasks_of_one_name_in_other_files_and_classes_are_told_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "script.py", tmp_path / "b" / "script.py"
    for file in (first, second):
        file.parent.mkdir()
        file.write_text(SCRIPT)
    found = [module_of(file).total for file in (first, second)]
    assert found[0].name == found[1].name
    assert found[0].key != found[1].key
    assert origin_of(Path.stat) != origin_of(os.stat)


def test_a_given_name_overrides_the_origin() -> None:
    assert Task(Called(), name="mine").key == "mine"
    flow = Workflow.of(one())
    assert (flow.name, flow.key) == ("one", f"{Path(__file__).resolve()}:one")
    assert (flow.named("nightly").name, flow.named("nightly").key) == ("nightly", "nightly")
    assert flow.named(None) is flow


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called() -> Any:
        return function()

    return called


def test_a_decorated_function_is_known_by_its_own_origin_not_its_decorators() -> None:
    assert origin_of(decorated(tree_reduction)) == origin_of(tree_reduction)


@pytest.mark.parametrize(
    ("function", "ends"),
    [
        (Called(), ":Called"),
        (partial(partial(Called.__call__, 1), 2), ":Called.__call__"),
        (sum, "builtins:sum"),
        (lambda: 1, ":<lambda>"),
        (np.multiply, ":multiply"),
        (Mock(), ":Mock"),
        (str.upper, "builtins:str.upper"),
    ],
    ids=["object", "partial", "builtin", "lambda", "ufunc", "mock", "method"],
)
def test_every_callable_has_an_origin(function: Any, ends: str) -> None:
    assert origin_of(function).endswith(ends)


def test_notebook_is_known_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "a.ipynb"))
    assert program() == str(tmp_path / "a.ipynb")
    main.__dict__["__vsc_ipynb_file__"] = str(tmp_path / "b.ipynb")
    assert program() == str(tmp_path / "b.ipynb")


def test_interactive_session_is_known_by_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert program() == f"{folder}/<interactive>"
    folder.rmdir()
    assert program() == "<interactive>"


def test_task_keeps_its_key_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> int:
        return 1

    made: Task[[], int] = Task(inner)
    key = made.key
    data = cloudpickle.dumps(made)
    monkeypatch.setitem(globals(), "__file__", "/elsewhere.py")
    assert cloudpickle.loads(data).key == key
    assert Task(inner).key != key


def test_workflow_is_known_by_its_last_sink() -> None:
    outputs: list[Output[int]] = [Task(sum)([1]), one()]
    assert Workflow.of(*outputs).key == one.key
