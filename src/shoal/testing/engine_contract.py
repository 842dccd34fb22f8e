"""`EngineContract`: what `RemotePlatform` relies on in engines whose jobs stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from shoal.client.backends import WORKER_ENTRY
from shoal.platform.engine import Ended, Engine
from shoal.platform.events import Deployment, Offer, Work, sealed
from shoal.platform.invocation import RunContext, Start, UserCode, kind_of
from shoal.platform.job import board_of
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.job_board import JobBoard
from shoal.testing.pytest_required import pytest
from shoal.testing.waiting import eventually
from shoal.types import Resources, RunId, WorkerId

MakeEngine = Callable[[Deployment, Path], Engine]


class EngineContract:
    """Tests that an engine starts, watches and ends jobs.

    Subclass it in a test module and override the fixture `make_engine`; override `store` if jobs
    can't reach a server of this machine.
    """

    resources = Resources(512)
    """What jobs are asked for."""

    @pytest.fixture
    def store(self) -> Iterator[str]:
        """Return the URL of a store that jobs can reach."""
        server = EmbeddedServer()
        yield server.url
        server.close()

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        """Return an `EngineMaker` without its URL: a function of a deployment and a folder."""
        raise NotImplementedError("Override the fixture `make_engine` of EngineContract.")

    @pytest.fixture
    def deployment(self, store: str) -> Deployment:
        """Return what the client and the jobs share."""
        return Deployment(b"k" * 32, store)

    @pytest.fixture
    def engine(
        self, make_engine: MakeEngine, deployment: Deployment, tmp_path: Path
    ) -> Iterator[Engine]:
        """Return the engine; its jobs end with the test."""
        engine = make_engine(deployment, tmp_path)
        yield engine
        engine.close()

    @pytest.fixture
    def board(self, deployment: Deployment) -> Iterator[JobBoard]:
        """Return the board that jobs report on."""
        board = board_of(deployment, stays=True)
        yield board
        board.disconnect()

    def offer(self, deployment: Deployment, job: str, idle_seconds: float = 60.0) -> bytes:
        """Make an event that asks a job to take work."""
        memory_mb, cpus = self.resources.memory_mb, self.resources.cpu_share
        asked = Offer(
            job=job, entry=WORKER_ENTRY, memory_mb=memory_mb, cpus=cpus, idle_seconds=idle_seconds
        )
        return sealed(asked, deployment)

    def test_a_job_comes_up_and_reports(
        self, engine: Engine, deployment: Deployment, board: JobBoard
    ) -> None:
        handle = engine.start(self.offer(deployment, "job-1"), self.resources)
        assert eventually(lambda: "job-1" in board.jobs())
        assert board.jobs()["job-1"].kind == kind_of(self.resources)
        assert not board.jobs()["job-1"].run
        engine.kill(handle)

    def test_a_job_takes_work(
        self, engine: Engine, deployment: Deployment, board: JobBoard
    ) -> None:
        code = UserCode(session="s")
        context = RunContext(run=RunId("run-1"), key=b"r" * 32, store=deployment.store, code=code)
        start = Start.first(WorkerId("w0"), self.resources, 0.0)
        event = sealed(Work(entry=WORKER_ENTRY, context=context, starts=(start,)), deployment)
        board.push({kind_of(self.resources): [event]})
        handle = engine.start(self.offer(deployment, "job-2"), self.resources)
        assert eventually(lambda: "job-2" in board.jobs() and not board.waiting())
        engine.kill(handle)

    def test_an_idle_job_ends_by_itself(
        self, engine: Engine, deployment: Deployment, board: JobBoard
    ) -> None:
        handle = engine.start(self.offer(deployment, "job-3", 0.5), self.resources)
        assert eventually(lambda: "job-3" in board.jobs())
        assert eventually(lambda: "job-3" not in board.jobs())
        if engine.facts.watches:
            assert eventually(lambda: isinstance(engine.states([handle]).get(handle), Ended))

    def test_a_killed_job_has_ended_and_killing_it_again_does_nothing(
        self, engine: Engine, deployment: Deployment, board: JobBoard
    ) -> None:
        handle = engine.start(self.offer(deployment, "job-4"), self.resources)
        assert eventually(lambda: "job-4" in board.jobs())
        if engine.facts.watches:
            assert not isinstance(engine.states([handle])[handle], Ended)
        engine.kill(handle)
        if engine.facts.watches:
            assert eventually(lambda: isinstance(engine.states([handle]).get(handle), Ended))
        engine.kill(handle)

    def test_jobs_are_told_apart(
        self, engine: Engine, deployment: Deployment, board: JobBoard
    ) -> None:
        first, second = (
            engine.start(self.offer(deployment, name), self.resources) for name in ("a", "b")
        )
        assert first != second
        assert eventually(lambda: {"a", "b"} <= board.jobs().keys())
        engine.kill(first)
        if engine.facts.watches:
            assert eventually(lambda: isinstance(engine.states([first]).get(first), Ended))
            assert not isinstance(engine.states([first, second])[second], Ended)
        engine.kill(second)

    def test_jobs_that_start_together_add_their_index_to_the_name(
        self, engine: Engine, deployment: Deployment, board: JobBoard
    ) -> None:
        many = getattr(engine, "start_many", None)
        if many is None:
            pytest.skip("the engine starts one job at a time")
        handles = many(self.offer(deployment, "job"), self.resources, 2)
        assert len({*handles}) == 2
        assert eventually(lambda: {"job-0", "job-1"} <= board.jobs().keys())
        engine.kill(handles[0])
        assert eventually(lambda: isinstance(engine.states(handles).get(handles[0]), Ended))
        assert not isinstance(engine.states(handles)[handles[1]], Ended)
        engine.kill(handles[1])

    def test_a_job_without_its_deployment_s_key_ends(self, engine: Engine, store: str) -> None:
        stranger = Deployment(b"x" * 32, store)
        handle = engine.start(self.offer(stranger, "job-5"), self.resources)
        if engine.facts.watches:
            assert eventually(lambda: isinstance(engine.states([handle]).get(handle), Ended))
        engine.kill(handle)
