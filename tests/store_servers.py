"""TCP servers for tests: with a password, in a cluster, or to be killed."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from observing import TIMEOUT, eventually
from shoal import system
from shoal.errors import StoreUnavailable
from shoal.storage import keeper
from shoal.storage.embedded import server_binary
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Connection, parse_url

PASSWORD = "open sesame"


def free_port() -> int:
    """Return a port that no other test process or client gets."""
    while True:
        port = next(_ports)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


_AT_ONCE, _FIRST, _SHARE = 4, 12_000, 4_000
_number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _AT_ONCE
_ports = itertools.cycle(range(_FIRST + _number * _SHARE, _FIRST + (_number + 1) * _SHARE))
"""This process's share of the ports below those that systems assign to clients."""


@contextmanager
def tcp_server(*options: str) -> Iterator[int]:
    """Run a server on loopback until the block or its process ends, and yield its port."""
    port = free_port()
    command = [str(server_binary()), "--port", str(port), "--bind", "127.0.0.1", "--dir", "/"]
    command += ["--requirepass", PASSWORD, "--save", "", "--appendonly", "no", *options]
    way = "signal" if system.LINUX else "watch"
    with tempfile.NamedTemporaryFile() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        subprocess.run(
            [sys.executable, keeper.__file__, way, held.name, f"{held.name}.sock", *command],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        assert eventually(lambda: reachable(url_of(port)))
        yield port
    assert eventually(lambda: not reachable(url_of(port)))


@contextmanager
def cluster_server(folder: Path, *more: str, count: int = 3) -> Iterator[list[int]]:
    """Run a cluster whose nodes share all slots evenly, and yield their ports."""
    with ExitStack() as stack:
        ports: list[int] = []
        for number in range(count):
            options = cluster_options(folder / f"{number}.conf")
            ports.append(stack.enter_context(tcp_server(*options, *more)))
        form_cluster([url_of(port) for port in ports])
        yield ports


def form_cluster(urls: list[str]) -> None:
    """Assign slots to the nodes, and introduce them to each other."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(closing(Connection(parse_url(url)))) for url in urls]
        _form(nodes)


def _form(nodes: list[Connection]) -> None:
    ends = [16384 * number // len(nodes) for number in range(len(nodes) + 1)]
    for number, node in enumerate(nodes):
        node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        node.call("CLUSTER", "ADDSLOTSRANGE", ends[number], ends[number + 1] - 1)
    for other in nodes[1:]:
        bus = other.call("CONFIG", "GET", "cluster-port")[1]
        nodes[0].call("CLUSTER", "MEET", "127.0.0.1", other.address.port, bus)

    def agreed() -> bool:
        return all(
            b"cluster_state:ok" in bytes(node.call("CLUSTER", "INFO"))
            and len(node.call("CLUSTER", "SLOTS")) == len(nodes)
            for node in nodes
        )

    assert eventually(agreed)


def url_of(port: int, db: int = 0) -> str:
    """Return the URL of a server that `tcp_server` started."""
    return f"redis://:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/{db}"


def reachable(url: str) -> bool:
    """Return whether a server answers."""
    try:
        Connection(parse_url(url)).close()
    except StoreUnavailable:
        return False
    return True


def waiting_clients(url: str) -> int:
    """Return how many clients are blocked until a message arrives."""
    with closing(Connection(parse_url(url))) as connection:
        clients = bytes(connection.call("CLIENT", "LIST")).decode().splitlines()
    return sum("b" in client.partition(" flags=")[2].partition(" ")[0] for client in clients)


def cluster_options(config: Path) -> list[str]:
    """Return the options that make a server a node of a new cluster."""
    named = ["--cluster-config-file", str(config), "--cluster-port", str(free_port())]
    return ["--cluster-enabled", "yes", *named]


class Server:
    """A server that can be killed and restarted."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        where = f"--port {self.port} --bind 127.0.0.1 --dir {folder} --loglevel warning"
        self._command = [str(server_binary()), *where.split(" "), "--save", "", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def refuse_a_client(self) -> None:
        """Occupy the killed server's port until a client has tried to reach it in vain."""
        with socket.create_server(("127.0.0.1", self.port)) as instead:
            instead.settimeout(TIMEOUT)
            instead.accept()[0].close()

    def reached(self, query: str = "") -> RedisStore:
        return eventually(lambda: self._reached(query))  # type: ignore[return-value]

    def _reached(self, query: str) -> RedisStore | None:
        try:
            return RedisStore(self.url + query)
        except StoreUnavailable:
            return None


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    server = Server(folder, *options)
    try:
        yield server
    finally:
        server.kill()
