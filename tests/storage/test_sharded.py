"""Faults that only a store on several servers meets; the rest is in the contract."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator

import pytest

from observing import TIMEOUT
from shoal.errors import RunOver, ShardLost, StoreRefused, Tampered
from shoal.storage import chunks, shards
from shoal.storage.base import Completion, Opening
from shoal.storage.cache_shards import ShardedCache, server_cache
from shoal.storage.codec import Blob
from shoal.storage.resp import Connection, parse_url
from shoal.storage.scripts import Script
from shoal.storage.sharded import SMALL, ShardedStore
from shoal.storage.shards import Reference, reference_in
from shoal.types import RunId, WorkerId
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real

w0 = WorkerId("w0")
COUNT = 60
"""Enough outputs that every shard has some, whatever the run's id."""
OUTPUTS: list[tuple[str, Blob]] = [(f"o{n}", [bytes([n]) * (SMALL + 1)]) for n in range(COUNT)]
NAMES = [name for name, _ in OUTPUTS]


@pytest.fixture
def urls(tcp_port: int) -> list[str]:
    """Databases of one server, which a store treats as separate servers."""
    return [url_of(tcp_port, db) for db in (4, 5, 6)]


@pytest.fixture
def databases(urls: list[str]) -> Iterator[list[Connection]]:
    """Direct connections to the servers."""
    found = [Connection(parse_url(url)) for url in urls]
    for each in found:
        each.call("FLUSHDB")
    yield found
    for each in found:
        each.close()


@pytest.fixture
def store(urls: list[str], databases: list[Connection]) -> Iterator[ShardedStore]:
    store = ShardedStore(",".join(urls))
    yield store
    store.disconnect()


@pytest.fixture
def run() -> RunId:
    return RunId(f"test-{secrets.token_hex(6)}")


def away_from_home(databases: list[Connection], run: RunId) -> list[Connection]:
    return [each for each in databases if not each.call("EXISTS", f"shoal:{{{run}}}:state")]


def test_large_outputs_are_on_all_shards_and_small_ones_at_home(
    databases: list[Connection], store: ShardedStore, run: RunId
) -> None:
    store.open(run, Opening([w0]))
    store.complete(run, w0, 1, Completion([*OUTPUTS, ("small", [bytes(SMALL)])]))
    counts = [len(each.call("KEYS", "*:shard:*")) for each in databases]
    assert sum(counts) == COUNT
    assert all(counts)
    found = store.fetch(run, [*NAMES, "small"])
    assert [bytes(data or b"")[:1] for data in found[:-1]] == [bytes([n]) for n in range(COUNT)]
    assert bytes(found[-1] or b"") == bytes(SMALL)
    places = {store.place(run, name, SMALL + 1) for name in NAMES}
    assert store.place(run, "small", SMALL) in places


def test_a_shard_that_lost_an_output_is_reported_by_its_reader(
    databases: list[Connection], store: ShardedStore, run: RunId
) -> None:
    store.open(run, Opening([w0]))
    store.complete(run, w0, 1, Completion(OUTPUTS))
    lost = databases[0].call("KEYS", "*:shard:*")[0]
    databases[0].call("UNLINK", lost)
    with pytest.raises(ShardLost, match="has lost outputs"):
        store.fetch(run, NAMES)


def test_a_shard_that_was_emptied_accepts_nothing_more(
    databases: list[Connection], store: ShardedStore, run: RunId
) -> None:
    """Otherwise a run that has lost outputs could end well."""
    store.open(run, Opening([w0]))
    emptied = away_from_home(databases, run)[0]
    emptied.call("FLUSHDB")
    with pytest.raises(ShardLost, match="has lost outputs"):
        store.complete(run, w0, 1, Completion(OUTPUTS))
    assert emptied.call("KEYS", "*") == []


def test_a_worker_that_comes_after_the_end_is_told_so_and_leaves_nothing(
    databases: list[Connection], store: ShardedStore, run: RunId
) -> None:
    store.open(run, Opening([w0]))
    store.close(run, [w0])
    with pytest.raises(RunOver):
        store.complete(run, w0, 1, Completion(OUTPUTS))
    assert not any(each.call("KEYS", "*") for each in databases)


@pytest.mark.parametrize("nbytes", [SMALL + 1, 3_000_000])
def test_partial_writes_of_a_killed_worker_are_deleted_with_the_run(
    databases: list[Connection],
    store: ShardedStore,
    run: RunId,
    monkeypatch: pytest.MonkeyPatch,
    nbytes: int,
) -> None:
    """It was killed after it had written outputs and before they were saved in the run."""
    monkeypatch.setattr(chunks, "CHUNK", 2**20)
    for module in (chunks, shards):
        monkeypatch.setattr(module, "ACCEPT", Script("return 1"))
    store.open(run, Opening([w0]))
    store._shards.put(run, [(name, [bytes(nbytes)]) for name in NAMES[:6]])
    assert any(each.call("KEYS", "*:shard:*") for each in databases)
    store.close(run, [w0])
    assert not any(each.call("KEYS", "*") for each in databases)


