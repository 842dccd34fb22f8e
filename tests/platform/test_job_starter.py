"""Jobs are started as waiting workers need them, watched, and given up in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from observing import eventually
from shoal.errors import PlatformError
from shoal.platform.engine import Ended, EngineFacts, JobState
from shoal.platform.events import Deployment, Offer, Work, opened, sealed
from shoal.platform.invocation import (
    Invocation,
    RunContext,
    RunSettings,
    Start,
    UserCode,
    kind_of,
)
from shoal.platform.job_starter import JobStarter
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.job_board import JobBoard, JobRecord
from shoal.types import Loss, LossReason, Resources, RunId, WorkerId

pytestmark = pytest.mark.real

RUN, FOREIGN, SIZE = RunId("run-1"), RunId("run-2"), Resources(512)
KIND = kind_of(SIZE)


class FakeEngine:
    """Starts nothing; a test says how its jobs are."""

    def __init__(self, *, watches: bool = True, capacity: int = 100, spares: int = 0) -> None:
        self.facts = EngineFacts(stays=True, watches=watches, capacity=capacity, spares=spares)
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
        self.starts: list[Start] = []
        """The starts of the lost workers."""
        waiting = JobBoard(url, self.deployment.id)
        self.starter = JobStarter(
            engine, self.deployment, "module:function", waiting, self._lose, self._own
        )
        self.starter.wake()

    def _own(self, run: RunId) -> RunContext | None:
        return self.context(run) if run == RUN else None

    def _lose(self, lost: Invocation, loss: Loss) -> None:
        self.lost.append((lost.run, lost.worker, lost.epoch, loss))
        self.starts.append(lost.start)

    @staticmethod
    def context(run: RunId, most: int = 0) -> RunContext:
        """What the workers of a run have in common."""
        return RunContext(
            run=run, key=b"r" * 32, store="", code=UserCode(session="s"),
            settings=RunSettings(workers=most),
        )  # fmt: skip

    def record(
        self, run: str = "", worker: str = "", epoch: int = 0, kind: str = KIND, age: float = 0.0
    ) -> JobRecord:
        """What a job wrote so many seconds ago."""
        at = self.board.now() - age
        running = (7,) if run else ()
        return JobRecord(kind=kind, at=at, run=run, worker=worker, epoch=epoch, running=running)

    def push(self, workers: int, most: int = 0, run: RunId = RUN) -> None:
        """Have workers wait."""
        context = self.context(run, most)
        starts = [Start.first(WorkerId(f"w{i}"), SIZE, 0.0) for i in range(workers)]
        works = [
            sealed(Work(entry="", context=context, starts=(start,)), self.deployment)
            for start in starts
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
    scene.board.report("idle", scene.record())
    scene.board.report("other", scene.record(kind="1024 1.0"))
    scene.push(3)
    assert scene.settled(2)


def test_the_idle_record_of_a_dead_job_starves_no_worker(scene: Scene) -> None:
    """1. A job is killed after its client has closed. 2. Its record stays. 3. A worker waits."""
    scene.board.report("dead", scene.record(age=11))
    scene.push(1)
    assert scene.settled(1)


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
    scene.board.report("busy", scene.record(RUN, "w9", 1))
    scene.push(5, most=3)
    assert scene.settled(2)


@pytest.mark.parametrize("engine", [FakeEngine(spares=2)])
def test_spare_jobs_stand_by_while_others_are_at_work(scene: Scene) -> None:
    scene.board.report("elsewhere", scene.record(kind="1024 1.0"))
    scene.push(1, most=1)
    assert scene.settled(1)
    assert scene.board.take(KIND, 1) is not None
    scene.board.report(scene.names()[0], scene.record(RUN, "w0", 1))
    assert scene.settled(3)
    scene.starter.end_surplus()
    assert not scene.engine.killed
    scene.board.report(scene.names()[0], scene.record())
    scene.starter.end_surplus()
    assert scene.engine.killed == ["1", "2"]


@pytest.mark.parametrize("engine", [FakeEngine(spares=2)])
def test_no_spare_job_stands_by_for_another_client_s_run(scene: Scene) -> None:
    scene.board.report("busy", scene.record(FOREIGN, "w9", 1))
    assert scene.settled(0)


@pytest.mark.parametrize("engine", [FakeEngine(capacity=2)])
def test_an_engine_has_no_more_jobs_than_it_has_room_for(scene: Scene) -> None:
    scene.push(5)
    assert scene.settled(2)


def test_a_worker_whose_job_ended_is_lost_with_what_the_engine_says(scene: Scene) -> None:
    scene.push(1)
    assert eventually(lambda: scene.engine.offers)
    assert scene.board.take(KIND, 1) is not None
    (name,) = scene.names()
    scene.board.report(name, scene.record(RUN, "w0", 4))
    scene.engine.ended["0"] = Ended(LossReason.OUT_OF_MEMORY, 137, "OOMKilled")
    assert eventually(lambda: scene.lost)
    loss = Loss(LossReason.OUT_OF_MEMORY, (7,), 512, 4, 137, "OOMKilled")
    assert scene.lost == [(RUN, "w0", 4, loss)]
    assert name not in scene.board.jobs()


def test_a_lost_worker_keeps_its_cpus(url: str, engine: FakeEngine) -> None:
    scene = Scene(url, engine)
    scene.board.report("strange", scene.record(RUN, "w0", 1, kind="512 3.5", age=11))
    assert eventually(lambda: scene.starts)
    assert scene.starts[0].resources == Resources(512, 3.5)
    scene.close()


def test_a_worker_in_a_silent_job_of_another_client_is_lost(scene: Scene) -> None:
    scene.board.report("theirs", scene.record(RUN, "w0", 2, age=11))
    assert eventually(lambda: scene.lost)
    assert scene.lost[0] == (RUN, "w0", 2, Loss(LossReason.VANISHED, (7,), 512, 2))
    assert not scene.board.records().silent


def test_a_worker_of_another_client_is_lost_with_its_job(scene: Scene) -> None:
    scene.push(1, run=FOREIGN)
    assert eventually(lambda: scene.engine.offers)
    assert scene.board.take(KIND, 1) is not None
    scene.board.report(scene.names()[0], scene.record(FOREIGN, "w0", 1))
    scene.engine.ended["0"] = Ended(LossReason.OUT_OF_MEMORY, 137)
    assert eventually(lambda: scene.lost)
    assert scene.lost[0][:3] == (FOREIGN, "w0", 1)


def test_a_loss_that_nobody_here_can_report_is_left_to_others(scene: Scene) -> None:
    """A job of ours took a start of a run that we know nothing of."""
    scene.push(1)
    assert eventually(lambda: scene.engine.offers)
    assert scene.board.take(KIND, 1) is not None
    (name,) = scene.names()
    scene.board.report(name, scene.record(FOREIGN, "w0", 1))
    scene.engine.ended["0"] = Ended(LossReason.DIED)
    assert eventually(lambda: name not in scene.starter._jobs)
    assert not scene.lost
    assert scene.board.record(name) is not None


def test_a_job_that_ends_idle_loses_nobody(scene: Scene) -> None:
    scene.push(1)
    assert eventually(lambda: scene.engine.offers)
    assert scene.board.take(KIND, 1) is not None
    scene.board.report(scene.names()[0], scene.record())
    scene.engine.ended["0"] = Ended(code=0)
    assert eventually(lambda: not scene.board.jobs())
    assert not scene.lost


@pytest.mark.parametrize("engine", [FakeEngine(watches=False)])
def test_a_silent_job_of_an_engine_that_can_not_tell_is_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.platform.job_starter.SILENT_SECONDS", 0.5)
    scene.push(1)
    assert eventually(lambda: scene.engine.offers)
    assert scene.board.take(KIND, 1) is not None
    scene.board.report(scene.names()[0], scene.record(RUN, "w0", 1))
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


def test_only_starts_of_own_runs_are_given_up(scene: Scene) -> None:
    scene.engine.ended = {str(n): Ended(code=1, detail="no module shoal") for n in range(100)}
    scene.push(1, run=FOREIGN)
    assert scene.settled(3)  # and no more for a while
    assert len(scene.board.waiting()[KIND]) == 1
    scene.push(1)
    assert eventually(lambda: scene.lost)
    assert [run for run, *_ in scene.lost] == [RUN]
    assert len(scene.board.waiting()[KIND]) == 1


def test_starts_of_a_cancelled_run_get_no_job(scene: Scene) -> None:
    scene.board.cancel(RUN)
    scene.push(2)
    assert eventually(lambda: not scene.board.waiting())
    assert scene.settled(0)


def test_jobs_that_nothing_waits_for_any_more_are_ended_before_they_come_up(scene: Scene) -> None:
    scene.push(3)
    assert eventually(lambda: len(scene.engine.offers) == 3)
    scene.board.report(scene.names()[0], scene.record(RUN, "w0", 1))
    events = scene.board.waiting()[KIND]
    scene.board.withdraw(KIND, events[:2])
    scene.starter.end_surplus()
    assert eventually(lambda: scene.engine.killed)
    (killed,) = scene.engine.killed
    assert killed in ("1", "2")  # jobs are submitted at the same time; the first has come up
    scene.engine.ended[killed] = Ended()
    assert eventually(lambda: len(scene.starter._jobs) == 2)
    assert not scene.starter._stillborn


def test_starts_that_wait_when_the_client_closes_get_their_jobs(
    url: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.platform.job_starter.JobStarter._run", lambda starter: None)
    scene = Scene(url, engine)
    scene.push(2)
    scene.close()
    assert len(engine.offers) == 2


def test_jobs_that_work_for_a_run_are_killed_on_demand(scene: Scene) -> None:
    scene.push(2)
    assert eventually(lambda: len(scene.engine.offers) == 2)
    first, second = scene.names()
    scene.board.report(first, scene.record(RUN, "w0", 1))
    scene.board.report(second, scene.record())

    def killed() -> bool:
        scene.starter.kill(RUN)
        return bool(scene.engine.killed)

    assert eventually(killed)
    assert set(scene.engine.killed) == {"0"}
