"""No run starts in a sandbox: neither in a task, nor in a module that a worker imports."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import Farm, Session, ShoalExecutor, task
from shoal.errors import TaskError, UsageError
from shoal.platform.nesting import refuse_in_sandbox

pytestmark = pytest.mark.real


@task
def double(x: int) -> int:
    return 2 * x


def farmed() -> None:
    with Farm(double, workers=1) as farm:
        list(farm.map([1]))


WAYS: dict[str, Callable[[], Any]] = {
    "output.compute": lambda: double(1).compute(),
    "output.submit": lambda: double(1).submit(),
    "output.plan": lambda: double(1).plan(),
    "compute": lambda: shoal.compute(double(1)),
    "Session": Session,
    "Farm": farmed,
    "ShoalExecutor": lambda: ShoalExecutor(1),
}


@task
def refused() -> dict[str, str]:
    """Return the error of each entry point that starts a run."""
    told = {}
    for name, way in WAYS.items():
        try:
            way()
        except UsageError as error:
            told[name] = str(error)
    return told


def test_no_entry_point_can_start_a_run_inside_a_task(session: Session) -> None:
    (told,) = session.compute(refused())
    assert told.keys() == WAYS.keys()
    for message in told.values():
        assert message.startswith("A task can't start a run")
        assert "other.function(…)" in message


@task(retries=3)
def attempt(folder: str) -> None:
    Path(folder, f"{len(os.listdir(folder))}").touch()
    double(1).compute()


def test_a_task_that_starts_a_run_fails_and_is_not_retried(
    session: Session, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=r"'attempt#0' .*A task can't start a run") as failure:
        session.compute(attempt(str(tmp_path)))
    assert type(failure.value.__cause__) is UsageError
    assert os.listdir(tmp_path) == ["0"]


def test_a_task_may_call_another_tasks_function(session: Session) -> None:
    assert session.compute(task(lambda x: double.function(x) + 1)(3)) == [7]


MODULE = """
from shoal import task

class Point:
    x = 3

@task
def double(x):
    return 2 * x

double(1).compute()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that starts a run when it is imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"computing_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def test_a_module_that_computes_when_a_worker_imports_it_is_named_with_its_line(
    module: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=f"Module '{module}' starts a run when it is") as failure:
        import_module(module)
    assert f"{tmp_path / module}.py, line 11" in str(failure.value)
    assert '`if __name__ == "__main__":`' in str(failure.value)
    assert type(failure.value.__cause__) is UsageError


def test_a_module_that_computes_is_named_even_if_needed_for_an_argument(
    session: Session, module: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{module}.py"
    path.write_text(MODULE.rpartition("\n\n")[0])
    point = import_module(module).Point()
    path.write_text(MODULE)
    with pytest.raises(UsageError, match=rf"Module '{module}' starts a run .*, line 11\)"):
        session.compute(task(lambda given: given.x)(point))


def test_outside_a_sandbox_runs_may_start() -> None:
    refuse_in_sandbox()
