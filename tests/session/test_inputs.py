"""Inputs are read-only by convention, and `check_inputs` finds tasks that change them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import Session, task
from shoal.errors import InputChanged, UnknownRun

pytestmark = pytest.mark.real

PLANNERS = ("auto", "uniform", "nonuniform", "spread", "wukong")


@task
def make(large: bool = False) -> Any:
    return np.zeros(200_000) if large else [1, 2, 3]


@task(retries=2)
def change(x: Any) -> int:
    x[0] = 99
    return len(x)


@task
def look(x: Any, *_: Any) -> Any:
    return x


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_task_that_changes_its_input_is_named_with_any_planner(
    session: Session, planner: str
) -> None:
    """The first attempt must find it: in a second one the input would no longer change."""
    made = make(planner == "spread")
    with pytest.raises(InputChanged, match=r"argument 1 \(the output of 'make#0'\)") as failure:
        session.compute(look(made, change(made)), planner=planner, check_inputs=True)
    assert (failure.value.task, failure.value.not_run) == ("change#0", ("look#0",))


def test_a_task_that_changes_a_constant_is_named(session: Session) -> None:
    for constant in ([1, 2], np.zeros(100_000)):
        with pytest.raises(InputChanged, match=r"'change#0' .* it changed argument 1 in place"):
            session.compute(change(constant), check_inputs=True)


def test_a_run_that_changed_an_input_cannot_be_resumed(session: Session) -> None:
    made = make()
    run = session.submit(look(made, change(made)), check_inputs=True)
    with pytest.raises(InputChanged) as failure:
        run.result()
    assert not getattr(failure.value, "__notes__", ())
    with pytest.raises(UnknownRun):
        session.resume(run.id)


@task
def overlaps(folder: str, number: int) -> bool:
    """Return whether another task runs at the same time."""
    mine = Path(folder, f"{number}")
    mine.touch()
    threading.Event().wait(0.02)
    seen = len([*Path(folder).iterdir()])
    mine.unlink()
    return seen > 1


def test_with_check_inputs_each_worker_runs_one_task_at_a_time(tmp_path: Path) -> None:
    with Session(workers=1, memory_mb=4096, cpus=2) as session:
        outputs = [overlaps(str(tmp_path), number) for number in range(4)]
        assert not any(session.compute(*outputs, check_inputs=True))
