"""Workers on an engine: what its functions are called with, and what plans learn of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import pytest

from shoal.platform.engine import EngineFacts, JobState
from shoal.platform.events import Deployment, Work, opened
from shoal.platform.invocation import RunContext, Start, UserCode
from shoal.platform.remote import RemotePlatform
from shoal.storage.embedded import EmbeddedServer
from shoal.types import Resources, RunId, WorkerId

pytestmark = pytest.mark.real

CONTEXT = RunContext(
    run=RunId("run-1"), key=b"key", store="redis://store", code=UserCode(session="session")
)


class Recording:
    """An engine that starts nothing."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.events: list[bytes] = []

    def start(self, event: bytes, resources: Resources) -> str:
        self.events.append(event)
        return str(len(self.events))

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        return {}

    def kill(self, handle: str) -> None:
        pass

    def close(self) -> None:
        pass


def called_with(count: int, part: bytes | None, facts: EngineFacts) -> tuple[list[int], list[str]]:
    """The sizes of the events that start some workers, and the workers in their order."""
    engine = Recording(facts)
    starts = [
        Start(worker=WorkerId(f"w{number}"), epoch=1, memory_mb=256, cpus=1.0, part=part)
        for number in range(count)
    ]
    with closing(EmbeddedServer()) as server:
        deployment = Deployment(b"k" * 32, server.url)
        with closing(RemotePlatform(engine, deployment)) as platform:
            platform.send(CONTEXT, starts)
        works = [opened(event, deployment) for event in engine.events]
    workers = [s.worker for work in works if isinstance(work, Work) for s in work.starts]
    return [len(event) for event in engine.events], sorted(workers)


@pytest.mark.parametrize(("nests", "calls"), [(True, 15), (False, 100)])
def test_a_function_that_calls_itself_gets_many_starts_in_few_calls(
    nests: bool, calls: int
) -> None:
    events, workers = called_with(100, None, EngineFacts(stays=False, nests=nests))
    assert len(events) == calls
    assert workers == sorted(f"w{number}" for number in range(100))


def test_no_event_exceeds_what_the_engine_takes() -> None:
    facts = EngineFacts(stays=False, nests=True, payload_nbytes=100_000)
    events, workers = called_with(100, b"p" * 30_000, facts)
    assert max(events) <= 100_000
    assert workers == sorted(f"w{number}" for number in range(100))


@pytest.mark.parametrize(("prices", "known"), [("aws-lambda", "aws-lambda"), ("", "none")])
def test_plans_get_the_engine_s_prices_and_sizes(prices: str, known: str) -> None:
    engine = Recording(EngineFacts(stays=True, prices=prices, memory_steps=(512, 2048)))
    with (
        closing(EmbeddedServer()) as server,
        closing(RemotePlatform(engine, Deployment(b"k" * 32, server.url))) as platform,
    ):
        assert platform.prices == known
        assert platform.memory_steps == (512, 2048)
