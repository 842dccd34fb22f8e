"""A detached run on an engine continues without its client, and a client that attaches helps it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from observing import TIMEOUT, eventually, exists, processes_mentioning
from shoal import Session
from shoal.storage.embedded import EmbeddedServer

pytestmark = pytest.mark.real

LONG = 600.0
"""A lease that no test waits for."""
_SUBMIT = """
import os, sys, time
from pathlib import Path
from shoal import Session, Task

store, folder, lease = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])

def first():
    (folder / "first").touch()
    return 1

def second(number):
    (folder / f"second.{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return number + 1

platform = "process://?idle_seconds=1"
with Session(platform=platform, store=store, folder=str(folder / "d"), workers=2) as session:
    run = session.submit(Task(second)(Task(first)()), detach=True, lease=lease)
(folder / "run").write_text(run.id)
"""


@pytest.fixture
def server() -> Iterator[str]:
    """A store that outlives its clients."""
    server = EmbeddedServer()
    yield server.url
    server.close()


def submitted(server: str, folder: Path) -> str:
    """A detached run whose client has ended right after it was submitted."""
    command = [sys.executable, "-c", _SUBMIT, server, str(folder), str(LONG)]
    subprocess.run(command, check=True)
    return (folder / "run").read_text()


def began(folder: Path) -> int:
    """How often the second task has begun."""
    return len([*folder.glob("second.*")])


def jobs_of(folder: Path) -> list[int]:
    """The processes of this test's jobs."""
    found = processes_mentioning(str(folder))
    return [process for process, command in found.items() if "shoal.platform.job" in command]


@contextmanager
def session_with(server: str, folder: Path) -> Iterator[Session]:
    given = {"platform": "process://?idle_seconds=1", "store": server, "folder": str(folder / "d")}
    with Session(**given, workers=2) as session:
        yield session


def test_a_client_that_closes_at_once_has_started_jobs(server: str, tmp_path: Path) -> None:
    submitted(server, tmp_path)
    assert eventually(lambda: began(tmp_path) == 1)
    (tmp_path / "go").touch()
    assert eventually(lambda: not jobs_of(tmp_path))


def test_what_reads_the_output_of_a_client_does_not_wait_for_its_jobs(
    server: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _SUBMIT, server, str(tmp_path), str(LONG)]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT)
    (tmp_path / "go").touch()  # its job waits for that
    assert eventually(lambda: not jobs_of(tmp_path))


def test_a_client_that_attaches_replaces_a_job_that_died(server: str, tmp_path: Path) -> None:
    """1. The client ends. 2. The job is killed, and nobody sees that. 3. Another client attaches.

    The lease is long: only who looks at the jobs can find that out so soon.
    """
    run = submitted(server, tmp_path)
    assert eventually(lambda: began(tmp_path) == 1)
    for job in jobs_of(tmp_path):
        os.killpg(job, signal.SIGKILL)
    (second,) = tmp_path.glob("second.*")
    assert eventually(lambda: not exists(int(second.suffix[1:])))  # it ends with its job
    (tmp_path / "go").touch()
    with session_with(server, tmp_path) as session:
        assert session.attach(run).result() == 2
    assert began(tmp_path) == 2
    assert eventually(lambda: not jobs_of(tmp_path))
