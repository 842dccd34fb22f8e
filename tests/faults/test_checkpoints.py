"""Another process can resume a failed or interrupted run, also on the embedded default."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_resume import executed, workflow

from observing import TIMEOUT, eventually
from shoal import Session, Task
from shoal.cli.main import main
from shoal.errors import NothingKept, RunCancelled, RunTimeout, Tampered, TaskError, UsageError
from shoal.storage.embedded import EmbeddedServer
from shoal.workflow import Output
from store_servers import waiting_clients

pytestmark = pytest.mark.real

HERE = Path(__file__).parent

CLIENT = """
import sys
from pathlib import Path
from test_resume import workflow
from shoal import Session

folder = Path(sys.argv[1])
with Session(folder=str(folder / "data"), workers=2) as session:
    out = workflow(folder, nbytes=int(sys.argv[3]))
    if sys.argv[4] == "submit":
        session.submit(out, planner=sys.argv[2]).result()
    else:
        session.compute(out, planner=sys.argv[2])
"""


def began(folder: Path, *, planner: str = "uniform", nbytes: int = 10, how: str = "compute") -> Any:
    """Start a client whose run waits or fails in its last task."""
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(folder), planner, str(nbytes), how],
        env=dict(os.environ) | {"PYTHONPATH": f"{HERE.parent}:{HERE}"},
        stderr=subprocess.PIPE,
    )


def the_run(folder: Path) -> str:
    """Return the run that is kept."""
    (checkpoint,) = (folder / "data" / "kept").iterdir()
    (key,) = (folder / "data" / "unfinished").iterdir()
    assert checkpoint.name == key.name
    for path in (checkpoint, key):
        assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    return checkpoint.name


def left(folder: Path) -> list[Path]:
    """Return the files of unfinished runs in the data folder."""
    data = folder / "data"
    return [*(data / "kept").glob("*"), *(data / "unfinished").glob("*")]


@pytest.mark.parametrize(
    ("planner", "nbytes"),
    [("uniform", 10), ("spread", 200_000), ("auto", 200_000), ("wukong", 10)],
)
def test_another_process_repeats_only_unfinished_tasks(
    tmp_path: Path, planner: str, nbytes: int
) -> None:
    with began(tmp_path, planner=planner, nbytes=nbytes) as client:
        said = client.communicate(timeout=TIMEOUT)[1].decode()
    run = the_run(tmp_path)
    assert f"compute(resume={run!r}), or `shoal resume {run}`, runs only the rest" in said
    (tmp_path / "mended").touch()
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        again = workflow(tmp_path, nbytes=nbytes)
        assert session.compute(again, resume=run, timeout=TIMEOUT) == [6 * nbytes]
        with pytest.raises(NothingKept, match="without resume="):
            session.compute(again, resume=run)
    assert executed(tmp_path) == 12 if planner != "wukong" else executed(tmp_path) < 24
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGINT, "compute"),
        (signal.SIGTERM, "compute"),
        (signal.SIGHUP, "submit"),
    ],
)
def test_an_interrupted_run_is_resumed_by_another_process(
    tmp_path: Path, number: int, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wait").touch()
    with began(tmp_path, how=how) as client:
        assert eventually((tmp_path / "waiting").exists)
        with closing(EmbeddedServer()) as server:  # the client's
            assert eventually(lambda: waiting_clients(server.url) >= 2)  # the client and a worker
        client.send_signal(number)
        client.communicate(timeout=TIMEOUT)
    run = the_run(tmp_path)
    (tmp_path / "wait").unlink()
    (tmp_path / "mended").touch()
    assert main(["resume", run, "--set", f"folder={tmp_path / 'data'}"]) == 0
    assert capsys.readouterr().out == "60\n"
    assert executed(tmp_path) == 12
    assert left(tmp_path) == []


NBYTES = 6 * 400_000


def heavy(folder: Path) -> Output[int]:
    """Build a workflow of large outputs, all of which the last task needs."""

    def make(number: int) -> bytes:
        (folder / f"make{number}.{time.time_ns()}").touch()
        return os.urandom(NBYTES // 6)

    def last(*made: bytes) -> int:
        if (folder / "wait").exists():
            (folder / "waiting").touch()
            time.sleep(300)
        if not (folder / "mended").exists():
            raise ValueError("not yet")
        return sum(map(len, made))

    return Task(last)(*[Task(make)(number) for number in range(6)])


def failed(session: Session, folder: Path, **options: Any) -> TaskError:
    with pytest.raises(TaskError, match="not yet") as caught:
        session.compute(heavy(folder), planner="spread", **options)
    return caught.value


def kept(folder: Path) -> list[str]:
    """Return the kept runs, the oldest first."""
    return sorted(path.name for path in (folder / "data" / "kept").iterdir())


def test_a_run_that_fails_again_is_kept_again(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        failed(session, tmp_path)
        (run,) = kept(tmp_path)
        for _ in range(2):
            failed(session, tmp_path, resume=run)
            assert kept(tmp_path) == [run]
    (tmp_path / "mended").touch()
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        assert session.resume(run).result(TIMEOUT) == NBYTES
        session.settle()
        outcomes = {record.run for record in session.history.runs()}
    assert outcomes == {run, f"{run}-2", f"{run}-3", f"{run}-4"}
    assert executed(tmp_path) == 6


def test_large_outputs_in_the_store_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.client.shared_folders.SharedFolders.usable", False)
    monkeypatch.setattr("shoal.storage.redis.PIECE", 100_000)
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        failed(session, tmp_path)
    (run,) = kept(tmp_path)
    (tmp_path / "mended").touch()
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        assert session.resume(run).result(TIMEOUT) == NBYTES
    assert executed(tmp_path) == 6


def test_large_constants_are_kept_once(tmp_path: Path) -> None:
    def fail(data: bytes, made: int) -> int:
        if not (tmp_path / "mended").exists():
            raise ValueError("not yet")
        return len(data) + made

    out = Task(fail)(os.urandom(1_000_000), Task(len)(b"12"))
    with Session(folder=str(tmp_path / "data"), workers=1) as session:
        with pytest.raises(TaskError, match="not yet"):
            session.compute(out)
        sizes = [path.stat().st_size for path in left(tmp_path)]
        assert 1_000_000 < sum(sizes) < 1_100_000
        (tmp_path / "mended").touch()
        assert session.resume(*kept(tmp_path)).result(TIMEOUT) == 1_000_002


def test_a_session_on_another_store_leaves_kept_runs_alone(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        failed(session, tmp_path)
        (run,) = kept(tmp_path)
        url = session.store.url
        with (
            Session(store=url, folder=str(tmp_path / "data"), workers=2) as other,
            pytest.raises(UsageError, match="without store="),
        ):
            other.resume(run)
        (tmp_path / "mended").touch()
        assert session.resume(run).result(TIMEOUT) == NBYTES


def test_a_run_that_is_being_resumed_cannot_be_resumed_again(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        failed(session, tmp_path)
        (run,) = kept(tmp_path)
        (tmp_path / "wait").touch()
        resumed = session.resume(run)
        assert eventually((tmp_path / "waiting").exists)
        with (
            Session(folder=str(tmp_path / "data"), workers=2) as other,
            pytest.raises(UsageError, match="already being resumed"),
        ):
            other.resume(run)
        resumed.cancel()
        assert kept(tmp_path) == [run]


def test_a_run_whose_resuming_client_was_killed_can_be_resumed_again(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        failed(session, tmp_path)
        (run,) = kept(tmp_path)
        (tmp_path / "wait").touch()
        command = [sys.executable, "-m", "shoal.cli.main", "resume", run]
        client = subprocess.Popen([*command, "--set", f"folder={tmp_path / 'data'}"])
        with client:
            assert eventually((tmp_path / "waiting").exists)
            client.kill()
        (tmp_path / "wait").unlink()
        (tmp_path / "mended").touch()
        assert session.resume(run).result(TIMEOUT) == NBYTES


def test_the_oldest_run_makes_room(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        for _ in range(3):
            failed(session, tmp_path, keep_mb=6)
            time.sleep(0.01)
    assert len(kept(tmp_path)) == 2
    assert {path.name for path in (tmp_path / "data" / "unfinished").iterdir()} == {*kept(tmp_path)}


def test_outputs_beyond_keep_mb_are_kept_until_the_process_ends(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        error = failed(session, tmp_path, keep_mb=1)
        (note,) = error.__notes__
        assert "more than keep_mb allows, 1 MB" in note
        assert left(tmp_path) == []
        (tmp_path / "mended").touch()
        run = note.split("'")[-2]
        assert session.compute(heavy(tmp_path), resume=run) == [NBYTES]
        assert executed(tmp_path) == 6


def test_outputs_that_cannot_be_written_are_kept_until_the_process_ends(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kept").touch()
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        (note,) = failed(session, tmp_path).__notes__
    assert "only until this process ends" in note
    assert "File exists" in note


def test_a_store_passed_as_an_object_keeps_outputs_until_the_process_ends(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        with Session(
            store=session.store, platform=session.platform, folder=str(tmp_path / "data"), workers=2
        ) as given:
            (note,) = failed(given, tmp_path).__notes__
        assert "as an object" in note
    assert left(tmp_path) == []


def test_kept_runs_expire(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        failed(session, tmp_path)
        (run,) = kept(tmp_path)
        os.utime(tmp_path / "data" / "kept" / run, (0, 0))
        with pytest.raises(NothingKept):
            session.resume(run)
    assert left(tmp_path) == []


def test_a_checkpoint_that_is_damaged_or_not_private_is_not_resumed(tmp_path: Path) -> None:
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        failed(session, tmp_path)
        (run,) = kept(tmp_path)
        checkpoint = tmp_path / "data" / "kept" / run
        until = checkpoint.stat().st_mtime
        content = checkpoint.read_bytes()
        for damaged in (content[:-100], b"something else"):
            checkpoint.write_bytes(damaged)
            os.utime(checkpoint, (until, until))
            with pytest.raises(Tampered, match="damaged"):
                session.resume(run)
        checkpoint.write_bytes(content)
        os.utime(checkpoint, (until, until))
        checkpoint.chmod(0o644)
        with pytest.raises(UsageError, match="another user could have written it"):
            session.resume(run)
        checkpoint.chmod(0o600)
        (tmp_path / "mended").touch()
        assert session.resume(run).result(TIMEOUT) == NBYTES


def test_leftovers_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "kept"
    folder.mkdir(parents=True)
    killed, writing = folder / "0101-000000-000000.1", folder / "0101-000000-000000.2"
    killed.touch()
    writing.touch()
    os.utime(killed, (time.time() - 7200, time.time() - 7200))
    Session(folder=str(tmp_path / "data"), workers=1).close()
    assert list(folder.iterdir()) == [writing]


def test_closing_a_session_keeps_the_completed_outputs_of_its_runs(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        run = session.submit(workflow(tmp_path), planner="uniform")
        assert eventually((tmp_path / "waiting").exists)
    with pytest.raises(RunCancelled):
        run.result()
    assert the_run(tmp_path) == run.id


def test_a_run_that_exceeded_its_timeout_says_how_to_resume_it(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    with (
        Session(folder=str(tmp_path / "data"), workers=2) as session,
        pytest.raises(RunTimeout) as caught,
    ):
        session.compute(workflow(tmp_path), planner="uniform", timeout=1.0)
    assert f"resume={the_run(tmp_path)!r}" in "".join(caught.value.__notes__)


PIPELINE = """
import time
from pathlib import Path
from shoal import task

@task
def wait(folder):
    if not (Path(folder) / "mended").exists():
        (Path(folder) / "waiting").touch()
        time.sleep(300)
    return "done"

out = wait(str(Path(__file__).parent))
"""


def test_the_command_line_says_how_to_resume_and_resumes_from_any_folder(tmp_path: Path) -> None:
    """The run's functions are in a module that exists only in the run's folder."""
    (tmp_path / "pipeline_of_test.py").write_text(PIPELINE)
    shoal = [sys.executable, "-m", "shoal.cli.main"]
    folder = ["--set", f"folder={tmp_path / 'data'}"]
    command = [*shoal, "run", "pipeline_of_test.py:out", *folder]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as client:
        assert eventually((tmp_path / "waiting").exists)
        client.send_signal(signal.SIGINT)
        said = client.communicate(timeout=TIMEOUT)[1].decode()
    assert client.returncode == 130
    run = the_run(tmp_path)
    assert f"`shoal resume {run}`" in said
    (tmp_path / "mended").touch()
    command = [*shoal, "resume", run, *folder]
    assert (
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.PIPE).stdout == b"'done'\n"
    )
