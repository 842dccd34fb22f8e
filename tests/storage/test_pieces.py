"""Outputs that a server doesn't take at once go in pieces, on every kind of store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from dropping_proxy import DroppingProxy
from shoal.errors import RunOver, ShardLost, StoreRefused, Tampered
from shoal.storage import keys, pieces
from shoal.storage.base import Completion, Opening
from shoal.storage.cacheserver import ServerCache
from shoal.storage.codec import Blob
from shoal.storage.pieces import Pieces, cut, pieces_in
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Connection, parse_url
from shoal.storage.sharded import ShardedStore
from shoal.types import RunId, WorkerId
from store_servers import tcp_server, url_of

w0 = WorkerId("w0")
MB = 2**20
LONG = secrets.token_bytes(5 * MB + 1)


def test_cutting_copies_nothing_and_loses_nothing() -> None:
    whole = bytearray(b"0123456789")
    blob: Blob = [b"ab", memoryview(whole), b"", b"cd"]
    found = list(cut(blob, 4))
    assert [b"".join(piece) for piece in found] == [b"ab01", b"2345", b"6789", b"cd"]
    whole[2:4] = b"XY"
    assert b"".join(found[1]) == b"XY45"
    assert list(cut([b"", b""], 4)) == []


def test_list_of_pieces_is_told_from_an_output_and_checked() -> None:
    listed = Pieces(5 * MB + 1, MB, "key")
    assert pieces_in(b"".join(listed.packed())) == listed
    assert list(listed) == [f"key:{number}" for number in range(6)]
    assert pieces_in(b"SHL1") is None
    assert pieces_in(b"") is None
    assert pieces_in(None) is None


@pytest.mark.parametrize(
    "told", [b"{", b"[1]", b'[0, 1048576, "k"]', b'[5, 1, "k"]', b'[1e400, 1, "k"]', b"[" * 9999]
)
def test_damaged_list_of_pieces_is_refused(told: bytes) -> None:
    with pytest.raises(Tampered, match="pieces is damaged"):
        pieces_in(b"\0shoal pieces\0" + told)


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
    found = connection.call("SMEMBERS", keys.pieces(run))
    connection.close()
    return sorted(str(key, "utf-8") for key in found)


@pytest.mark.real
def test_piece_is_as_long_as_the_server_takes(store: RedisStore, port: int, run: RunId) -> None:
    saved(store, run)
    assert store.most_nbytes() == MB
    assert [store._call([["STRLEN", key]])[0] for key in piece_keys(port, run)] == [*[MB] * 5, 1]
    found = store.fetch(run, ["a"])[0]
    assert found == LONG
    assert not memoryview(found).readonly
    store.close(run, [w0])


@pytest.mark.real
@pytest.mark.parametrize("way", ["to", "from"])
def test_connection_that_breaks_costs_a_piece_and_not_the_output(
    port: int, run: RunId, way: str
) -> None:
    """The connection breaks after every two and a half pieces."""
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
def test_output_whose_piece_is_gone_is_missing(store: RedisStore, port: int, run: RunId) -> None:
    saved(store, run)
    store._call([["UNLINK", piece_keys(port, run)[2]]])
    assert store.fetch(run, ["a"]) == [None]
    store.close(run, [w0])


@pytest.mark.real
def test_run_that_is_closed_while_its_output_is_read_is_over(
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
def test_piece_of_another_length_is_refused(store: RedisStore, port: int, run: RunId) -> None:
    saved(store, run)
    store._call([["APPEND", piece_keys(port, run)[5], "x"]])
    with pytest.raises(Tampered, match="not as long as it was"):
        store.fetch(run, ["a"])
    store.close(run, [w0])


@pytest.mark.real
def test_shard_that_has_lost_a_piece_is_told_by_who_looks_for_it(port: int, run: RunId) -> None:
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
def test_server_that_does_not_tell_its_limits_is_taken_to_have_the_usual_ones(
    tcp_port: int, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Connection(parse_url(url_of(tcp_port)))
    admin.call("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-config")
    store = RedisStore(f"redis://plain:secret@127.0.0.1:{tcp_port}")
    assert store.most_nbytes() == 512 * MB
    monkeypatch.setattr(pieces, "PIECE", 2 * MB)
    saved(store, run)
    assert len(store._call([["SMEMBERS", keys.pieces(run)]])[0]) == 3
    assert store.fetch(run, ["a"])[0] == LONG
    store.close(run, [w0])
    store.disconnect()
    admin.call("ACL", "DELUSER", "plain")
    admin.close()


@pytest.mark.real
def test_what_has_to_be_one_value_and_is_too_long_is_refused_at_once(
    store: RedisStore, port: int, run: RunId
) -> None:
    said = r"What a worker is to run has 5,242,881 bytes.* takes 1,048,576 at once.*proto-max"
    with pytest.raises(StoreRefused, match=said):
        store.open(run, Opening([w0], parts={w0: [LONG]}))
    cache = ServerCache(url_of(port), 100 * MB)
    with pytest.raises(StoreRefused, match="takes 1,048,576 at once"):
        cache.keep("name", [LONG])
    cache.close()


@pytest.mark.real
def test_full_memory_refuses_pieces_and_the_run_takes_them_with_it(run: RunId) -> None:
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
def test_output_in_pieces_comes_back_from_an_archive(store: RedisStore, run: RunId) -> None:
    """A piece may be as long as the server takes, so an archive holds it as several."""
    saved(store, run)
    archived = list(store.pieces(run, ()))
    store.close(run, [w0])
    for piece in archived:
        store.put_back(run, [piece])
    found = store.fetch(run, ["a"])[0]
    assert found is not None
    assert bytes(found) == LONG
    store.close(run, [w0])
    assert store._call([["KEYS", f"{keys.of_run(run)}*"]])[0] == []
