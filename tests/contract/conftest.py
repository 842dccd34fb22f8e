"""Every store, and what is needed to have it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from store_examples import Connect

from shoal.storage.base import Store
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.memory import MemoryStore
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Connection, parse_url
from shoal.types import RunId
from store_servers import tcp_server, url_of


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    server = EmbeddedServer()
    yield server.url
    server.close()


@pytest.fixture(scope="session")
def tcp_url() -> Iterator[str]:
    with tcp_server() as port:
        yield url_of(port, db=3)


SERVERS = [pytest.param(name, marks=pytest.mark.real) for name in ("embedded_url", "tcp_url")]


@pytest.fixture(params=["memory", *SERVERS])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Connects to the store, as each process of a run does for itself."""
    if request.param == "memory":
        only = MemoryStore()
        yield lambda: only
        return
    url = request.getfixturevalue(request.param)
    yield from _connecting(url)


def _connecting(url: str) -> Iterator[Connect]:
    made: list[RedisStore] = []

    def connected() -> Store:
        made.append(RedisStore(url))
        return made[-1]

    yield connected
    for store in made:
        store.disconnect()


@pytest.fixture
def store(connect: Connect) -> Store:
    return connect()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection past the store, to look at the server's keys."""
    connection = Connection(parse_url(request.getfixturevalue(request.param)))
    yield connection
    connection.close()


@pytest.fixture
def on_server(server: Connection, request: pytest.FixtureRequest) -> Iterator[Store]:
    """The store on the server of the fixture `server`."""
    store = RedisStore(request.getfixturevalue(request.node.callspec.params["server"]))
    yield store
    store.disconnect()


@pytest.fixture
def run() -> RunId:
    return RunId(f"test-{secrets.token_hex(6)}")
