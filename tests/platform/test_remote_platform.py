"""Workers on an engine: what its functions are called with, and what plans learn of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from observing import eventually
from shoal.platform.engine import Ended, EngineFacts, JobState
from shoal.platform.events import Deployment, Offer, Work, opened
from shoal.platform.invocation import RunContext, RunSettings, Start, UserCode, kind_of
from shoal.platform.job import board_of, pushed
from shoal.platform.remote import RemotePlatform
from shoal.storage.base import Opening
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.job_board import JobRecord
from shoal.storage.keys import CLIENT
from shoal.storage.letters import WorkerLost
from shoal.storage.redis import RedisStore
from shoal.types import LossReason, Resources, RunId, WorkerId

pytestmark = pytest.mark.real

ENTRY = "module:function"
CONTEXT = RunContext(
    run=RunId("run-1"), key=b"key", store="redis://store", code=UserCode(session="session")
)


class Recording:
    """An engine that starts nothing."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.events: list[bytes] = []
        self.known: dict[str, JobState] = {}
        self.killed: list[str] = []

    def start(self, event: bytes, resources: Resources) -> str:
        self.events.append(event)
        handle = str(len(self.events))
        if self.facts.watches:
            self.known[handle] = "waiting"
        return handle

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        return {handle: self.known[handle] for handle in handles if handle in self.known}

    def kill(self, handle: str) -> None:
        self.killed.append(handle)
        if handle in self.known:
            self.known[handle] = Ended()

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
        with closing(RemotePlatform(engine, deployment, ENTRY)) as platform:
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
        closing(RemotePlatform(engine, Deployment(b"k" * 32, server.url), ENTRY)) as platform,
    ):
        assert platform.prices == known
        assert platform.memory_steps == (512, 2048)


STAYING = EngineFacts(stays=True, watches=True, memory_mb=4096)
SIZE = Resources(256, 1.0)
STARTS = [Start.first(WorkerId(f"w{number}"), SIZE, 0.0) for number in range(3)]


class Scene:
    """A platform whose jobs are what a test says."""

    def __init__(self, facts: EngineFacts) -> None:
        self._server = EmbeddedServer()
        self.engine = Recording(facts)
        self.deployment = Deployment(b"k" * 32, self._server.url)
        self.platform = RemotePlatform(self.engine, self.deployment, ENTRY)
        self.board = board_of(self.deployment, stays=facts.stays)
        self.store = RedisStore(self._server.url)
        self.context = replace(CONTEXT, store=self._server.url)

    def open(self, restarts: int = 0) -> None:
        """Begin the run in the store."""
        first = [start.worker for start in STARTS]
        self.store.open(CONTEXT.run, Opening(first, kind=kind_of(SIZE), restarts=restarts))

    def record(self, worker: str, age: float = 0.0, **fields: Any) -> JobRecord:
        """What a job wrote so many seconds ago about a worker."""
        at, kind = self.board.now() - age, kind_of(SIZE)
        return JobRecord(kind=kind, at=at, run=CONTEXT.run, worker=worker, epoch=1, **fields)

    def told(self) -> list[Any]:
        """What the run's client has been told."""
        return [each.letter for each in self.store.receive(CONTEXT.run, CLIENT, "0", 0.05)]

    def close(self) -> None:
        """Leave nothing."""
        self.platform.close()
        self.board._call([["FLUSHALL"]])
        for client in (self.board, self.store):
            client.disconnect()
        self._server.close()


@pytest.fixture
def staying() -> Iterator[Scene]:
    with closing(Scene(STAYING)) as scene:
        yield scene


def test_a_worker_that_waits_for_a_job_makes_its_run_active(staying: Scene) -> None:
    assert not staying.platform.active(CONTEXT.run)
    staying.platform.invoke(CONTEXT, STARTS)
    assert staying.platform.active(CONTEXT.run)
    assert not staying.platform.active(RunId("run-2"))