def test_writing_while_a_run_is_closed_leaves_nothing(
    databases: list[Connection], store: ShardedStore, urls: list[str]
) -> None:
    writer = ShardedStore(",".join(urls))
    for number in range(20):
        run = RunId(f"closing-{number}-{secrets.token_hex(4)}")
        store.open(run, Opening([w0]))
        begun = threading.Event()

        def write(run: RunId = run, begun: threading.Event = begun) -> None:
            with contextlib.suppress(ShardLost):
                while True:
                    writer._shards.put(run, OUTPUTS[:10])
                    begun.set()

        thread = threading.Thread(target=write)
        thread.start()
        assert begun.wait(TIMEOUT)
        store.close(run, [w0])
        thread.join()
    writer.disconnect()
    assert not any(each.call("KEYS", "*") for each in databases)


def test_a_worker_overtaken_between_writing_and_saving_leaves_nothing(
    databases: list[Connection], store: ShardedStore, run: RunId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends while one of its workers is between writing to a shard and saving."""
    store.open(run, Opening([w0]))
    put = store._shards.put

    def overtaken(run: RunId, outputs: list[tuple[str, Blob]]) -> list[Reference]:
        references = put(run, outputs)
        store._home(run).close(run, [w0])
        return references

    monkeypatch.setattr(store._shards, "put", overtaken)
    with pytest.raises(RunOver):
        store.complete(run, w0, 1, Completion(OUTPUTS))
    assert not any(each.call("KEYS", "*:shard:*") for each in databases)


def test_resuming_ignores_outputs_that_a_shard_has_lost(
    databases: list[Connection], store: ShardedStore, run: RunId
) -> None:
    store.open(run, Opening([w0], {w0: [b"part"]}))
    store.enter(run, w0, 1)
    store.complete(run, w0, 1, Completion(OUTPUTS))
    emptied = away_from_home(databases, run)[0]
    gone = len(emptied.call("KEYS", "*:shard:*"))
    emptied.call("FLUSHDB")
    claims, _ = store.resume(run, Opening((), {w0: [b"part"]}))
    leftovers = store.enter(run, w0, claims[0].epoch).leftovers
    assert leftovers is not None
    assert len(leftovers.saved) == COUNT - gone
    assert None not in store.fetch(run, sorted(leftovers.saved))
    store.complete(run, w0, claims[0].epoch, Completion(OUTPUTS))
    assert None not in store.fetch(run, NAMES)


def test_a_shard_with_full_memory_is_an_error_with_advice(run: RunId) -> None:
    full = ("--maxmemory", "5mb", "--maxmemory-policy", "noeviction")
    with tcp_server(*full) as a, tcp_server(*full) as b:
        store = ShardedStore(f"{url_of(a)},{url_of(b)}")
        store.open(run, Opening([w0]))

        def fill() -> None:
            for number in range(200):
                store.complete(run, w0, 1, Completion([(f"o{number}", [bytes(500_000)])]))

        with pytest.raises(StoreRefused, match=r"memory is full.*maxmemory"):
            fill()
        store.close(run, [w0])
        for port in (a, b):
            connection = Connection(parse_url(url_of(port)))
            assert connection.call("KEYS", "*") == []
            connection.close()
        store.disconnect()


def test_a_reference_survives_a_round_trip_and_a_damaged_one_is_an_error() -> None:
    reference = Reference("a:1/0", "shoal:{r}:shard:1")
    packed = b"".join(reference.packed())
    assert reference_in(packed) == reference
    assert reference_in(b"SHL1 an output") is None
    assert reference_in(b"") is None
    assert reference_in(None) is None
    for damaged in (packed[:-3], packed[:13] + b"[1]", packed[:13] + b"7"):
        with pytest.raises(Tampered, match="reference to an output is damaged"):
            reference_in(damaged)


def test_a_reference_to_an_unknown_shard_is_an_error(
    urls: list[str], store: ShardedStore, run: RunId
) -> None:
    store.open(run, Opening([w0]))
    store.complete(run, w0, 1, Completion([("o", [b"x"])]))
    strange = b"".join(Reference("elsewhere:1/0", "shoal:{r}:shard:1").packed())
    store._home(run).complete(run, w0, 1, Completion([("o", [strange])]))
    with pytest.raises(ShardLost, match=r"on shard elsewhere:1/0, which store= doesn't name"):
        store.fetch(run, ["o"])


def test_cache_is_spread_over_all_servers(urls: list[str], databases: list[Connection]) -> None:
    cache = server_cache(",".join(urls), 3_000_000)
    assert isinstance(cache, ShardedCache)
    names = [f"task/{number}" for number in range(COUNT)]
    for name in names:
        cache.keep(name, [name.encode()])
    other = server_cache(",".join(reversed(urls)), 3_000_000)
    assert [bytes(other.find(name) or b"") for name in names] == [n.encode() for n in names]
    assert sorted(entry.name for entry in other.entries()) == sorted(names)
    assert all(each.call("KEYS", "*entry*") for each in databases)
    other.remove(names)
    assert cache.entries() == []
    assert "secret" not in cache.where
    cache.close()
    other.close()
