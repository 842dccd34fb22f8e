"""`ServerCache`: the cache on a Valkey or Redis server, shared by workers on many machines.

A command of its own writes an entry, with a time to live, because a script copies its arguments.
The script that counts the entry then removes the time to live. An entry that is never counted
expires.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from shoal.storage import keys
from shoal.storage.cache import CacheEntry
from shoal.storage.chunks import ChunkClient
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.resp import Arg
from shoal.storage.scripts import load

_UNCOUNTED_SECONDS = 3600
"""When an entry expires that was written and not counted."""

_ADD = load("cache/add")
_REMOVE = load("cache/remove")

_BATCH = 1000


class ServerCache(ChunkClient):
    """A cache that all clients of a server share."""

    def __init__(self, url: str, nbytes: int, latency: float = 0.0) -> None:
        """Use the server at a URL for at most so many bytes."""
        super().__init__(url, latency)
        self._nbytes = nbytes

    @property
    def where(self) -> str:
        """The server, without the password."""
        return f"the store at {self._address}"

    def find(self, name: str) -> Buffer | None:
        """Return an entry, and record that it was used."""
        entry: Buffer | None = self._call(
            [
                ["GET", keys.cache_entry(name)],
                ["ZADD", keys.cache_used(), "XX", time.time(), name],
            ]
        )[0]
        return entry

    def keep(self, name: str, entry: Blob) -> None:
        """Add an entry, and evict others if the cache is full."""
        if blob_nbytes(entry) > self._nbytes:
            return
        self._check_length(entry, "An entry of the cache")
        key = keys.cache_entry(name)
        staging: list[Arg] = ["SET", key, entry, "EX", _UNCOUNTED_SECONDS]
        args = (keys.cache_entry(""), name, time.time(), self._nbytes)
        self._script_finding_keys(_ADD, (*_shared_keys(), key), args, [staging])

    def entries(self) -> list[CacheEntry]:
        """List all entries."""
        used, sizes = self._call(
            [["ZRANGE", keys.cache_used(), 0, -1, "WITHSCORES"], ["HGETALL", keys.cache_sizes()]]
        )
        nbytes = {bytes(n): int(size) for n, size in zip(sizes[::2], sizes[1::2], strict=True)}
        return [
            CacheEntry(str(name, "utf-8"), nbytes.get(bytes(name), 0), float(bytes(at)))
            for name, at in zip(used[::2], used[1::2], strict=True)
        ]

    def remove(self, names: Iterable[str]) -> None:
        """Delete entries."""
        listed = list(names)
        for i in range(0, len(listed), _BATCH):
            batch = listed[i : i + _BATCH]
            touched = (*_shared_keys(), *(keys.cache_entry(name) for name in batch))
            self._script(_REMOVE, touched, batch)

    def close(self) -> None:
        """Close the connection."""
        self.disconnect()


def _shared_keys() -> tuple[str, str, str]:
    """Return the keys that `cache.lua` names."""
    return keys.cache_used(), keys.cache_sizes(), keys.cache_nbytes()
