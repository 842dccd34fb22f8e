"""Jobs are started as waiting workers need them, watched, and given up in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from observing import eventually
from shoal.errors import PlatformError
from shoal.platform.engine import Ended, EngineFacts, JobState
from shoal.platform.events import Deployment, Offer, Work, opened, sealed
from shoal.platform.invocation import RunContext, RunSettings, Start, UserCode, kind_of
from shoal.platform.job_starter import JobStarter
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.job_board import JobBoard, JobRecord
from shoal.types import Loss, LossReason, Resources, RunId, WorkerId

pytestmark = pytest.mark.real

RUN, SIZE = RunId("run-1"), Resources(512)
KIND = kind_of(SIZE)


class FakeEngine:
    """Starts nothing; a test says how its jobs are."""

    def __init__(self, *, watches: bool = True, capacity: int = 100) -> None:
        self.facts = EngineFacts(stays=True, watches=watches, capacity=capacity)
        self.offers: list[bytes] = []
        self.ended: dict[str, Ended] = {}
        self.killed: list[str] = []
        self.refusal: Exception | None = None
        self.trouble: Exception | None = None

    def start(self, event: bytes, resources: Resources) -> str:
        """Note the offer."""
        if self.refusal is not None:
            raise self.refusal
        self.offers.append(event)
        return str(len(self.offers) - 1)

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        """Tell what the test says."""
        if self.trouble is not None:
            raise self.trouble
        return {handle: self.ended.get(handle, "running") for handle in handles}

    def kill(self, handle: str) -> None:
        """Note it."""
        self.killed.append(handle)

    def close(self) -> None:
        """Do nothing."""


class Scene:
    """A starter, its engine and its board."""

    def __init__(self, url: str, engine: FakeEngine) -> None:
        self.engine = engine
        self.deployment = Deployment(b"k" * 32, url)
        self.board = JobBoard(url, self.deployment.id)
        self.lost: list[tuple[str, str, int, Loss]] = []
        waiting = JobBoard(url, self.deployment.id)
        self.starter = JobStarter(engine, self.deployment, waiting, self._lose)
        self.starter.wake()

    def _lose(self, run: RunId, worker: WorkerId, epoch: int, loss: Loss) -> None:
        self.lost.append((run, worker, epoch, loss))

    def push(self, workers: int, most: int = 0) -> None:
        """Have workers wait."""
        context = RunContext(
            run=RUN, key=b"r" * 32, store="", code=UserCode(session="s"),
            settings=RunSettings(workers=most),
        )  # fmt: skip
        starts = [Start.first(WorkerId(f"w{i}"), SIZE, 0.0) for i in range(workers)]
        works = [
            sealed(Work(context=context, starts=(start,)), self.deployment) for start in starts
        ]
        self.board.push({KIND: works})

    def names(self) -> list[str]:
        """The names of the jobs that were started."""
        offers = [opened(event, self.deployment) for event in self.engine.offers]
        return [offer.job for offer in offers if isinstance(offer, Offer)]

    def settled(self, jobs: int) -> bool:
        """Whether so many jobs were started, and no more a while later."""
        return eventually(lambda: len(self.engine.offers) >= jobs) and not eventually(
            lambda: len(self.engine.offers) > jobs, 0.7
        )

    def close(self) -> None:
        self.starter.close()
        self.board._call([["FLUSHALL"]])
        self.board.disconnect()


@pytest.fixture
def url() -> Iterator[str]:
    server = EmbeddedServer()
    yield server.url
    server.close()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def scene(url: str, engine: FakeEngine) -> Iterator[Scene]:
    scene = Scene(url, engine)
    yield scene
    scene.close()


def test_each_waiting_worker_gets_a_job(scene: Scene) -> None:
    scene.push(3)
    assert scene.settled(3)


def test_idle_jobs_are_not_joined_by_more(scene: Scene) -> None:
    scene.board.report("idle", JobRecord(kind=KIND, at=1.0))
    scene.board.report("other", JobRecord(kind="1024 1.0", at=1.0))
    scene.push(3)
    assert scene.settled(2)


def test_an_engine_that_is_away_for_a_while_is_asked_again(
    scene: Scene, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.trouble = PlatformError("nobody answers")
    scene.push(1)
    assert eventually(lambda: "nobody answers" in caplog.text)
    engine.trouble, engine.ended = None, {"0": Ended(LossReason.ERROR)}
    assert scene.settled(2)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_run_has_no_more_jobs_than_workers(scene: Scene) -> None:
    scene.board.report("busy", JobRecord(kind=KIND, at=1.0, run=RUN, worker="w9", epoch=1))
    scene.push(5, most=3)
    assert scene.settled(2)


@pytest.mark.parametrize("engine", [FakeEngine(capacity=2)])
def test_an_engine_has_no_more_jobs_than_it_has_room_for(scene: Scene) -> None:
    scene.push(5)
    assert scene.settled(2)


def test_a_worker_whose_job_ended_is_lost_with_what_the_engine_says(scene: Scene) -> None:
    scene.push(1)
    assert eventually(lambda: scene.engine.offers)
    assert scene.board.take(KIND, 1) is not None
    (name,) = scene.names()
    record = JobRecord(kind=KIND, at=1.0, run=RUN, worker="w0", epoch=4, running=(7,))
    scene.board.report(name, record)
    scene.engine.ended["0"] = Ended(LossReason.OUT_OF_MEMORY, 137, "OOMKilled")
    assert eventually(lambda: scene.lost)
    loss = Loss(LossReason.OUT_OF_MEMORY, (7,), 512, 4, 137, "OOMKilled")
    assert scene.lost == [(RUN, "w0", 4, loss)]
    assert name not in scene.board.jobs()


def test_a_job_that_ends_idle_loses_nobody(scene: Scene) -> None:
    scene.push(1)
    assert eventually(lambda: scene.engine.offers)
    assert scene.board.take(KIND, 1) is not None
    scene.board.report(scene.names()[0], JobRecord(kind=KIND, at=1.0))
    scene.engine.ended["0"] = Ended(code=0)
    assert eventually(lambda: not scene.board.jobs())
    assert not scene.lost


@pytest.mark.parametrize("engine", [FakeEngine(watches=False)])
def test_a_silent_job_of_an_engine_that_can_not_tell_is_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.platform.job_starter._SILENT_SECONDS", 0.5)
    scene.push(1)
    assert eventually(lambda: scene.engine.offers)
    assert scene.board.take(KIND, 1) is not None
    record = JobRecord(kind=KIND, at=1.0, run=RUN, worker="w0", epoch=1)
    scene.board.report(scene.names()[0], record)
    assert eventually(lambda: scene.lost)
    assert scene.lost[0][3].reason is LossReason.VANISHED


@pytest.mark.parametrize("how", ["ends", "refuses"])
def test_jobs_that_never_come_up_are_given_up_in_words(scene: Scene, how: str) -> None:
    engine = scene.engine
    if how == "ends":
        engine.ended = {str(n): Ended(code=1, detail="no module shoal") for n in range(100)}
    else:
        engine.refusal = OSError("no module shoal")
    scene.push(2)
    assert eventually(lambda: len(scene.lost) == 2)
    assert {loss.detail for *_, loss in scene.lost} == {
        "the engine's jobs end before they begin: no module shoal"}  # fmt: skip
    assert scene.board.waiting() == {}


def test_jobs_that_work_for_a_run_are_killed_on_demand(scene: Scene) -> None:
    scene.push(2)
    assert eventually(lambda: len(scene.engine.offers) == 2)
    first, second = scene.names()
    scene.board.report(first, JobRecord(kind=KIND, at=1.0, run=RUN, worker="w0", epoch=1))
    scene.board.report(second, JobRecord(kind=KIND, at=1.0))

    def killed() -> bool:
        scene.starter.kill(RUN)
        return bool(scene.engine.killed)

    assert eventually(killed)
    assert set(scene.engine.killed) == {"0"}
