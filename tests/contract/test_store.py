"""Every store passes the contract suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.storage.base import Store
from shoal.storage.sharded import open_store
from shoal.testing import MemoryStore, StoreContract
from shoal.testing.store_examples import Connect


def connecting(url: str) -> Iterator[Connect]:
    made: list[Store] = []

    def connected() -> Store:
        made.append(open_store(url))
        return made[-1]

    yield connected
    for store in made:
        store.disconnect()


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def connect(self) -> Connect:
        only = MemoryStore()
        return lambda: only


@pytest.mark.real
class TestEmbeddedServer(StoreContract):
    @pytest.fixture
    def connect(self, embedded_url: str) -> Iterator[Connect]:
        yield from connecting(embedded_url)


@pytest.mark.real
class TestServerOverTcp(StoreContract):
    @pytest.fixture
    def connect(self, tcp_url: str) -> Iterator[Connect]:
        yield from connecting(tcp_url)


@pytest.mark.real
class TestShards(StoreContract):
    @pytest.fixture
    def connect(self, sharded_url: str) -> Iterator[Connect]:
        yield from connecting(sharded_url)


@pytest.mark.real
class TestCluster(StoreContract):
    @pytest.fixture
    def connect(self, cluster_url: str) -> Iterator[Connect]:
        yield from connecting(cluster_url)
