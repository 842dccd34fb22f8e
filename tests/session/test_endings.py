"""How runs end: without waiting for silent workers or for runs that nobody watches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually
from shoal import Session, task
from shoal.errors import NoThread, TaskError, WorkerDied
from shoal.platform.gateway import LocalGateway
from shoal.storage.embedded import EmbeddedServer

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
    """Make waiting for a silent worker take longer than the test."""
    monkeypatch.setattr("shoal.client.mailbox._LAST_SAVES", 10 * TIMEOUT)


@pytest.mark.usefixtures("_endless")
@pytest.mark.parametrize("planner", ["uniform", "spread", "auto", "wukong"])
def test_a_worker_whose_task_failed_is_not_waited_for(session: Session, planner: str) -> None:
    run = session.submit(end(raise_error), planner=planner)
    with pytest.raises(TaskError, match="bad"):
        run.result(TIMEOUT)
    assert [span.task for span in run.timeline.of_kind("execute") if span.task == "end#0"]


@pytest.mark.usefixtures("_endless")
def test_a_worker_that_died_is_not_waited_for(session: Session) -> None:
    run = session.submit(end(lambda: os._exit(3), add(1)), planner="uniform")
    with pytest.raises(WorkerDied):
        run.result(TIMEOUT)


@pytest.mark.usefixtures("_endless")
def test_a_worker_that_has_no_sandbox_yet_is_not_waited_for(tmp_path: Path) -> None:
    def fail_late() -> None:
        (tmp_path / "begun").touch()
        time.sleep(300)

    with Session(workers=2, sandboxes=1, folder=str(tmp_path / "data")) as session:
        run = session.submit(end(fail_late), end(fail_late), planner="spread")
        assert eventually((tmp_path / "begun").exists)
        run.cancel()


# The system starts no more threads.


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that prevents threads of a name from starting."""

    def refuse(name: str) -> None:
        start = threading.Thread.start

        def refused(thread: threading.Thread) -> None:
            if thread.name == name:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refused)

    return refuse


def test_a_run_that_cannot_be_watched_is_not_started(
    no_thread: Callable[[str], None], tmp_path: Path
) -> None:
    def leave_trace() -> None:
        (tmp_path / "begun").touch()

    with Session(workers=1, folder=str(tmp_path / "data")) as session:
        session.compute(add(1))
        no_thread("shoal-run")
        with pytest.raises(NoThread, match="ulimit"):
            session.submit(end(leave_trace))
        with pytest.raises(NoThread):
            session.compute(end(leave_trace), timeout=TIMEOUT)
        assert session.compute(add(2)) == [2]
    assert not (tmp_path / "begun").exists()


def test_post_run_work_needs_no_new_thread(
    no_thread: Callable[[str], None], tmp_path: Path
) -> None:
    no_thread("shoal-post-run")
    with Session(workers=1, folder=str(tmp_path / "data")) as session:
        assert session.submit(add(1)).result(TIMEOUT) == 1
        assert len(session.history.runs()) == 1


def test_a_run_ends_even_if_cleanup_fails(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("shoal.client.ended_runs.EndedRuns._take_over", fail)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    assert session.submit(add(1)).result(TIMEOUT) == 1


def test_the_gateway_forgets_runs_that_have_ended(tmp_path: Path) -> None:
    with Session(workers=1, folder=str(tmp_path)) as session:
        for number in range(3):
            session.compute(add(number))
        assert isinstance(session.platform, LocalGateway)
        assert session.platform._supervisor._runs == {}


def test_the_next_run_reuses_the_folder_of_the_one_before(tmp_path: Path) -> None:
    with Session(workers=1, folder=str(tmp_path)) as session:
        first = session.submit(add(1))
        first.result(TIMEOUT)
        second = session.submit(add(2))
        second.result(TIMEOUT)
        assert first.shared is second.shared


def test_a_session_closes_its_gateway_before_the_server_it_supervises_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def noting(close: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda self: (closed.append(type(self).__name__), close(self))[1]

    for kind in (LocalGateway, EmbeddedServer):
        monkeypatch.setattr(kind, "close", noting(kind.close))
    Session(folder=str(tmp_path), workers=1).close()
    assert closed == ["LocalGateway", "EmbeddedServer"]