def test_cancelling_leaves_neither_waiting_starts_nor_jobs_in_the_queue(staying: Scene) -> None:
    staying.platform.invoke(CONTEXT, STARTS)
    assert eventually(lambda: len(staying.engine.events) == 3)
    staying.platform.invoke(replace(CONTEXT, run=RunId("run-2")), STARTS[:1])
    assert eventually(lambda: len(staying.engine.events) == 4)
    staying.platform.cancel(CONTEXT.run)
    assert not staying.platform.active(CONTEXT.run)
    assert staying.platform.active(RunId("run-2"))
    assert len(staying.engine.killed) == 3


def test_cancelling_takes_starts_from_the_board_that_others_left_there() -> None:
    with closing(Scene(EngineFacts(stays=False))) as scene:
        scene.board.push(pushed(CONTEXT, STARTS, scene.deployment, ENTRY))
        assert scene.platform.active(CONTEXT.run)
        scene.platform.cancel(CONTEXT.run)
        assert not scene.board.waiting()


def test_a_stale_record_makes_no_run_active(staying: Scene) -> None:
    staying.board.report("dead", staying.record("w0", age=11))
    assert not staying.platform.active(CONTEXT.run)
    assert not staying.platform.running(CONTEXT.run)


def test_a_cancelled_run_that_is_resumed_is_cancelled_no_more(staying: Scene) -> None:
    staying.platform.invoke(CONTEXT, STARTS)
    staying.platform.cancel(CONTEXT.run)
    assert staying.board.cancelled() == {CONTEXT.run}
    staying.platform.invoke(CONTEXT, STARTS)
    assert not staying.board.cancelled()


def test_starts_of_a_run_that_somebody_attaches_to_get_jobs(staying: Scene) -> None:
    staying.board.push(pushed(staying.context, STARTS, staying.deployment, ENTRY))
    staying.platform.supervise(staying.context)
    assert eventually(lambda: len(staying.engine.events) == 3)


def test_a_lost_job_s_worker_that_ran_out_of_memory_keeps_its_cpus(staying: Scene) -> None:
    cpus = Resources(256, 3.5)
    staying.open(restarts=1)
    staying.platform.invoke(staying.context, [Start.first(WorkerId("w0"), cpus, 0.0)])
    assert eventually(lambda: bool(staying.engine.events))
    (event,) = staying.board.waiting()[kind_of(cpus)]
    staying.board.withdraw(kind_of(cpus), [event])
    offer = opened(staying.engine.events[0], staying.deployment)
    assert isinstance(offer, Offer)
    staying.board.report(offer.job, replace(staying.record("w0"), kind=kind_of(cpus)))
    staying.engine.known["1"] = Ended(LossReason.OUT_OF_MEMORY)
    assert eventually(lambda: kind_of(Resources(512, 3.5)) in staying.board.waiting())


@pytest.mark.parametrize("watches", [True, False])
def test_the_loss_of_a_function_names_the_task_that_ran(watches: bool) -> None:
    """Its environment has died; if nobody says so, its job has been silent for long."""
    with closing(Scene(EngineFacts(stays=False, watches=watches))) as scene:
        scene.open()
        context = replace(scene.context, settings=RunSettings(lease=1.0))
        scene.platform.invoke(context, STARTS[:1])
        scene.board.report("a", scene.record("w0", age=0 if watches else 11, running=(7,)))
        scene.engine.known |= {"1": Ended(LossReason.DIED)} if watches else {}
        assert eventually(lambda: bool(scene.told()))
        (letter,) = scene.told()
        assert isinstance(letter, WorkerLost)
        assert letter.loss.running == (7,)
        assert not scene.board.records().silent


def test_calls_that_cannot_be_sent_before_the_client_closes_are_left_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.platform.remote._SEND_SECONDS", 0.2)
    scene = Scene(EngineFacts(stays=False, watches=True))
    scene.platform.invoke(CONTEXT, STARTS)
    scene.engine.known["1"] = "running"
    scene.platform.close()
    assert sum(map(len, scene.board.waiting().values())) == 2
    scene.close()
