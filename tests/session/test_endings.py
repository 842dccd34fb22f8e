"""A run that ends early waits for nobody who won't answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from observing import PATIENCE, eventually
from shoal import Session, task
from shoal.errors import TaskError, WorkerDied

pytestmark = pytest.mark.real


@task
def add(*numbers: int) -> int:
    return sum(numbers)


@task
def end(how: Callable[[], Any], *_: int) -> Any:
    return how()


def raise_error() -> None:
    raise ValueError("bad")


@pytest.fixture
def _endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a worker that doesn't answer waits for longer than the test."""
    monkeypatch.setattr("shoal.run._LAST_SAVES", 10 * PATIENCE)


@pytest.mark.usefixtures("_endless")
@pytest.mark.parametrize("planner", ["uniform", "spread", "auto", "wukong"])
def test_a_worker_whose_task_failed_is_not_waited_for(session: Session, planner: str) -> None:
    run = session.submit(end(raise_error), planner=planner)
    with pytest.raises(TaskError, match="bad"):
        run.result(PATIENCE)
    assert [span.task for span in run.timeline.of_kind("execute") if span.task == "end#0"]


@pytest.mark.usefixtures("_endless")
def test_a_worker_that_died_is_not_waited_for(session: Session) -> None:
    run = session.submit(end(lambda: os._exit(3), add(1)), planner="uniform")
    with pytest.raises(WorkerDied):
        run.result(PATIENCE)


@pytest.mark.usefixtures("_endless")
def test_a_worker_that_has_no_sandbox_yet_is_not_waited_for(tmp_path: Path) -> None:
    def fail_late() -> None:
        (tmp_path / "begun").touch()
        time.sleep(300)

    with Session(workers=2, sandboxes=1, folder=str(tmp_path / "data")) as session:
        run = session.submit(end(fail_late), end(fail_late), planner="spread")
        assert eventually((tmp_path / "begun").exists)
        run.cancel()
