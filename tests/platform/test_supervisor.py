"""The gateway's supervisor keeps runs going, whatever happens to their workers and stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually
from platform_examples import Caller, invocation
from shoal.errors import StoreUnavailable
from shoal.platform.detached_runs import DetachedRuns
from shoal.platform.invocation import Invocation, RunContext, Start
from shoal.platform.supervisor import GatewaySupervisor
from shoal.storage.base import Claim, Opening
from shoal.storage.keys import CLIENT
from shoal.storage.letters import WorkerLost
from shoal.storage.redis import RedisStore
from shoal.types import Loss, LossReason, RunId, WorkerId
from store_servers import Server, serving

pytestmark = pytest.mark.real

RUN, W0 = RunId("run-1"), WorkerId("w0")
KILLED = Loss(LossReason.DIED, memory_mb=256, epoch=1, code=-9)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[RedisStore]:
    store = server.reached()
    store.open(RUN, Opening([W0], kind="256 1.0", lease=0.2, restarts=10))
    yield store
    store.disconnect()


@pytest.fixture
def invoked() -> list[Invocation]:
    return []


@pytest.fixture
def cancelled() -> list[RunId]:
    return []


@pytest.fixture
def supervisor(
    invoked: list[Invocation], cancelled: list[RunId], monkeypatch: pytest.MonkeyPatch
) -> Iterator[GatewaySupervisor]:
    """It sleeps until something happens: a run that joins is such a thing."""
    monkeypatch.setattr("shoal.platform.supervisor._IDLE_SECONDS", 1000.0)

    def invoke(context: RunContext, starts: Sequence[Start]) -> None:
        invoked.extend(Invocation(context=context, start=start) for start in starts)

    supervisor = GatewaySupervisor(dict, invoke, cancelled.append)
    yield supervisor
    supervisor.close()


def job(store: RedisStore, tmp_path: Path, **facts: Any) -> Invocation:
    caller: Any = None
    return Caller(caller, tmp_path).job(store=store.url, lease=0.2, **facts)


def test_a_late_report_of_a_replaced_start_does_not_end_supervision(
    store: RedisStore, supervisor: GatewaySupervisor, invoked: list[Invocation], tmp_path: Path
) -> None:
    """1. A start is lost. 2. A client claims the next one. 3. The gateway reports the loss."""
    store.restart(RUN, W0, 1, "somebody saw it")
    supervisor.supervise(job(store, tmp_path).context)
    supervisor.lost(job(store, tmp_path), KILLED, 1024)
    assert eventually(lambda: invoked)
    assert invoked[0].epoch == 3


def test_a_restart_that_a_full_store_prevents_is_reported_with_the_reason(
    store: RedisStore, supervisor: GatewaySupervisor, invoked: list[Invocation], tmp_path: Path
) -> None:
    store._call([["CONFIG", "SET", "maxmemory", "1"]])
    supervisor.supervise(job(store, tmp_path).context)
    supervisor.lost(job(store, tmp_path), KILLED, 1024)
    ((_, letter),) = store.receive(RUN, CLIENT, "", TIMEOUT)
    assert isinstance(letter, WorkerLost)
    assert letter.loss.reason is LossReason.ERROR
    assert "StoreRefused: The store's memory is full" in letter.loss.detail
    assert not invoked


def test_workers_of_an_ended_farm_are_cancelled_but_not_those_of_a_run(
    store: RedisStore, supervisor: GatewaySupervisor, cancelled: list[RunId], tmp_path: Path
) -> None:
    of_run = job(store, tmp_path, run=RunId("run-2"))
    of_farm = job(store, tmp_path, run=RunId("farm-1"), farm=True)
    for known in (of_run, of_farm):
        supervisor.supervise(known.context)
    assert eventually(lambda: cancelled)
    assert cancelled == [RunId("farm-1")]


def test_a_gateway_leaves_a_store_whose_runs_have_ended(
    store: RedisStore, supervisor: GatewaySupervisor, tmp_path: Path
) -> None:
    def connections() -> int:
        return len(store._call([["CLIENT", "LIST"]])[0].splitlines())

    alone = connections()
    supervisor.supervise(job(store, tmp_path).context)
    assert eventually(lambda: connections() > alone)
    store.close(RUN, [W0])
    assert eventually(lambda: connections() == alone)


def test_a_store_with_invalid_data_affects_only_the_supervision_of_its_own_run(
    store: RedisStore, supervisor: GatewaySupervisor, invoked: list[Invocation], tmp_path: Path
) -> None:
    bad = RunId("run-0")
    store.open(bad, Opening([W0], kind="nonsense", lease=0.2, restarts=10))
    for known in (job(store, tmp_path, run=bad), job(store, tmp_path)):
        supervisor.supervise(known.context)
    assert eventually(lambda: len(invoked) > 1)
    assert {start.run for start in invoked} == {RUN}


# What a restarted gateway finds.


@pytest.fixture
def kept(tmp_path: Path) -> DetachedRuns:
    return DetachedRuns(tmp_path / "kept")


def test_a_detached_run_is_supervised_by_the_next_gateway_too(
    store: RedisStore,
    supervisor: GatewaySupervisor,
    invoked: list[Invocation],
    tmp_path: Path,
    kept: DetachedRuns,
) -> None:
    earlier = GatewaySupervisor(dict, lambda context, starts: None, lambda run: None)
    earlier.resume(kept)
    earlier.supervise(job(store, tmp_path, detached=True).context)
    earlier.close()
    supervisor.resume(kept)
    assert eventually(lambda: invoked)
    assert invoked[0].epoch == 2
    assert invoked[0].context.key == b"\0"


def test_a_detached_run_known_before_resume_is_saved_too(
    store: RedisStore, supervisor: GatewaySupervisor, tmp_path: Path, kept: DetachedRuns
) -> None:
    supervisor.supervise(job(store, tmp_path, detached=True).context)
    supervisor.resume(kept)
    assert [each.run for each in kept.load()] == [RUN]


def test_a_run_with_a_client_is_not_saved(
    store: RedisStore, supervisor: GatewaySupervisor, tmp_path: Path, kept: DetachedRuns
) -> None:
    supervisor.resume(kept)
    supervisor.supervise(job(store, tmp_path).context)
    assert kept.load() == []


@pytest.mark.parametrize("how", ["it is over", "it is cancelled"])
def test_a_run_that_has_ended_is_deleted(
    store: RedisStore, supervisor: GatewaySupervisor, tmp_path: Path, kept: DetachedRuns, how: str
) -> None:
    supervisor.resume(kept)
    supervisor.supervise(job(store, tmp_path, detached=True).context)
    if how == "it is over":
        store.close(RUN, [W0])
    else:
        supervisor.release(RUN)
    assert eventually(lambda: kept.load() == [])


def test_unreadable_files_are_skipped_and_deleted(
    kept: DetachedRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept" / "run-2").write_text("{}")
    assert kept.load() == []
    assert "which can't be read" in caplog.text
    assert not (tmp_path / "kept" / "run-2").exists()


def test_the_saved_file_holds_a_key_and_is_private(
    store: RedisStore, tmp_path: Path, kept: DetachedRuns
) -> None:
    kept.save(job(store, tmp_path, detached=1))
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_store_opened_while_the_supervisor_closes_is_disconnected_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor is busy with the first run's slow store; then it turns to the next."""
    opened: dict[str, Slow] = {}

    class Slow:
        def __init__(self) -> None:
            self.given_up = threading.Event()

        def supervise(self, *_: Any) -> list[Claim]:
            if len(opened) == 1:
                assert self.given_up.wait(TIMEOUT)
            return []

        def disconnect(self) -> None:
            self.given_up.set()

    opening = lambda url, **_: opened.setdefault(url, Slow())  # noqa: E731
    monkeypatch.setattr("shoal.platform.supervisor.open_store", opening)
    supervisor = GatewaySupervisor(dict, lambda context, starts: None, lambda run: None)
    for url in ("first", "second"):
        supervisor.supervise(invocation(run=RunId(url), store=url, lease=0.03).context)
    assert eventually(lambda: opened)
    supervisor.close()
    assert [store.given_up.is_set() for store in opened.values()] == [True, True]


def test_closing_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """1. A check waits for a store. 2. The supervisor is closed, and its connections with it."""
    asked = threading.Event()

    class Waiting:
        def __init__(self) -> None:
            self.given_up = threading.Event()

        def supervise(self, *_: Any) -> list[Claim]:
            asked.set()
            assert self.given_up.wait(TIMEOUT)
            raise StoreUnavailable("the connection was closed")

        def disconnect(self) -> None:
            self.given_up.set()

    monkeypatch.setattr("shoal.platform.supervisor.open_store", lambda url, **_: Waiting())
    supervisor = GatewaySupervisor(dict, lambda context, starts: None, lambda run: None)
    supervisor.supervise(invocation(lease=0.03).context)
    assert asked.wait(TIMEOUT)
    supervisor.close()
    assert caplog.messages == []
