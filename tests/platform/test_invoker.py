"""The fan-out invoker: names in, invocations out, as a tree; and its door."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from observing import PATIENCE
from shoal.errors import GatewayRefused, GatewayUnavailable
from shoal.platform.base import Invocation
from shoal.platform.http import HttpPlatform
from shoal.platform.invoker import Invoker
from shoal.platform.server import GatewayServer
from shoal.platform.tokens import Token, run_token
from shoal.types import RunId, WorkerId

TOKEN = "secret"
LIKE = Invocation(RunId("r"), WorkerId("w"), 1, 1769, 1.0, "redis://x", "aa", "s", part=None)


class Recorded:
    """A platform that notes what it is asked to start."""

    def __init__(self, expected: int) -> None:
        self.batches: list[list[WorkerId]] = []
        self._expected = expected
        self._changed = threading.Condition()

    def invoke(self, invocations: Sequence[Invocation]) -> None:
        with self._changed:
            self.batches.append([each.worker for each in invocations])
            self._changed.notify_all()

    def all(self) -> list[WorkerId]:
        """Every worker, once enough have been started."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(map(len, self.batches)) >= self._expected, PATIENCE
            )
            return sorted(worker for batch in self.batches for worker in batch)


@pytest.mark.parametrize("count", [1, 50, 51, 3_000])
def test_every_worker_is_invoked_once_and_never_too_many_at_a_time(count: int) -> None:
    platform = Recorded(count)
    invoker = Invoker(platform.invoke)
    workers = [WorkerId(f"w{number}") for number in range(count)]
    invoker.fan_out(LIKE, workers)
    assert platform.all() == sorted(workers)
    assert max(map(len, platform.batches)) <= 50
    invoker.close()


def test_a_platform_that_refuses_a_share_does_not_end_the_others() -> None:
    platform = Recorded(50)
    refused = threading.Event()

    def invoke(invocations: Sequence[Invocation]) -> None:
        if invocations[0].worker == "w0":
            refused.set()
            raise GatewayUnavailable("away")
        platform.invoke(invocations)

    invoker = Invoker(invoke)
    invoker.fan_out(LIKE, [WorkerId(f"w{number}") for number in range(100)])
    assert len(platform.all()) == 50
    assert refused.wait(PATIENCE)
    invoker.close()


def test_it_can_stand_alone_and_opens_for_a_runs_token() -> None:
    platform = Recorded(2)
    invoker = Invoker(platform.invoke)
    server = GatewayServer(None, TOKEN, invoker=invoker)
    workers = [WorkerId("v"), WorkerId("w")]
    try:
        own = HttpPlatform("http://127.0.0.1:9", run_token(TOKEN, "r", "s"), invoker=server.url)
        own.fan_out(LIKE, workers)
        assert platform.all() == workers
        other = HttpPlatform(server.url, run_token(TOKEN, "another", "s"))
        with pytest.raises(GatewayRefused, match="another run"):
            other.fan_out(LIKE, workers)
        with pytest.raises(GatewayUnavailable, match="token"):
            HttpPlatform(server.url, "wrong").fan_out(LIKE, workers)
        known = HttpPlatform(server.url, TOKEN)
        with pytest.raises(GatewayRefused, match="no POST /job"):
            known.invoke([LIKE])
        with pytest.raises(GatewayRefused, match="list of 1 to"):
            known.fan_out(LIKE, [])
        for platform_ in (own, other, known):
            platform_.close()
    finally:
        server.close()
        invoker.close()


def test_an_invoker_takes_the_tokens_of_a_gateway_that_was_started_again() -> None:
    """It isn't told: it reads the gateway's token again when it would turn somebody away."""
    now = ["old"]
    invoker = Invoker(lambda _: None)
    server = GatewayServer(None, Token("old", lambda: now[0]), invoker=invoker)
    own = HttpPlatform(server.url, run_token("new", LIKE.run, LIKE.session))
    with pytest.raises(GatewayUnavailable):
        own.fan_out(LIKE, [WorkerId("w1")])
    now[0] = "new"
    own.fan_out(LIKE, [WorkerId("w1")])
    own.close()
    server.close()
    invoker.close()
