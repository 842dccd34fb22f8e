"""A run that failed, was cancelled or lost its client continues where it stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually, processes_mentioning
from shoal import Session, Task
from shoal.cli.main import main
from shoal.errors import NotPicklable, RunCancelled, RunTimeout, TaskError, UnknownRun, UsageError
from shoal.metadata.history import RESUMED
from shoal.platform.gateway import LocalGateway
from shoal.platform.http import HttpPlatform
from shoal.platform.logs import RunLogs
from shoal.platform.server import GatewayServer
from shoal.storage.embedded import EmbeddedServer
from shoal.workflow import Output
from store_servers import waiting_clients

pytestmark = pytest.mark.real


def workflow(folder: Path, *, count: int = 6, nbytes: int = 10, held: object = None) -> Output[int]:
    """Build tasks that create a file at each execution; the last one waits for a file.

    Args:
        folder: The folder of the files.
        count: How many tasks have an output for the last one.
        nbytes: The size of each of these outputs.
        held: A value that the last task's function refers to.
    """

    def make(number: int) -> bytes:
        (folder / f"make{number}.{time.time_ns()}").touch()
        return bytes(nbytes)

    def measure(number: int, data: bytes) -> int:
        (folder / f"measure{number}.{time.time_ns()}").touch()
        return len(data)

    def last(*sizes: int) -> int:
        assert held is None
        if (folder / "wait").exists():
            (folder / "waiting").touch()
            time.sleep(300)
        if not (folder / "mended").exists():
            raise ValueError("not yet")
        return sum(sizes)

    made = [Task(make)(number) for number in range(count)]
    return Task(last)(*[Task(measure)(number, data) for number, data in enumerate(made)])


def executed(folder: Path) -> int:
    return len(list(folder.glob("m*.*")))


@pytest.mark.parametrize("planner", ["uniform", "spread", "auto"])
@pytest.mark.parametrize("nbytes", [10, 200_000], ids=["small", "large"])
def test_only_unfinished_tasks_are_repeated_after_a_failure(
    session: Session, tmp_path: Path, planner: str, nbytes: int
) -> None:
    run = session.submit(workflow(tmp_path, nbytes=nbytes), planner=planner)
    with pytest.raises(TaskError, match="not yet") as caught:
        run.result(TIMEOUT)
    assert f"compute(resume={run.id!r})" in "".join(caught.value.__notes__)
    assert executed(tmp_path) == 12
    (tmp_path / "mended").touch()
    resumed = workflow(tmp_path, nbytes=nbytes)
    assert session.compute(resumed, resume=run.id) == [6 * nbytes]
    assert executed(tmp_path) == 12
    assert not [key for key in _keys(session) if run.id.encode() in key]


def test_failed_and_resumed_runs_are_not_compared_with_predictions(
    session: Session, tmp_path: Path
) -> None:
    """Half of a run says nothing about predictions for the whole."""
    (tmp_path / "mended").touch()
    session.compute(workflow(tmp_path), name="partly")
    (tmp_path / "mended").unlink()
    run = session.submit(workflow(tmp_path), name="partly")
    with pytest.raises(TaskError, match="not yet"):
        run.result(TIMEOUT)
    (tmp_path / "mended").touch()
    session.compute(workflow(tmp_path), resume=run.id)
    session.settle()  # the last run is predicted from the first
    session.compute(workflow(tmp_path), name="partly")
    session.settle()
    whole, resumed, failed, _ = session.history.runs(key="partly")
    assert (whole.outcome, resumed.outcome) == ("done", RESUMED)
    assert whole.predicted is not None
    assert whole.quality
    for part in (failed, resumed):
        assert part.predicted is None
        assert part.quality == {}


def test_flexible_workers_resume_too(session: Session, tmp_path: Path) -> None:
    run = session.submit(workflow(tmp_path), planner="wukong")
    with pytest.raises(TaskError, match="not yet"):
        run.result(TIMEOUT)
    (tmp_path / "mended").touch()
    assert session.compute(workflow(tmp_path), resume=run.id) == [60]
    assert executed(tmp_path) < 24


def test_outputs_in_the_memory_of_a_cancelled_run_are_not_repeated(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    run = session.submit(workflow(tmp_path), planner="uniform", workers=1)
    assert eventually((tmp_path / "waiting").exists)
    assert eventually(lambda: waiting_clients(session.store.url) >= 2)  # the client and a worker
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result()
    (tmp_path / "wait").unlink()
    (tmp_path / "mended").touch()
    assert session.compute(workflow(tmp_path), resume=run.id) == [60]
    assert executed(tmp_path) == 12


def test_another_workflow_does_not_resume_a_run(session: Session, tmp_path: Path) -> None:
    run = session.submit(workflow(tmp_path))
    with pytest.raises(TaskError):
        run.result(TIMEOUT)
    with pytest.raises(UsageError, match="isn't the one of run"):
        session.compute(workflow(tmp_path, count=5), resume=run.id)
    with pytest.raises(UnknownRun):
        session.compute(workflow(tmp_path), resume="0101-000000-000000")


def test_resuming_with_an_unpicklable_workflow_leaves_the_run_resumable(
    session: Session, tmp_path: Path
) -> None:
    run = session.submit(workflow(tmp_path))
    with pytest.raises(TaskError):
        run.result(TIMEOUT)
    with pytest.raises(NotPicklable):
        session.compute(workflow(tmp_path, held=threading.Lock()), resume=run.id)
    (tmp_path / "mended").touch()
    assert session.compute(workflow(tmp_path), resume=run.id) == [60]
    assert executed(tmp_path) == 12


def test_nothing_is_kept_with_keep_seconds_0(session: Session, tmp_path: Path) -> None:
    run = session.submit(workflow(tmp_path), keep_seconds=0)
    with pytest.raises(TaskError):
        run.result(TIMEOUT)
    assert not [key for key in _keys(session) if run.id.encode() in key]
    with pytest.raises(UnknownRun):
        session.compute(workflow(tmp_path), resume=run.id)


def _keys(session: Session) -> list[bytes]:
    found: Any = session.store._call([["KEYS", "shoal:*"]])[0]  # type: ignore[attr-defined]
    return [bytes(key) for key in found]


@pytest.fixture
def server() -> Iterator[str]:
    """A store that outlives its clients."""
    server = EmbeddedServer()
    yield server.url
    server.close()


@pytest.mark.parametrize("planner", ["uniform", "spread", "wukong"])
def test_outputs_lost_with_their_client_are_computed_again(
    server: str, tmp_path: Path, planner: str
) -> None:
    def outputs() -> list[Output[Any]]:
        def late(size: int) -> int:
            if not (tmp_path / "mended").exists():
                assert eventually((tmp_path / "handed in").exists)
                raise ValueError("not yet")
            return size

        return [Task(bytes, name="large")(200_000), Task(late)(Task(len)(Task(bytes)(100_000)))]

    def note(position: int, value: Any) -> None:
        (tmp_path / "handed in").touch()

    data = str(tmp_path / "data")
    with Session(store=server, folder=data, workers=2) as session:
        run = session.submit(*outputs(), planner=planner, arrived=note)
        with pytest.raises(TaskError, match="not yet"):
            run.result(TIMEOUT)
    assert run.shared is not None
    shutil.rmtree(run.shared.path, ignore_errors=True)
    (tmp_path / "mended").touch()
    with Session(store=server, folder=data, workers=2) as session:
        values = session.compute(*outputs(), resume=run.id, timeout=TIMEOUT)
    assert values == [bytes(200_000), 100_000]


CLIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_resume import workflow
from shoal import Session

where = {"store": sys.argv[2]} if sys.argv[2] else {"durable": True}
with Session(**where, folder=sys.argv[3], workers=2, planner="uniform") as session:
    session.compute(workflow(Path(sys.argv[4]), nbytes=20_000))
"""


