"""A gateway on another machine, or in a container on this one, runs what one beside us does."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually
from other_machine import NEEDED, OtherMachine
from shoal import Farm, Resources, Session, Task, farm
from shoal.errors import RunCancelled, UsageError
from shoal.storage.resp import Connection, parse_url
from store_servers import tcp_server, url_of
from tls_proxy import tls_in_front

pytestmark = [pytest.mark.engine, pytest.mark.real, NEEDED]

MB = 1024 * 1024
PACKAGE = """
    from shoal import task


    @task
    def doubled(text: str) -> str:
        return _repeated(text, 2)


    @task
    def joined(*texts: str) -> str:
        return ",".join(texts)


    def _repeated(text: str, times: int) -> str:
        return text * times
"""


@pytest.fixture(scope="module", params=["container", "machine"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    machine = OtherMachine(folder / "other", container=request.param == "container")
    package = folder / "far_package"
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(PACKAGE))
    machine.install(package)
    return machine


@pytest.fixture(scope="module")
def access(machine: OtherMachine) -> Iterator[dict[str, str]]:
    """What a session is opened with to use a gateway there, and a store."""
    with tcp_server() as port, machine.gateway() as gateway:
        yield {"store": url_of(port), **gateway}


@pytest.fixture(scope="module")
def remote(access: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = str(tmp_path_factory.mktemp("client"))
    with Session(**access, folder=folder, workers=2) as session:
        yield session


def counter(url: str) -> Callable[[str], int]:
    """A function that counts on the store how often it was called with a name, from anywhere."""

    def count(name: str) -> int:
        with closing(Connection(parse_url(url))) as connection:
            return int(connection.call("INCR", f"test:{name}"))

    return count


def waiting(url: str, began: str, until: str) -> Callable[[int], int]:
    """A task that waits until a name has been counted on the store."""

    def wait(number: int) -> int:
        with closing(Connection(parse_url(url))) as connection:
            connection.call("INCR", f"test:{began}")
            while not connection.call("EXISTS", f"test:{until}"):
                time.sleep(0.01)
        return number + 1

    return wait


def idle(session: Session) -> bool:
    status: Callable[[], dict[str, Any]] = session.platform.status  # type: ignore[attr-defined]
    return status()["busy"] == 0


def counted(session: Session, name: str) -> Any:
    with closing(Connection(parse_url(session.store.url))) as connection:
        return connection.call("EXISTS", f"test:{name}")


@pytest.mark.parametrize("megabytes", [8, 16])
@pytest.mark.parametrize("planner", ["auto", "uniform", "wukong"])
def test_large_constants_and_outputs_reach_workers_and_client(
    remote: Session, megabytes: int, planner: str
) -> None:
    given = os.urandom(megabytes * MB)
    same = Task(lambda data: data[:])(given)
    half = Task(lambda data: data[: len(data) // 2])(given)
    assert remote.compute(same, half, planner=planner, timeout=TIMEOUT) == [
        given,
        given[: len(given) // 2],
    ]


def test_the_workers_see_none_of_the_clients_folders(remote: Session, tmp_path: Path) -> None:
    def seen(path: str) -> bool:
        return os.path.exists(path)

    assert remote.compute(Task(seen)(str(tmp_path)), Task(seen)(__file__)) == [False, False]


def test_functions_of_an_installed_package_are_found_there(
    remote: Session, machine: OtherMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(machine.folder.parent))
    import far_package  # type: ignore[import-not-found]

    output = far_package.joined(far_package.doubled("a"), far_package.doubled("b"))
    assert remote.compute(output, timeout=TIMEOUT) == ["aa,bb"]


def test_a_store_over_tls_is_verified_there(
    machine: OtherMachine, access: dict[str, str], certificate: Path, tmp_path: Path
) -> None:
    """The remote workers have no file with the authority: what is in it travels with the URL."""
    port = parse_url(access["store"]).port
    with tls_in_front(certificate, port) as secured:
        store = url_of(secured).replace("redis:", "rediss:") + f"?ca_file={certificate}"
        with Session(**{**access, "store": store}, folder=str(tmp_path)) as session:
            cached = Task(lambda data: data[::-1], cache="v1")
            for _ in range(2):
                assert session.compute(cached(b"abc"), timeout=TIMEOUT) == [b"cba"]


def test_outputs_are_cached_on_the_stores_server(remote: Session) -> None:
    count = counter(remote.store.url)
    counting = Task(lambda number: count("cached") + number, cache="v1", name="counting")
    assert [remote.compute(counting(40), timeout=TIMEOUT) for _ in range(2)] == [[41], [41]]


def test_a_container_with_this_machines_shared_memory_uses_it(
    access: dict[str, str], tmp_path: Path
) -> None:
    container = OtherMachine(tmp_path / "other", container=True, shares_memory=True)
    given = os.urandom(16 * MB)
    with (
        container.gateway() as gateway,
        Session(**{**access, **gateway}, folder=str(tmp_path / "client")) as session,
    ):
        run = session.submit(Task(lambda data: data[::-1])(given), planner="uniform")
        assert run.result(TIMEOUT) == given[::-1]
        assert run.shared is not None


def test_an_embedded_store_is_refused_before_anything_runs(
    access: dict[str, str], tmp_path: Path
) -> None:
    given = {"platform": access["platform"], "token": access["token"], "folder": str(tmp_path)}
    with Session(**given) as session:
        with pytest.raises(UsageError, match="can't reach the embedded store"):
            session.compute(Task(abs)(-1))
        with pytest.raises(UsageError, match="store="), Farm(abs, session=session):
            pass


def test_what_tasks_print_comes_back(remote: Session) -> None:
    run = remote.submit(Task(lambda: print("hello from afar"))())
    run.result(TIMEOUT)
    assert eventually(lambda: [line.text for line in run.logs()]) == ["hello from afar"]


def test_cancelling_ends_running_tasks(remote: Session) -> None:
    run = remote.submit(Task(waiting(remote.store.url, "cancelled-began", "never"))(1))
    assert eventually(lambda: counted(remote, "cancelled-began"))
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result()
    assert eventually(lambda: idle(remote))


def test_a_detached_run_goes_on_and_is_attached_to(
    access: dict[str, str], remote: Session, tmp_path: Path
) -> None:
    wait = waiting(access["store"], "detached-began", "detached-go")
    with Session(**access, folder=str(tmp_path)) as session:
        run = session.submit(Task(lambda n: n * 2)(Task(wait)(20)), detach=True).id
    assert eventually(lambda: counted(remote, "detached-began"))
    counter(access["store"])("detached-go")
    with Session(**access, folder=str(tmp_path)) as session:
        assert session.attach(run).result(TIMEOUT) == 42


def test_a_killed_worker_is_replaced(remote: Session) -> None:
    count = counter(remote.store.url)

    def fragile(number: int) -> int:
        if count("killed") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    output = Task(lambda a, b: a + b)(Task(fragile)(1), Task(fragile)(2))
    assert remote.compute(output, timeout=TIMEOUT) == [3]


@pytest.mark.parametrize("variables", [{}, {"SHOAL_PORTABLE": "1"}])
def test_a_task_that_runs_out_of_memory_gets_more(
    machine: OtherMachine, access: dict[str, str], tmp_path: Path, variables: dict[str, str]
) -> None:
    """There are no control groups: resource limits apply, or workers watch their own memory."""

    def allocate(megabytes: int) -> int:
        held = b"x" * (megabytes * 1024 * 1024)
        time.sleep(0.3)  # where memory is watched, nobody may look before
        return len(held)

    with (
        machine.gateway(**variables) as other,
        Session(**{**access, **other}, folder=str(tmp_path)) as session,
    ):
        run = session.submit(Task(allocate, resources=Resources(memory_mb=256, cpus=1))(400))
        assert run.result(TIMEOUT) == 400 * MB
        assert [*run.needs.values()] == [512]


def test_a_farm_of_200_tasks_runs_there(remote: Session) -> None:
    def squared(number: int) -> int:
        return number**2

    with Farm(squared, autoscaler=farm.Fixed(2), session=remote) as squares:
        assert list(squares.map(range(200))) == [number**2 for number in range(200)]
