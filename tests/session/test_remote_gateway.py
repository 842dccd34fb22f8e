"""A session on a gateway that it reaches over HTTP, as one on another machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platform_examples import gateway
from shoal import Session, ShoalExecutor, Task
from shoal.client.backends import WORKER_ENTRY
from shoal.platform.base import LogLine
from shoal.platform.gateway import LocalGateway
from shoal.platform.invocation import RunContext, Start
from shoal.platform.server import GatewayServer
from shoal.types import Resources, RunId

pytestmark = pytest.mark.real


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalGateway]:
    with gateway(tmp_path, entry=WORKER_ENTRY) as local:
        yield local


@pytest.fixture
def server(local: LocalGateway) -> Iterator[GatewayServer]:
    server = GatewayServer(local, "token")
    yield server
    server.close()


def starts(session: Session) -> list[str]:
    """How the next run's workers are predicted to start."""
    timeline = session.plan(Task(abs)(-1), planner="uniform").timeline
    return [span.kind for span in timeline.of_kind("cold start", "warm start")]


def test_warm_starts_are_predicted_after_the_first_run(
    server: GatewayServer, tmp_path: Path
) -> None:
    folder = str(tmp_path / "client")
    for _ in range(2):  # the second session has sandboxes of its own, whatever history says
        with Session(platform=server.url, token="token", folder=folder, workers=2) as session:
            assert starts(session) == ["cold start"]
            for _ in range(2):
                assert session.compute(Task(abs)(-1), planner="uniform") == [1]
                assert starts(session) == ["warm start"]


def test_a_run_has_a_worker_for_each_core_of_the_gateways_machine(
    local: LocalGateway, server: GatewayServer, tmp_path: Path
) -> None:
    local.cpus = 3.0
    with Session(platform=server.url, token="token", folder=str(tmp_path / "client")) as session:
        assert session.plan(Task(abs)(-1)).conditions.workers == 3
        assert session.plan(Task(abs)(-1), workers=2).conditions.workers == 2
        with ShoalExecutor(session=session) as executor:
            assert executor.max_workers == 3


class Unknowing:
    """A platform that can start and stop workers, and knows nothing about them."""

    memory_mb = cpus = default_workers = capacity = idle_seconds = inline_nbytes = None
    prices = None
    memory_steps = ()
    queue_seconds = 1.0
    function_seconds = None

    def __init__(self, local: LocalGateway) -> None:
        self._local = local

    def probed(self, nonce: str) -> str | None:
        return None

    def invoke(self, context: RunContext, starts: list[Start]) -> None:
        self._local.invoke(context, starts)

    def fan_out(self, context: RunContext, starts: list[Start]) -> None:
        self._local.fan_out(context, starts)

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        return 0

    def cancel(self, run: RunId) -> None:
        self._local.cancel(run)

    def running(self, run: RunId) -> None:
        return None

    active = running

    def pool(self, session: str) -> None:
        return None

    def logs(self, run: RunId) -> list[LogLine]:
        return []

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("server")
def test_a_platform_that_knows_nothing_runs_everything(local: LocalGateway, tmp_path: Path) -> None:
    platform: Any = Unknowing(local)
    with Session(platform=platform, folder=str(tmp_path / "client")) as session:
        halves = [Task(lambda data, n=n: data[n:])(bytes(16 << 20)) for n in (0, 1)]
        joined = Task(lambda *parts: sum(map(len, parts)))(*halves)
        for planner in ("uniform", "wukong", "auto"):
            assert session.compute(joined, planner=planner) == [(32 << 20) - 1]
        assert session.plan(joined).timeline.of_kind("warm start")
