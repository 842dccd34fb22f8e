"""The durable embedded server, and its memory limit."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from observing import eventually, exists, processes_mentioning
from shoal.errors import RunOver, StoreRefused, StoreUnavailable
from shoal.storage import embedded
from shoal.storage.base import Completion, Opening
from shoal.storage.embedded import EmbeddedServer, default_memory_mb, server_binary
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Connection, parse_url
from shoal.types import RunId, WorkerId

pytestmark = pytest.mark.real

w0 = WorkerId("w0")
run = RunId("test-durable")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a durable server's file, with a path short enough for a socket."""
    base = Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    yield base / "data" / "store"
    gone = eventually(lambda: not processes_mentioning(str(base)))
    shutil.rmtree(base, ignore_errors=True)
    assert gone, "the server is still there"


@contextmanager
def durable(folder: Path, memory_mb: int | None = None) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(folder, memory_mb)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def connected(server: EmbeddedServer) -> Iterator[Connection]:
    connection = Connection(parse_url(server.url))
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def stored(server: EmbeddedServer) -> Iterator[RedisStore]:
    store = RedisStore(server.url, revive=server.revive)
    try:
        yield store
    finally:
        store.disconnect()


def process_of(server: EmbeddedServer) -> int:
    with connected(server) as connection:
        info = str(connection.call("INFO", "server"), "utf-8")
    return int(info.partition("process_id:")[2].split()[0])


def kill(server: EmbeddedServer) -> None:
    pid = process_of(server)
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not exists(pid))


def ended(folder: Path) -> None:
    """Wait until the server has ended after its last client."""
    assert eventually(lambda: not processes_mentioning(str(folder)))


def test_acknowledged_data_survive_a_killed_server(
    folder: Path,
) -> None:
    with durable(folder) as server:
        with connected(server) as connection:
            for number in range(500):
                connection.call("SET", f"key{number}", number)
        kill(server)
    with durable(folder) as server, connected(server) as connection:
        found = connection.call("MGET", *(f"key{number}" for number in range(500)))
        assert [int(value) for value in found] == list(range(500))


def test_acknowledged_data_survive_the_exit_of_all_clients(folder: Path) -> None:
    with durable(folder) as server, connected(server) as connection:
        connection.call("SET", "key", "value")
    ended(folder)
    with durable(folder) as server, connected(server) as connection:
        assert connection.call("GET", "key") == b"value"


def test_nothing_is_acknowledged_before_it_is_on_the_disk(folder: Path) -> None:
    with durable(folder) as server, connected(server) as connection:
        assert connection.call("CONFIG", "GET", "appendonly")[1] == b"yes"
        assert connection.call("CONFIG", "GET", "appendfsync")[1] == b"always"


@pytest.mark.parametrize("kept", [True, False])
def test_a_remaining_client_restarts_the_killed_server(folder: Path, kept: bool) -> None:
    server = EmbeddedServer(folder if kept else None)
    try:
        with stored(server) as store:
            assert store.durable == kept
            store.open(run, Opening([w0]))
            store.complete(run, w0, 1, Completion([("a", [b"a"]), ("A", [bytes(100_000)])]))
            kill(server)
            if kept:
                small, large = store.fetch(run, ["a", "A"])
                assert small == b"a"
                assert bytes(large or b"") == bytes(100_000)
            else:
                with pytest.raises(RunOver):
                    store.fetch(run, ["a"])
                store.open(run, Opening([w0]))
            store.close(run, [w0])
    finally:
        server.close()


def test_the_durable_server_is_separate_from_the_ordinary_one(folder: Path) -> None:
    with durable(folder) as one, durable(folder.with_name("other")) as two:
        volatile = EmbeddedServer()
        try:
            assert len({process_of(server) for server in (one, two, volatile)}) == 3
        finally:
            volatile.close()


def test_clients_share_a_durable_server_and_nobody_else_can_read_its_file(folder: Path) -> None:
    with durable(folder) as one, durable(folder) as other:
        assert process_of(one) == process_of(other)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        written = [path for path in folder.rglob("*") if path.is_file()]
        assert {"server.log", "file.lock"} < {path.name for path in written}
        assert any(path.suffix == ".aof" for path in written)
        assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}


