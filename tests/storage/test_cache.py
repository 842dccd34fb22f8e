"""Caches in a folder and on a server: entries are found, bounded, and trusted only if signed."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import StoreRefused
from shoal.storage import keys
from shoal.storage.cache import Cache, cache_key, entry_name, sealed, unsealed
from shoal.storage.cache_folder import FolderCache
from shoal.storage.cache_server import ServerCache
from shoal.storage.resp import Connection, parse_url
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real

KEY = b"k" * 32
Opened = Callable[[int], Cache]


@pytest.fixture(params=["folder", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, tcp_port: int) -> Iterator[Opened]:
    """A function that opens a cache of so many bytes; all that it opens share their entries."""
    url = url_of(tcp_port, db=7)
    connection = Connection(parse_url(url))
    connection.call("FLUSHDB")
    connection.close()
    made: list[Cache] = []

    def opened(nbytes: int = 10**6) -> Cache:
        found = FolderCache(tmp_path / "cache", nbytes)
        made.append(found if request.param == "folder" else ServerCache(url, nbytes))
        return made[-1]

    yield opened
    for cache in made:
        cache.close()


def names(cache: Cache) -> set[str]:
    return {entry.name for entry in cache.entries()}


def test_an_entry_is_found_unchanged_by_other_clients_too(opened: Opened) -> None:
    opened(10**6).keep("task/a", [b"one", memoryview(b"two")])
    found = opened(10**6).find("task/a")
    assert found is not None
    assert bytes(found) == b"onetwo"


def test_nothing_is_found_in_an_empty_cache(opened: Opened) -> None:
    cache = opened(10**6)
    assert cache.find("task/a") is None
    assert cache.entries() == []
    cache.remove(["task/a"])


def test_entries_have_a_task_and_a_size(opened: Opened) -> None:
    cache = opened(10**6)
    cache.keep(entry_name("my task/..", "d1"), [b"12345"])
    (entry,) = cache.entries()
    assert (entry.task, entry.nbytes) == ("my task/..", 5)


@pytest.mark.parametrize("task", [".", "..", "a/b", "ü" * 300, "%41", "#?&"])
def test_an_entry_of_any_task_name_stays_inside_the_cache(opened: Opened, task: str) -> None:
    cache = opened(10**6)
    cache.keep(entry_name(task, "d1"), [b"1"])
    assert cache.find(entry_name(task, "d1")) is not None
    assert len(cache.entries()) == 1


def test_the_least_recently_used_entry_goes_first(opened: Opened) -> None:
    cache = opened(1000)
    for name in "abcde":
        cache.keep(f"task/{name}", [bytes(180)])
        _age(cache)
    assert cache.find("task/a") is not None
    _age(cache)
    cache.keep("task/f", [bytes(180)])
    kept = names(cache)
    assert {"task/a", "task/f"} <= kept
    assert "task/b" not in kept


def test_the_cache_never_exceeds_its_bound(opened: Opened) -> None:
    cache = opened(1000)
    for number in range(40):
        opened(1000).keep(f"task/{number}", [bytes(10 * number)])
        assert sum(entry.nbytes for entry in cache.entries()) <= 1000
    assert names(cache)


def test_an_entry_larger_than_the_bound_is_not_kept_and_evicts_nothing(opened: Opened) -> None:
    cache = opened(1000)
    cache.keep("task/a", [bytes(500)])
    cache.keep("task/b", [bytes(1001)])
    assert names(cache) == {"task/a"}


def test_an_entry_kept_twice_counts_once(opened: Opened) -> None:
    cache = opened(1000)
    for _ in range(10):
        cache.keep("task/a", [bytes(400)])
    cache.keep("task/b", [bytes(400)])
    assert names(cache) == {"task/a", "task/b"}


def test_a_removed_entry_makes_room(opened: Opened) -> None:
    cache = opened(1000)
    cache.keep("task/a", [bytes(800)])
    cache.keep("other/b", [bytes(100)])
    cache.remove(["task/a"])
    assert names(cache) == {"other/b"}
    cache.keep("task/c", [bytes(800)])
    assert names(cache) == {"other/b", "task/c"}


def test_many_writers_of_the_same_entries_do_no_harm(opened: Opened) -> None:
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            cache = opened(100_000)
            for i in range(30):
                cache.keep(f"task/{i % 10}", sealed(i % 10, f"task/{i % 10}", KEY))
                found = cache.find(f"task/{number % 10}")
                if found is not None:
                    assert unsealed(found, f"task/{number % 10}", KEY) == (number % 10,)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert names(opened(100_000)) == {f"task/{i}" for i in range(10)}


def _age(cache: Cache) -> None:
    """Make all entries older, because file timestamps may be coarse."""
    if isinstance(cache, FolderCache):
        for path in Path(cache.where).glob("entries/*/*"):
            used = path.stat().st_mtime - 10
            os.utime(path, (used, used))


# In a folder.


def test_only_the_owner_can_read_a_folder_and_its_entries(tmp_path: Path) -> None:
    FolderCache(tmp_path / "cache", 1000).keep("task/a", [b"1"])
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077


def test_a_damaged_size_counter_is_rebuilt(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path, 1000)
    for name in "ab":
        cache.keep(f"task/{name}", [bytes(400)])
    (tmp_path / "nbytes").write_text("garbage")
    cache.keep("task/c", [bytes(400)])
    assert sum(entry.nbytes for entry in cache.entries()) <= 1000


def test_leftovers_of_a_writer_that_died_are_removed(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path, 1000)
    cache.keep("task/a", [b"1"])
    left = tmp_path / "unfinished" / "0123"
    left.write_bytes(b"half")
    cache.keep("task/b", [b"1"])
    assert left.exists(), "its writer may be at work"
    os.utime(left, (1e9, 1e9))
    cache.keep("task/c", [b"1"])
    assert not left.exists()


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path, 1000)
    (tmp_path / "entries" / "task" / "a").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        cache.keep("task/a", [b"1"])
    assert list((tmp_path / "unfinished").iterdir()) == []


# On a server.


def test_a_full_server_rejects_an_entry_and_counts_nothing() -> None:
    with tcp_server("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as port:
        cache = ServerCache(url_of(port), 10**9)
        with pytest.raises(StoreRefused, match="memory is full"):
            _fill(cache)
        cache.remove(names(cache))
        cache.keep("task/a", [bytes(1000)])
        assert names(cache) == {"task/a"}
        cache.close()


def _fill(cache: Cache) -> None:
    for number in range(100):
        cache.keep(f"task/{number}", [bytes(200_000)])


def test_an_uncounted_entry_expires_and_a_counted_one_stays(tcp_port: int) -> None:
    url = url_of(tcp_port, db=8)
    cache, connection = ServerCache(url, 1000), Connection(parse_url(url))
    connection.call("FLUSHDB")
    cache.keep("task/a", [b"1"])
    assert connection.call("TTL", keys.cache_entry("task/a")) == -1
    cache.close()
    connection.close()


# Seals.


@pytest.mark.parametrize("value", [None, 3, "text", {"a": [1, (2,)]}, {1, 2}])
def test_a_sealed_value_survives_a_round_trip(value: Any) -> None:
    assert unsealed(b"".join(sealed(value, "task/a", KEY)), "task/a", KEY) == (value,)


def test_a_cached_array_is_writable() -> None:
    entry = bytearray(b"".join(sealed(np.arange(1000), "task/a", KEY)))
    found = unsealed(entry, "task/a", KEY)
    assert found is not None
    found[0][0] = 7
    assert found[0].sum() == sum(range(1000)) + 7


@pytest.mark.parametrize("at", [0, 10, 45, 80, 130, -1])
def test_any_changed_byte_invalidates_an_entry(at: int) -> None:
    entry = bytearray(b"".join(sealed(np.arange(100), "task/a", KEY)))
    entry[at] ^= 1
    assert unsealed(entry, "task/a", KEY) is None


def test_an_entry_truncated_anywhere_is_invalid() -> None:
    entry = b"".join(sealed(np.arange(10), "task/a", KEY))
    for length in range(len(entry)):
        assert unsealed(entry[:length], "task/a", KEY) is None


def test_an_entry_under_another_name_or_key_is_invalid() -> None:
    entry = b"".join(sealed(1, "task/a", KEY))
    assert unsealed(entry, "task/b", KEY) is None
    assert unsealed(entry, "task/a", b"x" * 32) is None


def test_the_key_is_created_once_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    key = cache_key(folder)
    assert len(key) == 32
    assert cache_key(folder) == key
    assert [path.name for path in folder.iterdir()] == ["cache.key"]
    assert stat.S_IMODE((folder / "cache.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("harm", ["readable", "short"])
def test_a_key_that_is_damaged_or_readable_by_others_is_replaced(tmp_path: Path, harm: str) -> None:
    key, path = cache_key(tmp_path), tmp_path / "cache.key"
    if harm == "readable":
        path.chmod(0o644)
    else:
        path.write_bytes(b"short")
    assert len(cache_key(tmp_path)) == 32
    assert cache_key(tmp_path) != key
