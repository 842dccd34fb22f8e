"""`FunctionEngineContract`: what `RemotePlatform` relies on in engines that call a function."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from shoal.client.backends import WORKER_ENTRY
from shoal.errors import PlatformError
from shoal.platform.engine import Ended, Engine, JobState
from shoal.platform.events import Deployment, Work, sealed
from shoal.platform.invocation import INLINE_INPUTS, RunContext, Start, UserCode
from shoal.platform.remote import RemotePlatform
from shoal.session import Session
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.resp import Connection, parse_url
from shoal.testing.pytest_required import pytest
from shoal.testing.waiting import TIMEOUT, eventually
from shoal.types import LossReason, Resources, RunId, WorkerId
from shoal.workflow import Task

_ENCODED = 1.4
"""How many times as large an event is as the bytes that it carries, at most."""


class _RecordingEngine:
    """An engine that notes the handles of its calls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.facts = engine.facts
        self.handles: list[str] = []

    def start(self, event: bytes, resources: Resources) -> str:
        self.handles.append(self._engine.start(event, resources))
        return self.handles[-1]

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        return self._engine.states(handles)

    def kill(self, handle: str) -> None:
        self._engine.kill(handle)

    def close(self) -> None:
        """Do nothing: the engine is the fixture's."""


class FunctionEngineContract:
    """Tests that an engine calls its function, and tells how calls are.

    Subclass it in a test module and override the fixture `engine`; override `store` if functions
    can't reach a server of this machine.
    """

    resources = Resources(512)
    """What workers are asked for."""

    @pytest.fixture
    def store(self) -> Iterator[str]:
        """Return the URL of a store that functions can reach."""
        server = EmbeddedServer()
        yield server.url
        server.close()

    @pytest.fixture
    def deployment(self, store: str, tmp_path: Path) -> Deployment:
        """Return what the client and the function share."""
        return Deployment.of_user(tmp_path, store)

    @pytest.fixture
    def engine(self, deployment: Deployment, tmp_path: Path) -> Iterator[Engine]:
        """Deploy a function with the deployment's key and store; return the engine that calls it.

        Close the engine after the test.
        """
        raise NotImplementedError("Override the fixture `engine` of FunctionEngineContract.")

    @contextmanager
    def session(self, engine: Engine, deployment: Deployment, folder: Path) -> Iterator[Session]:
        """Open a session whose workers are calls of the engine."""
        with (
            closing(RemotePlatform(engine, deployment, WORKER_ENTRY)) as platform,
            Session(platform=platform, store=deployment.store, folder=str(folder)) as session,
        ):
            yield session

    def event(self, deployment: Deployment, nbytes: int = 0) -> bytes:
        """Make an event of a certain size that asks a function only to be ready."""
        memory_mb, cpus = self.resources.memory_mb, self.resources.cpu_share
        code = UserCode(session="s")
        context = RunContext(run=RunId("run-1"), key=b"r" * 32, store=deployment.store, code=code)
        nothing = Start(
            worker=WorkerId(""), epoch=0, memory_mb=memory_mb, cpus=cpus, inputs=bytes(nbytes)
        )
        return sealed(Work(entry=WORKER_ENTRY, context=context, starts=(nothing,)), deployment)

    def outcome(self, engine: Engine, handle: str) -> Ended | None:
        """Wait until a call has ended; return how, or None if all is well or nobody knows."""
        seen: list[JobState | None] = []

        def over() -> bool:
            seen.append(engine.states([handle]).get(handle))
            return seen[-1] is None or isinstance(seen[-1], Ended)

        assert eventually(over), f"the call is still {seen[-1]}"
        return seen[-1] if isinstance(seen[-1], Ended) else None

    def test_its_facts_are_those_of_a_function(self, engine: Engine) -> None:
        assert not engine.facts.stays
        assert engine.facts.capacity >= 1
        assert engine.facts.payload_nbytes is None or engine.facts.payload_nbytes >= 2**16

    def test_a_call_runs_a_worker(
        self, engine: Engine, deployment: Deployment, tmp_path: Path
    ) -> None:
        with self.session(engine, deployment, tmp_path) as session:
            squares = [Task(lambda number: number**2)(number) for number in range(4)]
            assert session.compute(*squares, timeout=2 * TIMEOUT) == [0, 1, 4, 9]

    def test_calls_run_beside_each_other(
        self, engine: Engine, deployment: Deployment, tmp_path: Path
    ) -> None:
        if engine.facts.capacity < 2:
            pytest.skip("the function serves one call at a time")
        meet = _meeting(deployment.store, 2)
        with self.session(engine, deployment, tmp_path) as session:
            both = [Task(meet)(number) for number in range(2)]
            run = session.submit(both, planner="spread", workers=2)
            assert run.values(2 * TIMEOUT) == [0, 1]

    def test_a_call_is_known_while_its_worker_runs(
        self, engine: Engine, deployment: Deployment, tmp_path: Path
    ) -> None:
        if not engine.facts.watches:
            pytest.skip("the engine doesn't tell how its calls are")
        recorded = _RecordingEngine(engine)
        meet = _meeting(deployment.store, 2)
        with (
            self.session(recorded, deployment, tmp_path) as session,
            closing(Connection(parse_url(deployment.store))) as connection,
        ):
            run = session.submit(Task(meet)(7), workers=1)
            assert eventually(lambda: connection.call("EXISTS", "met"))
            (handle,) = recorded.handles
            assert engine.states([handle]).get(handle) in (None, "waiting", "running")
            assert session.platform.active(run.id)
            connection.call("INCR", "met")
            assert run.result(2 * TIMEOUT) == 7
            assert self.outcome(engine, handle) is None

    def test_a_stranger_s_event_runs_nothing(
        self, engine: Engine, deployment: Deployment, tmp_path: Path
    ) -> None:
        stranger = Deployment(b"x" * 32, deployment.store)
        try:
            handle = engine.start(self.event(stranger), self.resources)
        except PlatformError:
            return
        if engine.facts.watches:
            ended = self.outcome(engine, handle)
            assert ended is not None
            assert ended.reason is LossReason.ERROR
        self.test_a_call_runs_a_worker(engine, deployment, tmp_path)

    def test_an_event_may_be_as_large_as_the_engine_says(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        most = min(INLINE_INPUTS, engine.facts.payload_nbytes or INLINE_INPUTS)
        event = self.event(deployment, int(most / _ENCODED))
        assert len(event) <= most
        assert self.outcome(engine, engine.start(event, self.resources)) is None

    def test_killing_a_call_that_has_ended_does_nothing(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        handle = engine.start(self.event(deployment), self.resources)
        assert self.outcome(engine, handle) is None
        engine.kill(handle)
        engine.kill(handle)
        assert not engine.states([handle])


def _meeting(store: str, ready: int) -> Callable[[int], int]:
    """A function that returns once so many others, or the test, have counted on the store."""

    def meet(number: int) -> int:
        with closing(Connection(parse_url(store))) as connection:
            connection.call("INCR", "met")
            while int(connection.call("GET", "met")) < ready:
                time.sleep(0.01)
        return number

    return meet