def interrupted(folder: Path, store: str) -> tuple[Path, str]:
    """Kill a client during its last task; return its data folder and its run."""
    (folder / "wait").touch()
    data, here = folder / "data", Path(__file__).parent
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(here), store, str(data), str(folder)],
        env=dict(os.environ) | {"PYTHONPATH": str(here.parent)},
    )
    with client:
        try:
            assert eventually((folder / "waiting").exists)
        finally:
            client.send_signal(signal.SIGKILL)
    (folder / "wait").unlink()
    (folder / "mended").touch()
    (kept,) = (data / "unfinished").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    return data, kept.name


def test_a_run_whose_client_was_killed_is_resumed_by_another_process(
    server: str, tmp_path: Path
) -> None:
    data, run = interrupted(tmp_path, server)
    assert executed(tmp_path) == 12
    with Session(store=server, folder=str(data), workers=2) as session:
        assert session.resume(run).result(TIMEOUT) == 120_000
    assert executed(tmp_path) < 24
    assert not list((data / "unfinished").iterdir())


def test_a_run_can_be_resumed_after_everything_crashed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = interrupted(tmp_path, "")
    for pid, text in processes_mentioning(str(data)).items():
        if "valkey" in text:
            os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not processes_mentioning(str(data)))
    settings = ["--set", "durable=true", "--set", f"folder={data}"]
    assert main(["resume", run, *settings]) == 0
    assert capsys.readouterr().out == "120000\n"
    assert executed(tmp_path) < 24
    assert main(["resume", run, *settings]) == 2


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A gateway that outlives its clients."""
    local = LocalGateway("shoal.worker.entry:handle", RunLogs(tmp_path / "logs"))
    server = GatewayServer(local, "secret")
    yield {"platform": server.url, "token": "secret"}
    server.close()
    local.close()


def test_a_detached_run_continues_without_its_client(
    server: str, gateway: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mended").touch()
    folder = str(tmp_path / "data")
    options: dict[str, Any] = {"store": server, "folder": folder, "workers": 2, **gateway}
    with Session(**options) as session:
        run = session.submit(workflow(tmp_path), detach=True, lease=1.0)
    with Session(**options) as session:
        assert session.attach(run.id).result(TIMEOUT) == 60
        assert not [key for key in _keys(session) if run.id.encode() in key]
    assert executed(tmp_path) == 12


def test_a_run_whose_start_nobody_saw_is_not_compared_with_predictions(
    server: str, gateway: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mended").touch()
    folder = str(tmp_path / "data")
    with Session(store=server, folder=folder, workers=2, **gateway) as session:
        session.compute(workflow(tmp_path))
        session.settle()
        run = session.submit(workflow(tmp_path), detach=True)
        assert session.attach(run.id).result(TIMEOUT) == 60
        session.settle()
        attached, _ = session.history.runs()
    assert attached.run == run.id
    assert (attached.predicted, attached.quality) == (None, {})


def test_a_run_attached_to_later_is_recorded_with_its_real_times(
    server: str, gateway: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mended").touch()
    folder = str(tmp_path / "data")
    with Session(store=server, folder=folder, workers=2, **gateway) as session:
        run = session.submit(workflow(tmp_path), detach=True)
    local = HttpPlatform(gateway["platform"], gateway["token"])
    assert eventually(lambda: executed(tmp_path) == 12 and not local.active(run.id))
    local.close()
    ended = time.time()
    with Session(store=server, folder=folder, workers=2, **gateway) as session:
        attached = session.attach(run.id)
        assert attached.result(TIMEOUT) == 60
        session.settle()
        (record,) = session.history.runs()
    first = min(int(path.suffix[1:]) for path in tmp_path.glob("m*.*")) / 1e9
    assert record.started < first < record.started + record.makespan < ended
    spans = attached.timeline.spans
    assert all(0 <= span.start <= span.end <= record.makespan for span in spans if span.task)


def test_the_handle_of_a_detached_run_returns_its_result(
    server: str, gateway: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mended").touch()
    folder = str(tmp_path / "data")
    with Session(store=server, folder=folder, workers=2, **gateway) as session:
        run = session.submit(workflow(tmp_path), detach=True)
        assert run.result(TIMEOUT) == 60
        assert run.status().state == "done"
        assert not [key for key in _keys(session) if run.id.encode() in key]


def test_the_handle_of_a_detached_run_cancels_it(
    server: str, gateway: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    folder = str(tmp_path / "data")
    with Session(store=server, folder=folder, workers=2, **gateway) as session:
        run = session.submit(workflow(tmp_path), detach=True)
        assert eventually((tmp_path / "waiting").exists)
        run.cancel()
        assert not session.platform.active(run.id)
        with pytest.raises(RunCancelled):
            run.result(TIMEOUT)


def test_a_detached_run_continues_when_the_session_waiting_for_it_is_closed(
    server: str, gateway: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    folder = str(tmp_path / "data")
    options: dict[str, Any] = {"store": server, "folder": folder, "workers": 2, **gateway}
    with Session(**options) as session:
        run = session.submit(workflow(tmp_path), detach=True)
        assert eventually((tmp_path / "waiting").exists)
        with pytest.raises(RunTimeout):
            run.result(0.1)
        attached = session.attach(run.id)
    for handle in (run, attached):
        with pytest.raises(UsageError, match=f"shoal attach {run.id}"):
            handle.result(TIMEOUT)
    with Session(**options) as session:
        assert session.platform.active(run.id)
        unwatched = session.attach(run.id)
        unwatched.cancel()
    with pytest.raises(RunCancelled):
        unwatched.result(TIMEOUT)


def test_a_handle_of_a_closed_session_says_how_to_attach(
    server: str, gateway: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mended").touch()
    folder = str(tmp_path / "data")
    options: dict[str, Any] = {"store": server, "folder": folder, "workers": 2, **gateway}
    with Session(**options) as session:
        run = session.submit(workflow(tmp_path), detach=True)
    for ask in (run.result, run.cancel, run.report):
        with pytest.raises(UsageError, match=f"shoal attach {run.id}"):
            ask()
    with Session(**options) as session:
        assert session.attach(run.id).result(TIMEOUT) == 60


def test_a_run_on_embedded_services_cannot_be_detached(session: Session, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only if its store and its gateway do"):
        session.submit(workflow(tmp_path), detach=True)
