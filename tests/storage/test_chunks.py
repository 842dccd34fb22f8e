"""Outputs longer than the server's limit are stored in chunks, on every kind of store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from dropping_proxy import DroppingProxy
from shoal.errors import RunOver, ShardLost, StoreRefused, Tampered
from shoal.storage import chunks, keys
from shoal.storage.base import Completion, Opening
from shoal.storage.cache_server import ServerCache
from shoal.storage.chunks import Chunks, chunks_in, cut
from shoal.storage.codec import Blob
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Connection, parse_url
from shoal.storage.sharded import ShardedStore
from shoal.types import RunId, WorkerId
from store_servers import tcp_server, url_of

w0 = WorkerId("w0")
MB = 2**20
LONG = secrets.token_bytes(5 * MB + 1)


def test_splitting_copies_nothing_and_loses_nothing() -> None:
    whole = bytearray(b"0123456789")
    blob: Blob = [b"ab", memoryview(whole), b"", b"cd"]
    found = list(cut(blob, 4))
    assert [b"".join(piece) for piece in found] == [b"ab01", b"2345", b"6789", b"cd"]
    whole[2:4] = b"XY"
    assert b"".join(found[1]) == b"XY45"
    assert list(cut([b"", b""], 4)) == []


def test_a_list_of_chunks_is_distinguished_from_an_output_and_checked() -> None:
    listed = Chunks(5 * MB + 1, MB, "key")
    assert chunks_in(b"".join(listed.packed())) == listed
    assert list(listed) == [f"key:{number}" for number in range(6)]
    assert chunks_in(b"SHL1") is None
    assert chunks_in(b"") is None
    assert chunks_in(None) is None


@pytest.mark.parametrize(
    "told", [b"{", b"[1]", b'[0, 1048576, "k"]', b'[5, 1, "k"]', b'[1e400, 1, "k"]', b"[" * 9999]
)
def test_a_damaged_list_of_chunks_is_rejected(told: bytes) -> None:
    with pytest.raises(Tampered, match="chunks is damaged"):
        chunks_in(b"\0shoal pieces\0" + told)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with tcp_server("--proto-max-bulk-len", "1mb") as port:
        yield port


@pytest.fixture
def run() -> RunId:
    return RunId(f"test-{secrets.token_hex(6)}")


@pytest.fixture
def store(port: int) -> Iterator[RedisStore]:
    store = RedisStore(url_of(port))
    yield store
    store.disconnect()


def saved(store: RedisStore | ShardedStore, run: RunId) -> None:
    store.open(run, Opening([w0]))
    store.complete(run, w0, 1, Completion([("a", [LONG])]))


def piece_keys(port: int, run: RunId) -> list[str]:
    connection = Connection(parse_url(url_of(port)))
    found = connection.call("SMEMBERS", keys.chunks(run))
    connection.close()
    return sorted(str(key, "utf-8") for key in found)


@pytest.mark.real
def test_a_chunk_is_as_long_as_the_server_accepts(store: RedisStore, port: int, run: RunId) -> None:
    saved(store, run)
    assert store.most_nbytes() == MB
    assert [store._call([["STRLEN", key]])[0] for key in piece_keys(port, run)] == [*[MB] * 5, 1]
    found = store.fetch(run, ["a"])[0]
    assert found == LONG
    assert not memoryview(found).readonly
    store.close(run, [w0])


@pytest.mark.real
@pytest.mark.parametrize("way", ["to", "from"])
def test_a_dropped_connection_repeats_a_chunk_and_not_the_output(
    port: int, run: RunId, way: str
) -> None:
    """The connection breaks after every two and a half chunks."""
    moved = 0

    def drops(direction: str, data: bytes) -> int | None:
        nonlocal moved
        moved += len(data) if direction == way else 0
        if moved < 2.5 * MB:
            return None
        moved = 0
        return 0

    proxy = DroppingProxy(port)
    store = RedisStore(url_of(proxy.port))
    store.open(run, Opening([w0]))
    if way == "to":
        proxy.drops = drops
    store.complete(run, w0, 1, Completion([("a", [LONG])]))
    proxy.drops = drops
    assert store.fetch(run, ["a"])[0] == LONG
    assert proxy.dropped >= 2
    store.close(run, [w0])
    store.disconnect()
    proxy.close()


@pytest.mark.real
def test_an_output_with_a_missing_chunk_is_missing(
    store: RedisStore, port: int, run: RunId
) -> None:
    saved(store, run)
    store._call([["UNLINK", piece_keys(port, run)[2]]])
    assert store.fetch(run, ["a"]) == [None]
    store.close(run, [w0])


@pytest.mark.real
def test_a_run_closed_while_its_output_is_read_has_ended(
    store: RedisStore, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(store, run)
    read = store._read_into

    def closing(place: memoryview, key: str) -> bool:
        store.close(run, [w0])
        return read(place, key)

    monkeypatch.setattr(store, "_read_into", closing)
    with pytest.raises(RunOver):
        store.fetch(run, ["a"])


@pytest.mark.real
def test_a_chunk_of_the_wrong_length_is_rejected(store: RedisStore, port: int, run: RunId) -> None:
    saved(store, run)
    store._call([["APPEND", piece_keys(port, run)[5], "x"]])
    with pytest.raises(Tampered, match="has the wrong length"):
        store.fetch(run, ["a"])
    store.close(run, [w0])


@pytest.mark.real
def test_a_shard_that_lost_a_chunk_is_reported_by_its_reader(port: int, run: RunId) -> None:
    urls = [url_of(port, db) for db in (4, 5)]
    store = ShardedStore(",".join(urls))
    saved(store, run)
    assert store.fetch(run, ["a"])[0] == LONG
    for url in urls:
        connection = Connection(parse_url(url))
        for key in connection.call("KEYS", "*:3"):
            connection.call("UNLINK", key)
        connection.close()
    with pytest.raises(ShardLost, match="has lost outputs"):
        store.fetch(run, ["a"])
    store.close(run, [w0])
    store.disconnect()


@pytest.mark.real
def test_a_server_that_hides_its_limits_gets_the_usual_ones(
    tcp_port: int, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Connection(parse_url(url_of(tcp_port)))
    admin.call("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-config")
    store = RedisStore(f"redis://plain:secret@127.0.0.1:{tcp_port}")
    assert store.most_nbytes() == 512 * MB
    monkeypatch.setattr(chunks, "CHUNK", 2 * MB)
    saved(store, run)
    assert len(store._call([["SMEMBERS", keys.chunks(run)]])[0]) == 3
    assert store.fetch(run, ["a"])[0] == LONG
    store.close(run, [w0])
    store.disconnect()
    admin.call("ACL", "DELUSER", "plain")
    admin.close()


@pytest.mark.real
def test_a_single_value_that_is_too_long_is_rejected_at_once(
    store: RedisStore, port: int, run: RunId
) -> None:
    said = r"A worker.s part of the plan has 5,242,881 bytes.* takes 1,048,576 at once.*proto-max"
    with pytest.raises(StoreRefused, match=said):
        store.open(run, Opening([w0], parts={w0: [LONG]}))
    cache = ServerCache(url_of(port), 100 * MB)
    with pytest.raises(StoreRefused, match="takes 1,048,576 at once"):
        cache.keep("name", [LONG])
    cache.close()


@pytest.mark.real
def test_chunks_rejected_for_lack_of_memory_are_deleted_with_the_run(run: RunId) -> None:
    with tcp_server("--proto-max-bulk-len", "1mb", "--maxmemory", "8mb") as port:
        store = RedisStore(url_of(port))
        store.open(run, Opening([w0]))
        with pytest.raises(StoreRefused, match="memory is full"):
            store.complete(run, w0, 1, Completion([("a", [LONG, LONG, LONG])]))
        assert piece_keys(port, run)
        store.close(run, [w0])
        assert store._call([["DBSIZE"]]) == [0]
        store.disconnect()


@pytest.mark.real
def test_an_output_in_chunks_survives_archiving(store: RedisStore, run: RunId) -> None:
    """A chunk may be as long as the server accepts, so a checkpoint holds it in several pieces."""
    saved(store, run)
    found = list(store.pieces(run, ()))
    store.close(run, [w0])
    for piece in found:
        store.put_back(run, [piece])
    found = store.fetch(run, ["a"])[0]
    assert found is not None
    assert bytes(found) == LONG
    store.close(run, [w0])
    assert store._call([["KEYS", f"{keys.of_run(run)}*"]])[0] == []
