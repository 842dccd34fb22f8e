"""Invocations for tests of platforms, and what became of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from observing import eventually
from platform_entries import read_notes
from shoal.platform.base import Invocation, Platform
from shoal.platform.gateway import LocalGateway
from shoal.platform.housing import Housing
from shoal.platform.http import HttpPlatform
from shoal.platform.logs import RunLogs
from shoal.platform.server import GatewayServer
from shoal.platform.tokens import new_token
from shoal.types import RunId, WorkerId

ENTRY = "platform_entries:act"
HOUSING = Housing(variables=("OF_TEST",))


@dataclass
class Caller:
    """Somebody who invokes workers on a platform, and reads what they noted."""

    platform: Platform
    folder: Path

    def job(self, worker: str = "w0", part: str = "pass", **facts: Any) -> Invocation:
        """An invocation whose worker does what the part says."""
        given: dict[str, Any] = {
            "run": RunId("run-1"),
            "epoch": 1,
            "memory_mb": 256,
            "cpus": 1.0,
            "store": "unix:///nowhere",
            "key": "00",
            "session": "s1",
            "folder": str(self.folder),
        }
        return Invocation(worker=WorkerId(worker), part=part, **(given | facts))

    def invoke(self, *jobs: Invocation) -> None:
        """Have workers started."""
        self.platform.invoke(jobs)

    def carry_out(self, *jobs: Invocation) -> list[dict[str, Any]]:
        """Have workers started and wait until nothing of their runs is at work; all notes."""
        self.invoke(*jobs)
        self.await_quiet(*{job.run for job in jobs})
        return self.notes()

    def await_quiet(self, *runs: RunId) -> None:
        """Wait until nothing of these runs is at work."""
        for run in runs or (RunId("run-1"),):
            assert eventually(lambda run=run: not self.platform.active(run))  # type: ignore[misc]

    def notes(self, event: str = "") -> list[dict[str, Any]]:
        """What workers have noted so far."""
        return read_notes(self.folder, event)

    def await_notes(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many workers have noted an event."""
        assert eventually(lambda: len(self.notes(event)) >= count), self.notes()
        return self.notes(event)

    def let_go(self, name: str = "go") -> None:
        """Let workers whose part is `await NAME` end."""
        (self.folder / name).touch()


@contextlib.contextmanager
def gateway(
    folder: Path,
    *,
    capacity: int = 4,
    idle_seconds: float = 60.0,
    entry: str = ENTRY,
    housing: Housing = HOUSING,
    latency: float = 0.0,
) -> Iterator[LocalGateway]:
    """A gateway that ends with the test."""
    made = LocalGateway(
        entry,
        RunLogs(folder / "logs"),
        capacity=capacity,
        idle_seconds=idle_seconds,
        housing=housing,
        latency=latency,
    )
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def served(gateway: LocalGateway) -> Iterator[HttpPlatform]:
    """A gateway as it is seen over HTTP."""
    token = new_token()
    server = GatewayServer(gateway, token)
    platform = HttpPlatform(server.url, token)
    try:
        yield platform
    finally:
        platform.close()
        server.close()
