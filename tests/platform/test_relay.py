"""A client makes the calls that functions leave on the board."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from observing import eventually
from shoal.platform.events import Deployment
from shoal.platform.invocation import RunContext, Start, UserCode
from shoal.platform.job import board_of, pushed, waiting_starts
from shoal.platform.relay import Relay
from shoal.storage.embedded import EmbeddedServer
from shoal.types import Resources, RunId, WorkerId

pytestmark = pytest.mark.real

CONTEXT = RunContext(run=RunId("run-1"), key=b"k", store="", code=UserCode(session="s"))
STARTS = [Start.first(WorkerId(name), Resources(512), 0.0) for name in ("w0", "w1")]


def test_starts_that_functions_push_are_called_for_and_others_are_left() -> None:
    server = EmbeddedServer()
    deployment = Deployment(b"d" * 32, server.url)
    of_functions = board_of(deployment, stays=False)
    of_jobs = board_of(deployment, stays=True)
    sent: list[str] = []

    def send(context: RunContext, starts: Sequence[Start]) -> None:
        sent.extend(start.worker for start in starts)

    relay = Relay(board_of(deployment, stays=False), deployment, send)
    for board in (of_functions, of_jobs):
        board.push(pushed(CONTEXT, STARTS, deployment, "module:function"))
    assert eventually(lambda: sorted(sent) == ["w0", "w1"])
    assert waiting_starts(of_functions, deployment) == {}
    assert len(waiting_starts(of_jobs, deployment)["run-1"]) == 2
    relay.close()
    of_jobs._call([["FLUSHALL"]])
    for board in (of_functions, of_jobs):
        board.disconnect()
    server.close()
