"""Jobs that stay, for real: they are replaced when they die, and reveal no secret."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engines_here import ENGINES, parameters

from observing import eventually
from shoal import Resources, Session, Task, task
from shoal.cli.main import main
from shoal.errors import TaskError
from shoal.storage.resp import Connection, parse_url
from shoal.system import shared_folder
from store_servers import PASSWORD

pytestmark = pytest.mark.real

_STAY = ("process", "slurm", "docker", "podman", "ray")


@pytest.fixture(scope="module", params=parameters(*_STAY))
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("data")
    with (
        ENGINES[request.param](folder) as (platform, store),
        Session(platform=platform, store=store, folder=str(folder), workers=2) as opened,
    ):
        yield opened


def scheme(session: Session) -> str:
    return str(session.settings.platform).partition(":")[0]


def handle_of(session: Session, run: str) -> str:
    """The engine's handle of the job that works for a run."""
    platform: Any = session.platform
    found = [job for job, record in platform._board.jobs().items() if record.run == run]
    return str(platform._starter._jobs[found[0]].handle) if found else ""


def test_a_run_finds_the_jobs_that_were_warmed(session: Session) -> None:
    platform: Any = session.platform
    assert session.warm(2) == 2
    assert eventually(lambda: len(platform._board.jobs()) >= 2)
    warmed = set(platform._board.jobs())
    assert session.compute(Task(abs)(-1), Task(abs)(-2), planner="spread") == [1, 2]
    assert set(platform._board.jobs()) <= warmed


def test_the_command_warms_an_engine(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"--set={name}={getattr(session.settings, name)}"
             for name in ("platform", "store", "folder")]  # fmt: skip
    assert main(["warm", "1", *given]) == 0
    assert f"1 worker ready or starting on {scheme(session)}://" in capsys.readouterr().out


@task
def waiting(store: str, flag: str) -> int:
    """Wait in vain the first time."""
    with closing(Connection(parse_url(store))) as connection:
        begun = int(connection.call("INCR", flag))
    if begun == 1:
        time.sleep(600)
    return begun


def begun(session: Session, flag: str) -> bool:
    with closing(Connection(parse_url(str(session.settings.store)))) as connection:
        return connection.call("GET", flag) is not None


def test_a_job_that_is_killed_at_work_is_replaced(session: Session) -> None:
    """No lease expires within the test: only who watches the jobs can find that out."""
    run = session.submit(waiting(str(session.settings.store), "killed"), lease=3600)
    assert eventually(lambda: begun(session, "killed"))
    assert eventually(lambda: handle_of(session, run.id))
    platform: Any = session.platform
    platform._engine.kill(handle_of(session, run.id))
    assert run.result() == 2


SHOWN = {
    "process": [["cat", "/proc/{0}/cmdline", "/proc/{0}/environ"]],
    "slurm": [
        ["scontrol", "show", "job", "--details", "{0}"],
        ["scontrol", "write", "batch_script", "{0}", "-"],
    ],
    "docker": [["docker", "inspect", "{0}"]],
    "podman": [["podman", "inspect", "{0}"]],
}
"""The commands that show a job, by the engine's scheme."""


def test_nothing_that_an_engine_shows_of_a_job_is_secret(session: Session) -> None:
    if scheme(session) not in SHOWN:
        pytest.skip("what Ray shows is read in test_ray.py")
    run = session.submit(waiting(str(session.settings.store), "shown"))
    assert eventually(lambda: handle_of(session, run.id))
    platform: Any = session.platform
    for command in SHOWN[scheme(session)]:
        words = [word.format(handle_of(session, run.id)) for word in command]
        shown = subprocess.run(words, capture_output=True, check=True).stdout
        assert shown
        assert PASSWORD.encode() not in shown
        assert PASSWORD.replace(" ", "%20").encode() not in shown
        assert platform._deployment.key.hex().encode() not in shown
    run.cancel()


@task(resources=Resources(192))
def touching(mb: int) -> int:
    """Use memory that resource limits don't count."""
    with mmap.mmap(-1, mb * 2**20) as memory:
        for page in range(0, mb * 2**20, mmap.PAGESIZE):
            memory[page] = 1
        return len(memory)


@task(resources=Resources(192))
def taking_the_job_along(mb: int) -> int:
    """Use such memory so that the job is killed with its task."""
    Path("/proc/1/oom_score_adj").write_text("1000")
    size: int = touching.function(mb)
    return size


@pytest.mark.parametrize("spared", [True, False])
def test_a_container_that_runs_out_of_memory_gets_more(session: Session, spared: bool) -> None:
    if scheme(session) != "docker" and not (spared and scheme(session) == "podman"):
        pytest.skip("only Docker says that a container was killed for its memory")
    using = touching if spared else taking_the_job_along  # the second mustn't know of the first
    run = session.submit(using(320))
    assert run.result() == 320 * 2**20
    assert max(run.needs.values()) >= 384


@task
def large(_seed: int) -> bytes:
    return bytes(8 * 2**20)


@task
def copies_beside(data: bytes, _number: int) -> list[str]:
    """The copies that this machine has of what the store has."""
    assert data == bytes(8 * 2**20)
    found = shared_folder().glob("copies-*/*")
    return [path.name for path in found if path.stat().st_size > len(data)]


@task
def at_once(flag: str, store: str) -> int:
    """Wait until both are there."""
    with closing(Connection(parse_url(store))) as connection:
        connection.call("INCR", flag)
        assert eventually(lambda: int(connection.call("GET", flag)) == 2)
    return 0


def test_jobs_of_a_machine_keep_large_outputs_in_its_memory_for_each_other(
    session: Session,
) -> None:
    """A container has a memory of its own. Both jobs are up when the output is made."""
    store = str(session.settings.store)
    together = [Task(at_once.function, name=f"at_once_{n}")("both", store) for n in range(2)]
    session.compute(together, planner="spread")
    output = large(0)
    seen = session.compute([copies_beside(output, number) for number in range(6)])
    assert any(seen) == (scheme(session) not in ("docker", "podman"))
    assert eventually(lambda: not list(shared_folder().glob("copies-*")))


@task
def elsewhere() -> str:
    return os.uname().nodename


def test_a_job_that_does_not_come_up_ends_the_run_with_what_it_said(
    session: Session, tmp_path: Path
) -> None:
    platform = str(session.settings.platform)
    broken = {
        "slurm": (f"{platform}&python=/missing/python", "/missing/python"),
        "docker": (f"{platform}&network=none", "can't be reached"),
        "podman": (f"{platform}&network=none", "can't be reached"),
    }
    if scheme(session) not in broken:
        pytest.skip("its jobs always come up")
    url, said = broken[scheme(session)]
    store = session.settings.store
    with (
        Session(platform=url, store=store, folder=str(tmp_path), workers=1) as other,
        pytest.raises(TaskError, match=said),
    ):
        other.compute(elsewhere())
