"""Fixtures: a server for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from declared_keys import keys_checked
from store_servers import tcp_server


@pytest.fixture(scope="session")
def tcp_port() -> Iterator[int]:
    with tcp_server() as port:
        yield port


@pytest.fixture(autouse=True, scope="module")
def check_keys_of_scripts() -> Iterator[None]:
    """Make every script of the store fail if it touches a key that it doesn't declare."""
    with keys_checked():
        yield
