"""Calls of a function are watched: a failed one loses its workers, a waiting one keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from observing import eventually
from shoal.platform.calls import Calls
from shoal.platform.engine import Ended, EngineFacts, JobState
from shoal.platform.invocation import Invocation, RunContext, Start, UserCode
from shoal.types import Loss, LossReason, Resources, RunId, WorkerId

RUN = RunId("run-1")
CONTEXT = RunContext(run=RUN, key=b"k", store="redis://store", code=UserCode(session="s"))
PAIR = tuple(Start.first(WorkerId(name), Resources(512), 0.0, part=b"p") for name in ("w0", "w1"))


class FakeEngine:
    """Calls nothing; a test says how its calls are."""

    def __init__(self) -> None:
        self.facts = EngineFacts(stays=False, watches=True)
        self.known: dict[str, JobState] = {}
        self.killed: list[str] = []

    def start(self, event: bytes, resources: Resources) -> str:
        raise AssertionError

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        return {handle: self.known[handle] for handle in handles if handle in self.known}

    def kill(self, handle: str) -> None:
        self.killed.append(handle)

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def lost() -> list[tuple[Invocation, Loss]]:
    return []


@pytest.fixture
def calls(engine: FakeEngine, lost: list[tuple[Invocation, Loss]]) -> Iterator[Calls]:
    calls = Calls(engine, lambda invocation, loss: lost.append((invocation, loss)))
    yield calls
    calls.close()


def add(calls: Calls, engine: FakeEngine, handle: str, state: JobState) -> None:
    engine.known[handle] = state
    calls.add(handle, CONTEXT, PAIR)


def test_a_dropped_call_loses_the_worker_that_it_ran(
    calls: Calls, engine: FakeEngine, lost: list[tuple[Invocation, Loss]]
) -> None:
    add(calls, engine, "1", Ended(LossReason.DIED, None, "the connection dropped"))
    assert eventually(lambda: lost)
    ((invocation, loss),) = lost
    assert (invocation.worker, invocation.start.part) == ("w0", b"p")
    assert (loss.reason, loss.code, loss.epoch) == (LossReason.DIED, None, 1)
    assert not calls.of(RUN)


def test_a_refused_call_loses_all_its_workers(
    calls: Calls, engine: FakeEngine, lost: list[tuple[Invocation, Loss]]
) -> None:
    add(calls, engine, "1", Ended(LossReason.ERROR, 1, "another deployment"))
    assert eventually(lambda: len(lost) == 2)
    assert {loss.detail for _, loss in lost} == {"another deployment"}


def test_a_call_that_nothing_is_known_of_is_done(
    calls: Calls, engine: FakeEngine, lost: list[tuple[Invocation, Loss]]
) -> None:
    add(calls, engine, "1", "running")
    assert calls.of(RUN) == 1
    del engine.known["1"]
    assert eventually(lambda: not calls.of(RUN))
    assert not lost


def test_workers_are_alive_while_their_call_waits_and_for_a_while_after_it_was_sent(
    calls: Calls, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(calls, engine, "1", "waiting")
    assert calls.alive() == {RUN: [("w0", 1), ("w1", 1)]}
    engine.known["1"] = "running"
    assert calls.alive()
    monkeypatch.setattr("shoal.platform.calls._COMING_SECONDS", 0.0)
    assert eventually(lambda: not calls.alive())
    assert calls.of(RUN) == 1


def test_calls_that_were_sent_are_killed_only_on_demand(calls: Calls, engine: FakeEngine) -> None:
    add(calls, engine, "1", "running")
    add(calls, engine, "2", "waiting")
    calls.kill(RUN, sent=False)
    assert engine.killed == ["2"]
    calls.kill(RUN, sent=True)
    assert engine.killed == ["2", "1"]
    assert not calls.of(RUN)


def test_calls_that_cannot_be_sent_are_withdrawn(calls: Calls, engine: FakeEngine) -> None:
    add(calls, engine, "1", "running")
    add(calls, engine, "2", "waiting")
    assert calls.withdraw_unsent() == [(CONTEXT, PAIR)]
    assert engine.killed == ["2"]
    assert calls.of(RUN) == 1
    engine.known["2"] = "running"
    assert calls.withdraw_unsent() == []
