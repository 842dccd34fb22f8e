"""Fixtures: the servers behind stores."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from declared_keys import keys_checked
from shoal.errors import StoreRefused
from shoal.storage.base import Store
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.resp import Connection, parse_url, urls_in
from shoal.storage.sharded import open_store
from shoal.types import RunId
from store_servers import cluster_server, tcp_server, url_of

SHORT = ("--proto-max-bulk-len", "1mb")
"""The lowest limit on a value that servers accept, so that a few megabytes are many chunks."""


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    server = EmbeddedServer()
    yield server.url
    server.close()


@pytest.fixture(scope="session")
def tcp_url() -> Iterator[str]:
    with tcp_server(*SHORT) as port:
        yield url_of(port, db=3)


@pytest.fixture(scope="session")
def sharded_url() -> Iterator[str]:
    with tcp_server(*SHORT) as a, tcp_server(*SHORT) as b, tcp_server(*SHORT) as c:
        yield ",".join(url_of(port) for port in (a, b, c))


@pytest.fixture(scope="session")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster_server(tmp_path_factory.mktemp("cluster"), *SHORT) as ports:
        yield ",".join(url_of(port).replace("redis:", "redis+cluster:") for port in ports)


URLS = ("embedded_url", "tcp_url", "sharded_url", "cluster_url")
SERVERS = [pytest.param(name, marks=pytest.mark.real) for name in URLS]


class Servers:
    """Direct connections to all servers of a store, to inspect their keys."""

    def __init__(self, url: str) -> None:
        self._connections = [Connection(parse_url(each)) for each in urls_in(url)]

    def call(self, *command: str) -> Any:
        """Send a command to all servers; merge lists, or take the reply of the one with the key."""
        replies = [each.pipeline([command])[0] for each in self._connections]
        found = [reply for reply in replies if not isinstance(reply, StoreRefused)]
        if isinstance(found[0], list):
            return [item for reply in found for item in reply]
        return max(found)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Servers]:
    servers = Servers(request.getfixturevalue(request.param))
    yield servers
    servers.close()


@pytest.fixture
def on_server(server: Servers, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store on the servers of the fixture `server`."""
    store = open_store(request.getfixturevalue(request.node.callspec.params["server"]))
    yield store
    store.disconnect()


@pytest.fixture
def run() -> RunId:
    return RunId(f"test-{secrets.token_hex(6)}")


@pytest.fixture(autouse=True, scope="module")
def check_keys_of_scripts() -> Iterator[None]:
    """Every script of the store fails here if it touches a key that it doesn't declare."""
    with keys_checked():
        yield
