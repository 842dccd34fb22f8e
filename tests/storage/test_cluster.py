"""Faults that only a store in a cluster meets; the rest is in the contract."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from observing import TIMEOUT, eventually
from shoal.errors import StoreInterrupted, StoreRefused, StoreUnavailable
from shoal.storage import keys
from shoal.storage.base import Completion, Opening
from shoal.storage.cache_shards import server_cache
from shoal.storage.cluster import ClusterConnection, even_tags, slot_of
from shoal.storage.keys import CLIENT
from shoal.storage.letters import OutputReady, Received
from shoal.storage.resp import Connection, parse_url
from shoal.storage.sharded import ShardedStore, open_store
from shoal.types import RunId, TaskId, WorkerId
from store_servers import cluster_server, url_of

pytestmark = pytest.mark.real

w0 = WorkerId("w0")
LARGE = 100_000


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    with cluster_server(tmp_path_factory.mktemp("cluster")) as ports:
        yield ports


@pytest.fixture
def nodes(ports: list[int]) -> Iterator[list[Connection]]:
    """Direct connections to the servers."""
    nodes = [Connection(parse_url(url_of(port))) for port in ports]
    yield nodes
    for node in nodes:
        node.close()


def url_in(port: int) -> str:
    return url_of(port).replace("redis:", "redis+cluster:")


@pytest.fixture
def store(ports: list[int]) -> Iterator[ShardedStore]:
    store = open_store(url_in(ports[0]))
    assert isinstance(store, ShardedStore)
    yield store
    store.disconnect()


@pytest.fixture
def run() -> RunId:
    return RunId(f"test-{secrets.token_hex(6)}")


def test_slots_are_computed_as_by_the_server(nodes: list[Connection]) -> None:
    for key in (keys.state(RunId("r1")), keys.shard("r1/7"), keys.history_runs(), "shoal:{ü}:x"):
        assert slot_of(key) == nodes[0].call("CLUSTER", "KEYSLOT", key)


def test_slot_that_has_moved_is_followed(
    nodes: list[Connection], store: ShardedStore, run: RunId
) -> None:
    """The connection's slot map is outdated: the node says so, and the map is read again."""
    ids = [str(node.call("CLUSTER", "MYID"), "utf-8") for node in nodes]
    slot = slot_of(keys.state(run))
    owner = next(n for n, node in enumerate(nodes) if _serves(node, ids[n], slot))
    other = (owner + 1) % len(nodes)
    assert store.progress(run) == 0  # loads the slot map
    for node in (nodes[other], nodes[owner], *nodes):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", ids[other])
    store.open(run, Opening([w0], outputs={"A": [bytes(LARGE)]}))
    assert nodes[other].call("EXISTS", keys.state(run)) == 1
    store.post(run, OutputReady(TaskId("o")))
    assert [letter for _, letter in store.receive(run, CLIENT, "", 0)] == [OutputReady(TaskId("o"))]
    assert bytes(store.fetch(run, ["A"])[0] or b"") == bytes(LARGE)
    store.close(run, [w0])


def _serves(node: Connection, me: str, slot: int) -> bool:
    ranges = node.call("CLUSTER", "SLOTS")
    return any(
        first <= slot <= last and str(primary[2], "utf-8") == me for first, last, primary in ranges
    )


def test_other_nodes_replace_the_one_in_the_url(
    ports: list[int], store: ShardedStore, run: RunId
) -> None:
    store.open(run, Opening([w0]))
    home = store._home(run)
    assert {address.port for address in home._seeds} == set(ports)
    home._seeds = [address for address in home._seeds if address.port != ports[0]]
    assert home._connection is not None
    home._connection.interrupt()
    store.complete(run, w0, 1, Completion(executed=1))
    assert store.progress(run) == 1
    store.close(run, [w0])


def test_a_standalone_server_is_not_mistaken_for_a_cluster(tcp_port: int) -> None:
    with pytest.raises(StoreRefused, match=r"is no cluster.*Use redis://"):
        open_store(url_in(tcp_port))


