"""A restarted gateway has a new token; runs and clients continue with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually
from shoal import Session, Task
from shoal.client.backends import gateway_access
from shoal.errors import GatewayUnavailable, TokenRefused
from shoal.platform.http import HttpPlatform
from shoal.storage.embedded import EmbeddedServer
from shoal.workflow import Output
from standing_gateway import StandingGateway

pytestmark = pytest.mark.real

LEASE = 0.5


@pytest.fixture
def settings(gateway: StandingGateway, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The settings of a session whose store outlives the gateway."""
    server = EmbeddedServer()
    yield {"store": server.url, "platform": gateway.url, "folder": str(tmp_path / "d")}
    server.close()


def workflow(folder: Path) -> Output[int]:
    """Build a task that creates a file and waits, and one after it."""

    def waiting(number: int) -> int:
        (folder / f"begun.{time.time_ns()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        return number

    return Task(abs)(Task(waiting)(-3))


def begun(folder: Path) -> int:
    """Return how often the first task has started."""
    return len([*folder.glob("begun.*")])


@pytest.mark.parametrize(
    ("killed", "away"),
    [(False, 0.0), (True, 8 * LEASE)],
    ids=["ended, and started at once", "killed, and away for more leases than a worker has starts"],
)
def test_a_run_survives_a_restart_of_its_gateway(
    gateway: StandingGateway, settings: dict[str, Any], tmp_path: Path, killed: bool, away: float
) -> None:
    with Session(**settings) as session:
        run = session.submit(workflow(tmp_path), lease=LEASE)
        assert eventually(lambda: begun(tmp_path) == 1)
        (gateway.kill if killed else gateway.end)()
        threading.Event().wait(away)
        gateway.start()
        assert eventually(lambda: begun(tmp_path) == 2)
        (tmp_path / "go").touch()
        assert run.result(TIMEOUT) == 3


def test_a_session_survives_a_restart_of_its_gateway(
    gateway: StandingGateway, settings: dict[str, Any]
) -> None:
    with Session(**settings) as session:
        assert session.compute(Task(abs)(-3)) == [3]
        gateway.kill()
        gateway.start()
        assert session.compute(Task(abs)(-3)) == [3]


def test_a_client_that_connects_while_a_gateway_starts_finds_its_token(
    gateway: StandingGateway,
) -> None:
    """The old token's file is still there; the port answers only after the new token is written."""
    for _ in range(2):
        gateway.kill()
        starting = threading.Thread(target=gateway.start)
        starting.start()
        assert eventually(lambda: reached(gateway.url))
        starting.join()


def reached(url: str) -> bool:
    """Return whether a session can be created; its token must never be rejected."""
    try:
        platform = HttpPlatform(*gateway_access(url, None))
        platform.status()
    except TokenRefused:
        raise
    except GatewayUnavailable:
        return False
    platform.close()
    return True


def test_a_run_with_a_configured_token_reports_its_rejection(
    gateway: StandingGateway, settings: dict[str, Any], tmp_path: Path
) -> None:
    token = gateway_access(gateway.url, None)[1].text
    with Session(**settings, token=token) as session:
        run = session.submit(workflow(tmp_path), lease=LEASE)
        assert eventually(lambda: begun(tmp_path) == 1)
        gateway.kill()
        gateway.start()
        with pytest.raises(TokenRefused, match="creates a new token each time it starts"):
            run.result(TIMEOUT)
