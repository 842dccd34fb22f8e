"""A transfer that takes longer than a lease neither ends a run nor restarts a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dropping_proxy import DroppingProxy, at_speed
from shoal.farm.streams import Farm
from shoal.session import Session
from shoal.workflow import Task
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real

NBYTES = 1_600_000
SPEED = 500_000
LEASE = 1.0
"""A transfer takes longer than several leases."""


def _made(file: str, nbytes: int) -> bytes:
    with Path(file).open("a") as executed:
        executed.write("x")
    return bytes(nbytes)


def _length(content: bytes) -> int:
    return len(content)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store behind a slow link, without shared memory."""
    monkeypatch.setattr("shoal.client.shared_folders.SharedFolders.usable", False)
    monkeypatch.setattr("shoal.execution.restart_policy.STUCK_SECONDS", 0.0)
    monkeypatch.setattr("shoal.execution.restart_policy.STUCK_LEASES", 1)
    with (
        tcp_server() as port,
        contextlib.closing(DroppingProxy(port, at_speed(SPEED), narrow=True)) as proxy,
    ):
        yield url_of(proxy.port)


def test_runs_survive_slow_transfers_between_workers_and_to_the_client(
    slow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else sees the workers alive, so only they renew their leases."""
    monkeypatch.setattr(
        "shoal.platform.supervisor.GatewaySupervisor._check_leases", lambda self: None
    )
    file = str(tmp_path / "executed")
    with Session(store=slow, workers=2, planner="spread", history=False) as session:
        # Start sandboxes first, so that no worker is late.
        session.compute(*[Task(_length)(bytes(number)) for number in range(2)])
        made = Task(_made)(file, NBYTES)
        outputs = (made, Task(_length)(made), Task(_length)(made))
        assert session.compute(*outputs, lease=LEASE) == [bytes(NBYTES), NBYTES, NBYTES]
    assert Path(file).read_text() == "x"


def test_a_farm_survives_a_slow_input(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.client.farm_backend._LEASES", 2)
    with (
        Session(store=slow, workers=1, lease=LEASE, history=False) as session,
        Farm(_length, workers=1, autoscaler=None, session=session) as farm,
    ):
        assert list(farm.map([bytes(NBYTES)])) == [NBYTES]
