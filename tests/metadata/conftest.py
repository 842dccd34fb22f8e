"""Fixtures: a server for histories, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from declared_keys import keys_checked
from shoal.storage.resp import Connection, parse_url
from store_servers import tcp_server, url_of


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    with tcp_server() as port:
        yield url_of(port)


@pytest.fixture
def emptied(server_url: str) -> str:
    """The URL of an empty server."""
    connection = Connection(parse_url(server_url))
    connection.call("FLUSHDB")
    connection.close()
    return server_url


@pytest.fixture(autouse=True, scope="module")
def check_keys_of_scripts() -> Iterator[None]:
    """Make every script of the store fail if it touches a key that it doesn't declare."""
    with keys_checked():
        yield
