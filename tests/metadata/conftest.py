"""A server for histories, empty for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.storage.resp import Connection, parse_url
from store_servers import tcp_server, url_of


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    with tcp_server() as port:
        yield url_of(port)


@pytest.fixture
def emptied(server_url: str) -> str:
    """The URL of a server without keys."""
    connection = Connection(parse_url(server_url))
    connection.call("FLUSHDB")
    connection.close()
    return server_url
