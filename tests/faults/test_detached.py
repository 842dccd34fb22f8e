"""A detached run continues without a client, whatever happens to its workers and its gateway."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from observing import eventually, outside
from shoal import Session, Task
from shoal.cli.main import main
from shoal.platform.sandbox_env import hidden_folder
from shoal.storage.embedded import EmbeddedServer
from shoal.workflow import Output
from standing_gateway import StandingGateway

pytestmark = pytest.mark.real

LEASE = 1.0


@pytest.fixture
def server() -> Iterator[str]:
    """A store that outlives its clients."""
    server = EmbeddedServer()
    yield server.url
    server.close()


def workflow(folder: Path) -> Output[int]:
    """Build a chain and a fan-in; each task records its process id, and the second waits."""

    def first() -> int:
        (folder / f"first.{time.time_ns()}").touch()
        return 1

    def second(number: int) -> int:
        (folder / "unfinished").write_text(str(os.getpid()))
        (folder / "unfinished").rename(folder / f"second.{time.time_ns()}")
        while not (folder / "go").exists():
            time.sleep(0.01)
        return number + 1

    def last(*numbers: int) -> int:
        (folder / "last").touch()
        return sum(numbers)

    made = Task(first)()
    return Task(last)(Task(second)(made), made)


@contextmanager
def submitted(server: str, gateway: StandingGateway, folder: Path) -> Iterator[str]:
    """A detached run without a client, whose second task is running; it has ended afterwards."""
    given = {"store": server, "platform": gateway.url, "folder": str(folder / "d")}
    with Session(**given, workers=2) as session:
        run = session.submit(workflow(folder), detach=True, lease=LEASE, planner="uniform")
    assert eventually(lambda: [*folder.glob("second.*")])
    yield run.id
    assert eventually((folder / "last").exists)


def attached(run: str, server: str, gateway: StandingGateway, folder: Path) -> int:
    """Return the exit code of `shoal attach`."""
    settings = {"store": server, "platform": gateway.url, "folder": folder / "d"}
    given = [f"{name}={value}" for name, value in settings.items()]
    return main(["attach", run, *[part for each in given for part in ("--set", each)]])


def test_the_gateway_restarts_a_lost_worker_without_a_client(
    server: str, gateway: StandingGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with submitted(server, gateway, tmp_path) as run:
        (began,) = tmp_path.glob("second.*")
        os.kill(outside(int(began.read_text())), signal.SIGKILL)
        assert eventually(lambda: len([*tmp_path.glob("second.*")]) == 2)
        (tmp_path / "go").touch()
    assert attached(run, server, gateway, tmp_path) == 0
    assert capsys.readouterr().out == "3\n"


@pytest.mark.parametrize("times", [1, 2])
def test_a_restarted_gateway_resumes_its_detached_runs(
    server: str,
    gateway: StandingGateway,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    times: int,
) -> None:
    """1. Gateway and workers are killed. 2. The gateway restarts. 3. The run ends.
    4. A client attaches.

    The gateway and the workers that it starts have a new token.
    """
    with submitted(server, gateway, tmp_path) as run:
        for time_ in range(times):
            gateway.kill()
            gateway.start()
            assert eventually(lambda n=time_: len([*tmp_path.glob("second.*")]) == n + 2)  # type: ignore[misc]
        (tmp_path / "go").touch()
    assert attached(run, server, gateway, tmp_path) == 0
    assert capsys.readouterr().out == "3\n"
    kept = hidden_folder() / "runs" / str(gateway.port)
    assert eventually(lambda: not [*kept.iterdir()])
