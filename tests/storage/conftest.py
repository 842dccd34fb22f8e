"""A server for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store_servers import tcp_server


@pytest.fixture(scope="session")
def tcp_port() -> Iterator[int]:
    with tcp_server() as port:
        yield port
