"""Invocations for tests of platforms, and the notes of their workers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.platform.gateway import LocalGateway
from shoal.platform.http import HttpPlatform
from shoal.platform.invocation import (
    Invocation,
    StartRequest,
    WarmUpRequest,
    to_json,
)
from shoal.platform.logs import RunLogs
from shoal.platform.sandbox_env import SandboxEnv
from shoal.platform.server import GatewayServer
from shoal.platform.tokens import new_token
from shoal.testing.platform_examples import Caller, by_context, invocation

__all__ = ["Caller", "by_context", "invocation"]

ENTRY = "platform_entries:act"
SANDBOX_ENV = SandboxEnv(variables=("OF_TEST",))


def changed(job: Invocation, **facts: Any) -> Invocation:
    """Return an invocation with changed fields of its context or its start."""
    found: dict[str, Any] = {}
    for part in (job.start, job.context, job.context.code, job.context.settings):
        found |= {name: getattr(part, name) for name in part.__struct_fields__}
    del found["code"], found["settings"]
    return invocation(**(found | facts))


def start_request(*jobs: Invocation) -> dict[str, Any]:
    """Return the body of a request that starts workers of one run."""
    starts = tuple(job.start for job in jobs)
    found: dict[str, Any] = json.loads(
        to_json(StartRequest(context=jobs[0].context, starts=starts))
    )
    return found


def warm_up_request(job: Invocation, count: Any = 1) -> dict[str, Any]:
    """Return the body of a request that warms up sandboxes for workers like this one."""
    start = job.start
    request = WarmUpRequest(
        context=job.context, memory_mb=start.memory_mb, cpus=start.cpus, count=count
    )
    found: dict[str, Any] = json.loads(to_json(request))
    return found


@contextlib.contextmanager
def gateway(
    folder: Path,
    *,
    capacity: int = 4,
    idle_seconds: float = 60.0,
    entry: str = ENTRY,
    sandbox_env: SandboxEnv = SANDBOX_ENV,
    latency: float = 0.0,
) -> Iterator[LocalGateway]:
    """Run a gateway until the end of the block."""
    made = LocalGateway(
        entry,
        RunLogs(folder / "logs"),
        capacity=capacity,
        idle_seconds=idle_seconds,
        sandbox_env=sandbox_env,
        latency=latency,
    )
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def served(gateway: LocalGateway) -> Iterator[HttpPlatform]:
    """Serve a gateway over HTTP and yield its client."""
    token = new_token()
    server = GatewayServer(gateway, token)
    platform = HttpPlatform(server.url, token)
    try:
        yield platform
    finally:
        platform.close()
        server.close()