def test_a_closed_connection_opens_no_further_node(ports: list[int]) -> None:
    connection = ClusterConnection([parse_url(url_of(ports[0]))])
    connection.hang_up()
    for port in ports:
        key = next(key for n in range(1000) if _is_at(connection, key := f"shoal:{{{n}}}", port))
        with pytest.raises(StoreInterrupted):
            connection.call("GET", key)


def _is_at(connection: ClusterConnection, key: str, port: int) -> bool:
    return connection.owner(key).port == port


def test_an_unreachable_cluster_is_an_immediate_error() -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1 can't be reached"):
        open_store("redis+cluster://127.0.0.1:1")


def test_cache_works_in_a_cluster(ports: list[int]) -> None:
    cache = server_cache(url_in(ports[2]), 2000)
    for number in range(3):
        cache.keep(f"task/{number}", [bytes(1000)])
    assert cache.find("task/0") is None
    assert [entry.name for entry in cache.entries()] == ["task/1", "task/2"]
    cache.remove(["task/1", "task/2"])
    assert cache.entries() == []
    cache.close()


def test_nothing_of_a_run_is_left_on_any_node(
    nodes: list[Connection], store: ShardedStore, run: RunId
) -> None:
    outputs = {f"o{number}": [bytes(LARGE)] for number in range(30)}
    store.open(run, Opening([w0], outputs=outputs))
    assert all(node.call("KEYS", f"*{run}*") for node in nodes)
    store.close(run, [w0])
    assert not any(node.call("KEYS", f"*{run}*") for node in nodes)


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[tuple[Connection, ShardedStore]]:
    """A cluster of one node, which is down while one of its slots is unassigned."""
    with cluster_server(tmp_path, count=1) as (port,):
        node, store = Connection(parse_url(url_of(port))), open_store(url_in(port))
        assert isinstance(store, ShardedStore)
        yield node, store
        store.disconnect()
        node.close()


def free_slot(run: RunId) -> int:
    """Return a slot that neither the run nor any of its outputs uses."""
    taken = {slot_of(keys.state(run)), *(slot_of(f"{{{tag}}}") for tag in even_tags(run, 24))}
    return next(slot for slot in range(16384) if slot not in taken)


def test_receiving_survives_a_short_outage_of_the_cluster(
    lonely: tuple[Connection, ShardedStore], run: RunId
) -> None:
    """A node tells a blocked client that the cluster is down."""
    node, store = lonely
    store.open(run, Opening([w0]))
    found: list[Received | Exception] = []

    def receive() -> None:
        try:
            found.extend(store.receive(run, CLIENT, "", TIMEOUT))
        except Exception as error:  # noqa: BLE001 - it is looked at below
            found.append(error)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    assert eventually(lambda: b"blocked_clients:1" in bytes(node.call("INFO", "clients")))
    node.call("CLUSTER", "DELSLOTS", free_slot(run))
    assert eventually(lambda: b"blocked_clients:0" in bytes(node.call("INFO", "clients")))
    node.call("CLUSTER", "ADDSLOTS", free_slot(run))
    assert eventually(lambda: b"cluster_state:ok" in bytes(node.call("CLUSTER", "INFO")))
    store.post(run, OutputReady(TaskId("o")))
    thread.join(TIMEOUT)
    assert [each.letter if isinstance(each, Received) else each for each in found] == [
        OutputReady(TaskId("o"))
    ]


def test_cluster_that_stays_down_is_unavailable(
    lonely: tuple[Connection, ShardedStore], run: RunId
) -> None:
    node, store = lonely
    store.open(run, Opening([w0]))
    node.call("CLUSTER", "DELSLOTS", free_slot(run))
    assert eventually(lambda: b"cluster_state:fail" in bytes(node.call("CLUSTER", "INFO")))
    impatient = open_store(f"{url_in(node.address.port)}?reconnect_seconds=0.2", known=True)
    for say in (
        lambda: impatient.open(RunId(f"{run}-2"), Opening([w0])),
        lambda: impatient.complete(run, w0, 1, Completion([("A", [bytes(LARGE)])])),
        lambda: impatient.fetch(run, ["A"]),
        lambda: impatient.receive(run, CLIENT, "", TIMEOUT),
        lambda: impatient.close(run, [w0]),
    ):
        with pytest.raises(StoreUnavailable, match="CLUSTERDOWN"):
            say()
    impatient.disconnect()
