"""Runs give the right result while real workers are killed, paused and starved of memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually
from shoal import Resources, Session, Task, task
from shoal.errors import PlanError, TaskTimeout, WorkerDied
from shoal.platform import limits

pytestmark = pytest.mark.real

PLANNERS = ["uniform", "wukong", "spread", "auto"]


def once(folder: str, what: Callable[[], Any]) -> None:
    """Do something to this process, but only the first time."""
    try:
        (Path(folder) / "done").touch(exist_ok=False)
    except FileExistsError:
        return
    what()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def noted(folder: str, name: str) -> None:
    """Create a file for each execution of a task."""
    (Path(folder) / f"{name}.{time.time_ns()}").touch()


def executions(folder: Path, name: str) -> int:
    return len(list(folder.glob(f"{name}.*")))


@task
def number(value: int) -> int:
    return value


@task
def fragile(folder: str, *inputs: int) -> int:
    once(folder, die)
    return sum(inputs)


@task
def total(*inputs: Any) -> Any:
    return sum(inputs)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_killed_worker_is_restarted(session: Session, tmp_path: Path, planner: str) -> None:
    inputs = [number(value) for value in range(8)]
    halves = [fragile(str(tmp_path), *inputs[:4]), total(*inputs[4:])]
    assert session.compute(total(*halves), planner=planner) == [28]


def test_saved_outputs_are_not_computed_again(session: Session, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def first() -> bytes:
        noted(folder, "first")
        return bytes(100_000)

    def last(data: bytes) -> int:
        noted(folder, "last")
        once(folder, die)
        return len(data)

    first_task, last_task = Task(first), Task(last, resources=Resources(memory_mb=1024))
    assert session.compute(last_task(first_task()), planner="uniform") == [100_000]
    assert executions(tmp_path, "first") == 1
    assert executions(tmp_path, "last") == 2


def test_a_task_that_crashes_is_repeated_only_with_retries(
    session: Session, tmp_path: Path
) -> None:
    def crash(folder: str) -> int:
        once(folder, lambda: os.kill(os.getpid(), signal.SIGSEGV))
        return 1

    with pytest.raises(WorkerDied, match="signal 11"):
        session.compute(Task(crash)(str(tmp_path)))
    (tmp_path / "done").unlink()
    assert session.compute(Task(crash, retries=1)(str(tmp_path))) == [1]


def test_a_task_whose_worker_is_killed_repeatedly_is_named(session: Session) -> None:
    with pytest.raises(WorkerDied, match=r"doomed.*signal 9"):
        session.compute(Task(die, name="doomed")(), restarts=1)


@task(resources=Resources(memory_mb=256, cpus=1))
def allocate(megabytes: int) -> int:
    held = b"x" * (megabytes * 1024 * 1024)
    time.sleep(0.3)  # a sandbox that watches its memory may not notice earlier
    return len(held)


@pytest.mark.skipif(limits.detect().kind == "rlimit", reason="memory isn't limited as a whole")
def test_a_task_that_ran_out_of_memory_gets_more(session: Session) -> None:
    assert session.compute(total(allocate(400), 1)) == [400 * 1024 * 1024 + 1]


def test_a_paused_worker_is_replaced_and_does_no_harm(tmp_path: Path) -> None:
    folder = str(tmp_path)

    def pause() -> int:
        once(folder, lambda: os.kill(os.getpid(), signal.SIGSTOP))
        return 1

    with Session(workers=2, folder=folder, lease=0.6) as session:
        run = session.submit(total(Task(pause)(), number(2)))
        assert run.result(2 * TIMEOUT) == 3
        assert eventually(lambda: session.platform.status()["busy"] == 0)  # type: ignore[attr-defined]


@pytest.mark.skipif(limits.detect().kind == "rlimit", reason="memory isn't limited as a whole")
def test_the_memory_that_a_task_needed_is_remembered(tmp_path: Path) -> None:
    with Session(workers=2, folder=str(tmp_path)) as session:
        for planner in ("uniform", "auto"):
            run = session.submit(allocate(300), name="hungry", planner=planner)
            assert run.result(TIMEOUT) == 300 * 1024 * 1024
            session.settle()
        assert all(found.resources.memory_mb > 256 for found in run.plan.placements.values())
        assert not run.needs


@pytest.mark.parametrize("planner", ["uniform", "wukong", "auto"])
def test_a_worker_hands_over_before_its_time_limit(tmp_path: Path, planner: str) -> None:
    def step(number: int) -> int:
        time.sleep(0.3)
        return number + 1

    with Session(workers=1, folder=str(tmp_path), function_seconds=2.0) as session:
        output = Task(step)(0)
        for _ in range(11):
            output = Task(step)(output)
        run = session.submit(output, planner=planner)
        assert run.result(TIMEOUT) == 12
        starts = run.timeline.of_kind("cold start", "warm start")
        assert len(starts) > 1


def test_a_task_that_exceeds_the_functions_time_limit_is_an_error(tmp_path: Path) -> None:
    slow = Task(lambda: time.sleep(0.8), name="slow")
    options: dict[str, Any] = {"workers": 1, "folder": str(tmp_path), "restarts": 0}
    told = "longer than the platform lets a function run"
    limited = Session(**options, function_seconds=0.4)
    with limited, pytest.raises(TaskTimeout, match=told):
        limited.compute(slow())
    with Session(**options) as session:
        session.compute(slow())
    with Session(**options, function_seconds=0.4) as session, pytest.raises(PlanError) as caught:
        session.compute(slow())
    assert "no task may take longer than the platform lets a function run" in str(caught.value)


def test_a_straggler_gets_a_twin_and_the_first_result_counts(tmp_path: Path) -> None:
    folder = str(tmp_path)

    def moody() -> int:
        time.sleep(0.05)
        if (Path(folder) / "moody").exists():
            once(folder, lambda: time.sleep(300))
        return 1

    with Session(workers=2, folder=folder, straggling=3.0) as session:
        for _ in range(4):
            assert session.compute(total(Task(moody)(), 1), name="moody") == [2]
            session.settle()
        (tmp_path / "moody").touch()
        run = session.submit(total(Task(moody)(), 1), name="moody")
        assert run.result(TIMEOUT) == 2
        assert eventually(lambda: session.platform.status()["busy"] == 0)  # type: ignore[attr-defined]
