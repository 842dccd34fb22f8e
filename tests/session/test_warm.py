"""Sandboxes that are made ready before a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from platform_examples import gateway
from shoal import Session, task
from shoal.cli.main import main
from shoal.client.backends import WORKER_ENTRY
from shoal.engine import default_engine
from shoal.errors import SettingsError, UsageError
from shoal.platform.server import GatewayServer

pytestmark = pytest.mark.real

square = task(abs, name="square")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with gateway(tmp_path, entry=WORKER_ENTRY) as local:
        server = GatewayServer(local, "token")
        yield server.url
        server.close()


def starts(session: Session, workers: int = 2) -> list[str]:
    """How the workers of a run start."""
    run = session.submit(*[square(-n) for n in range(workers)], planner="spread", workers=workers)
    run.result()
    return [span.kind for span in run.timeline.of_kind("cold start", "warm start")]


def test_workers_of_a_warmed_session_start_warm() -> None:
    with Session(progress=False) as session:
        assert session.warm(2) == 2
        assert starts(session) == ["warm start"] * 2


def test_the_embedded_gateway_makes_room_for_those_asked_for() -> None:
    with Session(progress=False) as session:
        assert session.warm(40, memory_mb=64) == 40


def test_as_many_are_warmed_as_there_is_room_for() -> None:
    with Session(progress=False, sandboxes=1) as session:
        assert session.warm(3) == 1


def test_workers_of_another_size_still_start_cold() -> None:
    with Session(progress=False) as session:
        session.warm(2, memory_mb=512)
        assert starts(session) == ["cold start"] * 2


def test_a_gateway_elsewhere_is_warmed_and_previews_know_it(url: str) -> None:
    with Session(platform=url, token="token", progress=False) as session:
        assert session.warm(2) == 2
        preview = session.plan(square(-1), planner="uniform")
        assert [span.kind for span in preview.timeline.of_kind("cold start", "warm start")] == [
            "warm start"
        ]
        assert starts(session) == ["warm start"] * 2


def test_calls_without_a_session_share_what_is_warmed() -> None:
    try:
        assert shoal.warm(1, progress=False) == 1
    finally:
        default_engine.close()


def test_what_cannot_be_warmed_is_an_error() -> None:
    with Session(progress=False, idle_seconds=0) as session:
        with pytest.raises(UsageError, match="idle_seconds=0"):
            session.warm(1)
        with pytest.raises(SettingsError, match="workers"):
            session.warm(0)
    with pytest.raises(UsageError, match="'deadline'"):
        shoal.warm(1, deadline=5)


def test_the_command_says_that_it_cannot_warm_sandboxes_of_sessions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["warm", "4", "--set", "platform=http://127.0.0.1:1"]) == 2
    assert "shoal.warm()" in capsys.readouterr().err
