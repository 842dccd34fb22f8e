"""Whatever happens to the store, a run ends with the right result or a clear error."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dropping_proxy import DroppingProxy, at_random
from observing import TIMEOUT, eventually, exists, processes_mentioning
from shoal.client.run import Run
from shoal.errors import (
    RunCancelled,
    RunLost,
    SettingsError,
    StoreRefused,
    StoreUnavailable,
)
from shoal.experiments.tree_reduction import tree_reduction
from shoal.session import Session
from shoal.storage.redis import RedisStore
from shoal.types import WorkerId
from shoal.workflow import Output, Task
from store_servers import Server, serving, tcp_server, url_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def tcp_port() -> Iterator[int]:
    with tcp_server() as port:
        yield port


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a private server, with a path short enough for a socket."""
    base = Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    yield base
    gone = eventually(lambda: not processes_mentioning(str(base)))
    shutil.rmtree(base, ignore_errors=True)
    assert gone, "processes are left over"


def _hold(folder: str, number: int) -> int:
    Path(folder, f"begun-{number}").write_text(str(os.getpid()))
    while not Path(folder, "gate").exists():
        time.sleep(0.005)
    return number


def _add(*numbers: int) -> int:
    return sum(numbers)


def _large(nbytes: int) -> bytes:
    return os.urandom(nbytes)


def _size(*parts: bytes) -> int:
    return sum(len(part) for part in parts)


def held(folder: Path) -> Output[int]:
    """Build tasks that wait until the gate is opened and add up to 28."""
    hold, add = Task(_hold), Task(_add)
    pairs = [add(hold(str(folder), n), hold(str(folder), n + 1)) for n in range(0, 4, 2)]
    return add(add(*pairs), add(10, 12))


def begun(folder: Path, count: int = 2) -> list[int]:
    """Return the processes of the tasks that wait at the gate."""
    assert eventually(lambda: len(list(folder.glob("begun-*"))) >= count)
    assert eventually(lambda: all(path.read_text() for path in folder.glob("begun-*")))
    return [int(path.read_text()) for path in folder.glob("begun-*")]


def open_gate(folder: Path) -> None:
    (folder / "gate").touch()


def store_of(session: Session) -> RedisStore:
    assert isinstance(session.store, RedisStore)
    return session.store


def left(session: Session) -> list[bytes]:
    """Return the keys of runs in the store."""
    found: list[bytes] = store_of(session)._call([["KEYS", "shoal:{[01]*"]])[0]
    return found


def kill_embedded(session: Session) -> None:
    info = str(store_of(session)._call([["INFO", "server"]])[0], "utf-8")
    pid = int(info.partition("process_id:")[2].split()[0])
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not exists(pid))


@pytest.mark.parametrize("seed", range(4))
def test_results_are_right_even_if_connections_drop_before_the_request_arrives(
    tcp_port: int, tmp_path: Path, seed: int
) -> None:
    proxy = DroppingProxy(tcp_port)
    try:
        with Session(store=url_of(proxy.port), workers=4, folder=str(tmp_path)) as session:
            proxy.drops = at_random(seed, 0.2, ("to",))
            total = session.compute(tree_reduction(64), planner="spread", timeout=TIMEOUT)
            proxy.drops = lambda way, data: None
            assert total == [sum(range(64))]
        assert proxy.dropped
    finally:
        proxy.close()