def test_a_server_that_does_not_answer_keeps_its_file_locked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers that write to one file would corrupt it."""
    with durable(folder) as server:
        pid = process_of(server)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr("shoal.storage.resp._CONNECT_SECONDS", 0.05)
        monkeypatch.setattr(embedded, "_START_SECONDS", 0.1)
        with pytest.raises(StoreUnavailable, match=r"file\.lock has been locked"):
            EmbeddedServer(folder)
        os.kill(pid, signal.SIGCONT)
        assert process_of(server) == pid


def test_the_lock_lasts_as_long_as_the_server_even_without_its_keeper(folder: Path) -> None:
    with durable(folder) as server:
        descriptors = Path(f"/proc/{process_of(server)}/fd").iterdir()
        assert folder.resolve() / "file.lock" in [path.resolve() for path in descriptors]


def increments(folder: Path) -> Path:
    (found,) = (folder / "appendonlydir").glob("*.incr.aof")
    return found


def filled_and_killed(folder: Path) -> Path:
    with durable(folder) as server:
        with connected(server) as connection:
            for number in range(100):
                connection.call("SET", f"key{number}", number)
        kill(server)
    ended(folder)
    return increments(folder)


def test_a_file_truncated_at_its_end_is_repaired(folder: Path) -> None:
    """The machine failed while it wrote the last command, which was never acknowledged."""
    file = filled_and_killed(folder)
    os.truncate(file, file.stat().st_size - 5)
    with durable(folder) as server, connected(server) as connection:
        assert connection.call("GET", "key98") == b"98"
        assert connection.call("GET", "key99") is None
        connection.call("SET", "key99", "again")
        kill(server)
    with durable(folder) as server, connected(server) as connection:
        assert connection.call("GET", "key99") == b"again"


def test_a_file_damaged_elsewhere_is_an_error_with_advice(folder: Path) -> None:
    file = filled_and_killed(folder)
    content = bytearray(file.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = b"?" * 40
    file.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="can't start with its file") as caught:
        EmbeddedServer(folder)
    for said in (str(folder), file.name, "valkey-check-aof --fix", "move the folder away"):
        assert said in str(caught.value)
    assert file.read_bytes() == bytes(content)
    shutil.rmtree(folder / "appendonlydir")
    with durable(folder) as server, connected(server) as connection:
        assert connection.call("DBSIZE") == 0


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """Limit the file size of processes started in the block, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_with_advice_and_loses_nothing_acknowledged(folder: Path) -> None:
    with files_of_at_most(300_000):
        server = EmbeddedServer(folder)
    try:
        with stored(server) as store:
            store.open(run, Opening([w0]))
            store.complete(run, w0, 1, Completion([("a", [b"a"])]))
            with pytest.raises(StoreRefused, match=r"disk is full.*Make room") as caught:
                store.complete(run, w0, 1, Completion([("A", [bytes(400_000)])]))
            assert str(folder) in str(caught.value)
            assert store.fetch(run, ["a", "A"]) == [b"a", None]  # there is space again
            store.close(run, [w0])
    finally:
        server.close()


def test_a_full_disk_is_an_error_even_if_the_log_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_DIED_OF_DISK", ())  # as if it had logged nothing
    server = None
    try:
        with files_of_at_most(40_000):
            server = EmbeddedServer(folder)
            with stored(server) as store:
                store.open(run, Opening([w0]))
                for _ in range(2):
                    with pytest.raises(StoreRefused, match=r"disk is full.*Make room"):
                        store.complete(run, w0, 1, Completion([("A", [bytes(400_000)])]))
    finally:
        if server is not None:
            server.close()


def test_a_disk_that_is_full_from_the_start_is_an_error_with_advice(folder: Path) -> None:
    with files_of_at_most(0), pytest.raises(StoreRefused, match=r"disk is full.*Make room"):
        EmbeddedServer(folder)
    with durable(folder) as server, connected(server) as connection:
        assert connection.call("DBSIZE") == 0


def killed_when_started(folder: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Let so many servers be killed before they answer; return the list of starts."""
    script = folder.with_name("killed")
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o700)
    starts: list[int] = []

    def binary() -> Path:
        starts.append(len(starts))
        return script if len(starts) <= times else server_binary()

    monkeypatch.setattr(embedded, "server_binary", binary)
    return starts


def test_a_server_killed_while_it_starts_is_restarted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled_and_killed(folder)
    starts = killed_when_started(folder, monkeypatch, 2)
    with durable(folder) as server, connected(server) as connection:
        assert connection.call("GET", "key99") == b"99"
    assert len(starts) == 3


def test_a_server_killed_at_every_start_is_not_reported_as_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled_and_killed(folder)
    killed_when_started(folder, monkeypatch, 100)
    with pytest.raises(
        StoreUnavailable, match=r"something kills it.*Its file is unchanged"
    ) as told:
        EmbeddedServer(folder)
    assert "damaged" not in str(told.value)


def test_a_folder_that_cannot_be_created_is_an_error_with_advice(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    with pytest.raises(StoreUnavailable, match=r"can't keep its file in.*Set another folder"):
        EmbeddedServer(folder)


def test_a_full_server_rejects_writes_but_allows_deletes(folder: Path) -> None:
    with durable(folder, memory_mb=5) as server, stored(server) as store:
        store.open(run, Opening([w0]))

        def fill() -> None:
            for number in range(200):
                store.complete(run, w0, 1, Completion([(f"o{number}", [bytes(100_000)])]))

        with pytest.raises(StoreRefused, match=r"memory is full.*store_memory_mb"):
            fill()
        assert bytes(store.fetch(run, ["o0"])[0] or b"") == bytes(100_000)
        store.close(run, [w0])
        assert store._call([["KEYS", "shoal:*"]]) == [[]]


def test_the_server_may_use_half_of_the_memory_by_default(folder: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    assert 64 <= default_memory_mb() <= total // 2
    with durable(folder) as server, connected(server) as connection:
        limit = int(connection.call("CONFIG", "GET", "maxmemory")[1])
        assert limit == default_memory_mb() * 2**20
        assert connection.call("CONFIG", "GET", "maxmemory-policy")[1] == b"noeviction"
