"""A run that failed, was cancelled or lost its client goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import PATIENCE, eventually
from shoal import Session, Task
from shoal.errors import RunCancelled, TaskError, UnknownRun, UsageError
from shoal.storage.embedded import EmbeddedServer
from shoal.workflow import Output

pytestmark = pytest.mark.real


def workflow(folder: Path, *, count: int = 6, nbytes: int = 10) -> Output[int]:
    """Tasks that leave a file each time they are executed; the last waits for a file."""

    def make(number: int) -> bytes:
        (folder / f"make{number}.{time.time_ns()}").touch()
        return bytes(nbytes)

    def measure(number: int, data: bytes) -> int:
        (folder / f"measure{number}.{time.time_ns()}").touch()
        return len(data)

    def last(*sizes: int) -> int:
        if (folder / "wait").exists():
            (folder / "waiting").touch()
            time.sleep(300)
        if not (folder / "mended").exists():
            raise ValueError("not yet")
        return sum(sizes)

    made = [Task(make)(number) for number in range(count)]
    return Task(last)(*[Task(measure)(number, data) for number, data in enumerate(made)])


def executed(folder: Path) -> int:
    return len(list(folder.glob("m*.*")))


@pytest.mark.parametrize("planner", ["uniform", "spread", "auto"])
@pytest.mark.parametrize("nbytes", [10, 200_000], ids=["small", "large"])
def test_only_what_is_not_finished_is_repeated_after_a_failure(
    session: Session, tmp_path: Path, planner: str, nbytes: int
) -> None:
    run = session.submit(workflow(tmp_path, nbytes=nbytes), planner=planner)
    with pytest.raises(TaskError, match="not yet") as caught:
        run.result(PATIENCE)
    assert f"compute(resume={run.id!r})" in "".join(caught.value.__notes__)
    assert executed(tmp_path) == 12
    (tmp_path / "mended").touch()
    resumed = workflow(tmp_path, nbytes=nbytes)
    assert session.compute(resumed, resume=run.id) == [6 * nbytes]
    assert executed(tmp_path) == 12
    assert not [key for key in _keys(session) if run.id.encode() in key]


def test_flexible_workers_resume_too(session: Session, tmp_path: Path) -> None:
    run = session.submit(workflow(tmp_path), planner="wukong")
    with pytest.raises(TaskError, match="not yet"):
        run.result(PATIENCE)
    (tmp_path / "mended").touch()
    assert session.compute(workflow(tmp_path), resume=run.id) == [60]
    assert executed(tmp_path) < 24


def test_what_a_cancelled_run_has_in_memory_is_not_repeated(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    run = session.submit(workflow(tmp_path), planner="uniform", workers=1)
    assert eventually((tmp_path / "waiting").exists)
    time.sleep(0.5)  # its worker listens by then
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result()
    (tmp_path / "wait").unlink()
    (tmp_path / "mended").touch()
    assert session.compute(workflow(tmp_path), resume=run.id) == [60]
    assert executed(tmp_path) == 12


def test_another_workflow_does_not_resume_a_run(session: Session, tmp_path: Path) -> None:
    run = session.submit(workflow(tmp_path))
    with pytest.raises(TaskError):
        run.result(PATIENCE)
    with pytest.raises(UsageError, match="isn't the one of run"):
        session.compute(workflow(tmp_path, count=5), resume=run.id)
    with pytest.raises(UnknownRun):
        session.compute(workflow(tmp_path), resume="0101-000000-000000")


def test_nothing_is_kept_if_that_is_not_wanted(session: Session, tmp_path: Path) -> None:
    run = session.submit(workflow(tmp_path), keep_seconds=0)
    with pytest.raises(TaskError):
        run.result(PATIENCE)
    assert not [key for key in _keys(session) if run.id.encode() in key]
    with pytest.raises(UnknownRun):
        session.compute(workflow(tmp_path), resume=run.id)


def _keys(session: Session) -> list[bytes]:
    found: Any = session.store._call([["KEYS", "shoal:*"]])[0]  # type: ignore[attr-defined]
    return [bytes(key) for key in found]


@pytest.fixture
def server() -> Iterator[str]:
    """A store that outlives its clients."""
    server = EmbeddedServer()
    yield server.url
    server.close()


CLIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_resume import workflow
from shoal import Session

with Session(store=sys.argv[2], folder=sys.argv[3], workers=2, planner="uniform") as session:
    session.compute(workflow(Path(sys.argv[4])))
"""


def test_a_run_whose_client_was_killed_is_resumed_by_another_process(
    server: str, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    data = tmp_path / "data"
    here = str(Path(__file__).parent)
    tests = str(Path(__file__).parents[1])
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, here, server, str(data), str(tmp_path)],
        env=dict(os.environ) | {"PYTHONPATH": tests},
    )
    with client:
        try:
            assert eventually((tmp_path / "waiting").exists)
        finally:
            client.send_signal(signal.SIGKILL)
    (tmp_path / "wait").unlink()
    (tmp_path / "mended").touch()
    (kept,) = (data / "unfinished").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    before = executed(tmp_path)
    with Session(store=server, folder=str(data), workers=2) as session:
        assert session.resume(kept.name).result(PATIENCE) == 60
    assert before == 12
    assert executed(tmp_path) <= 24
    assert not list((data / "unfinished").iterdir())