def test_large_outputs_arrive_even_if_connections_drop_while_they_are_sent(
    tcp_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.client.shared_folders.SharedFolders.usable", False)
    proxy = DroppingProxy(tcp_port)
    large, size = Task(_large), Task(_size)
    parts = [large(500_000) for _ in range(8)]
    try:
        with Session(store=url_of(proxy.port), workers=2, folder=str(tmp_path)) as session:
            proxy.drops = at_random(1, 0.02, ("to",))
            sizes = [size(*parts) for _ in range(2)]
            assert session.compute(*sizes, planner="spread", timeout=TIMEOUT) == [4_000_000] * 2
            proxy.drops = lambda way, data: None
            assert left(session) == []
        assert proxy.dropped
    finally:
        proxy.close()


def test_results_are_right_even_if_waiting_connections_drop(tcp_port: int, tmp_path: Path) -> None:
    proxy = DroppingProxy(tcp_port)
    try:
        with Session(store=url_of(proxy.port), workers=2, folder=str(tmp_path)) as session:
            run = session.submit(held(tmp_path), planner="spread")
            begun(tmp_path)
            for _ in range(5):
                proxy.drop_all()
                time.sleep(0.02)
            open_gate(tmp_path)
            assert run.result(TIMEOUT) == 28
        assert proxy.dropped >= 5
    finally:
        proxy.close()


def test_a_store_that_restarts_with_its_file_does_no_harm(tmp_path: Path) -> None:
    with serving(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        server.reached().disconnect()
        with Session(store=server.url, workers=2, durable=True) as session:
            run = session.submit(held(tmp_path), planner="spread")
            begun(tmp_path)
            server.kill()
            assert eventually(lambda: store_of(session)._outage.lasts)
            open_gate(tmp_path)
            server.start()
            assert run.result(TIMEOUT) == 28
            assert left(session) == []


def test_killing_a_durable_embedded_store_does_no_harm(runtime: Path, tmp_path: Path) -> None:
    with Session(durable=True, folder=str(runtime / "data"), workers=2) as session:
        run = session.submit(held(tmp_path), planner="spread")
        begun(tmp_path)
        kill_embedded(session)
        open_gate(tmp_path)
        assert run.result(TIMEOUT) == 28
        assert left(session) == []
        kill_embedded(session)
        assert session.compute(tree_reduction(16)) == [sum(range(16))]


def test_killing_the_embedded_store_ends_the_run_but_not_the_session(
    runtime: Path, tmp_path: Path
) -> None:
    with Session(folder=str(runtime / "data"), workers=2) as session:
        run = session.submit(held(tmp_path), planner="spread")
        pids = begun(tmp_path)
        kill_embedded(session)
        with pytest.raises(RunLost, match=rf"run {run.id} is lost.*Run it again.*durable=True"):
            run.result(TIMEOUT)
        assert not any(exists(pid) for pid in pids)
        assert session.compute(tree_reduction(16)) == [sum(range(16))]
        assert left(session) == []


@pytest.mark.parametrize("copied", [False, True], ids=["empty", "from an old copy"])
def test_a_store_that_lost_its_data_ends_the_run_as_lost(tmp_path: Path, copied: bool) -> None:
    with serving(tmp_path) as server:
        server.reached().disconnect()
        with Session(store=server.url, workers=2, folder=str(tmp_path)) as session:
            run = session.submit(held(tmp_path), planner="spread")
            pids = begun(tmp_path)
            if copied:
                store_of(session)._call([["SAVE"]])
            server.kill()
            server.start()
            with pytest.raises(RunLost, match="was restarted without its data"):
                run.result(TIMEOUT)
            assert not any(exists(pid) for pid in pids)
            open_gate(tmp_path)
            assert session.compute(held(tmp_path), planner="spread") == [28]


def test_a_run_whose_data_was_deleted_is_reported_as_lost(session: Session, tmp_path: Path) -> None:
    run = session.submit(held(tmp_path), planner="spread")
    begun(tmp_path)
    store_of(session)._call([["UNLINK", *left(session)]])
    with pytest.raises(RunLost, match="or the data was deleted"):
        run.result(TIMEOUT)


def test_a_result_that_has_arrived_survives_the_loss_of_the_store(
    tcp_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data are lost while the client waits for a timeline that never arrives."""
    await_outputs = Run._await_outputs

    def lose_data(run: Run) -> None:
        await_outputs(run)
        run._reports._unfinished.add(WorkerId("never"))
        store_of(session)._call([["FLUSHDB"]])

    monkeypatch.setattr(Run, "_await_outputs", lose_data)
    with Session(store=url_of(tcp_port, db=2), workers=2, folder=str(tmp_path)) as session:
        assert session.compute(tree_reduction(16)) == [sum(range(16))]


def test_durable_is_rejected_with_a_store_that_keeps_nothing(tcp_port: int) -> None:
    with pytest.raises(SettingsError, match=r"keeps nothing on disk.*appendonly yes"):
        Session(store=url_of(tcp_port), durable=True)


@pytest.mark.parametrize("planner", ["spread", "wukong"])
@pytest.mark.parametrize("nbytes", [40_000, 400_000])
def test_a_full_memory_ends_the_run_with_advice_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planner: str, nbytes: int
) -> None:
    monkeypatch.setattr("shoal.client.shared_folders.SharedFolders.usable", False)
    with (
        tcp_server("--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as port,
        Session(store=url_of(port), workers=2, folder=str(tmp_path)) as session,
    ):
        large, size = Task(_large), Task(_size)
        parts = [large(nbytes) for _ in range(24_000_000 // nbytes)]
        sizes = [size(*parts) for _ in range(2)]
        with pytest.raises(StoreRefused, match=r"memory is full.*store_memory_mb"):
            session.compute(*sizes, planner=planner, timeout=TIMEOUT)
        assert left(session) == []
        assert session.compute(tree_reduction(16)) == [sum(range(16))]


def test_a_full_disk_ends_the_run_with_advice(tmp_path: Path) -> None:
    """A server that can't save its snapshots rejects every write."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with serving(disk, "--save", "3600 1000000") as server:
        server.reached().disconnect()
        with Session(store=server.url, workers=2, folder=str(tmp_path)) as session:
            run = session.submit(held(tmp_path), planner="spread")
            begun(tmp_path)
            disk.rmdir()
            store_of(session)._call([["BGSAVE"]])
            assert eventually(lambda: writing_is_refused(session))
            open_gate(tmp_path)
            with pytest.raises(StoreRefused, match=r"can't write to its disk.*Make room") as caught:
                run.result(TIMEOUT)
            assert "tries again when it is closed" in "".join(caught.value.__notes__)
            assert left(session)
            store_of(session)._call([["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]])
            assert not writing_is_refused(session)
        with Session(store=server.url, folder=str(tmp_path)) as session:
            assert not left(session)


def test_a_full_disk_of_the_client_is_an_error_before_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as server:
        server.reached().disconnect()
        folder = tmp_path / "data"
        with Session(store=server.url, workers=1, folder=str(folder), history=False) as session:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
            try:
                with pytest.raises(
                    StoreRefused, match=r"resume run .* can't be written.*Make room"
                ):
                    session.compute(tree_reduction(4))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert [*(folder / "unfinished").iterdir()] == []
            assert session.compute(tree_reduction(4)) == [6]


def writing_is_refused(session: Session) -> bool:
    try:
        store_of(session)._call([["SET", "probe", "1"]])
    except StoreRefused:
        return True
    return False


def away(server: Server, session: Session, folder: Path) -> Run:
    """A run whose store has just stopped."""
    run = session.submit(held(folder), planner="spread", progress=True)
    begun(folder)
    server.kill()
    assert eventually(lambda: store_of(session)._outage.lasts)
    return run


def threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name.startswith("shoal-run")}


def test_cancelling_does_not_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.reached().disconnect()
        with Session(store=server.url, workers=2, reconnect_seconds=TIMEOUT * 10) as session:
            run = away(server, session, tmp_path)
            pids = begun(tmp_path)
            canceller = threading.Thread(target=run.cancel, daemon=True)
            canceller.start()
            canceller.join(TIMEOUT)
            assert not canceller.is_alive()
            with pytest.raises(RunCancelled):
                run.result(0)
            assert not any(exists(pid) for pid in pids)
    assert eventually(lambda: not threads())


def test_closing_does_not_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.reached().disconnect()
        session = Session(store=server.url, workers=2, reconnect_seconds=TIMEOUT * 10)
        run = away(server, session, tmp_path)
        closer = threading.Thread(target=session.close, daemon=True)
        closer.start()
        closer.join(TIMEOUT)
        assert not closer.is_alive()
        with pytest.raises(RunCancelled):
            run.result(0)
    assert eventually(lambda: not threads())


def test_a_store_that_stays_away_ends_the_run_and_the_error_says_how_long_it_was_tried(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server:
        server.reached().disconnect()
        with Session(store=server.url, workers=2, reconnect_seconds=0.5) as session:
            run = away(server, session, tmp_path)
            pids = begun(tmp_path)
            with pytest.raises(StoreUnavailable, match=r"not answered for \d\.\d s.*is 0\.5"):
                run.result(TIMEOUT)
            assert not any(exists(pid) for pid in pids)
