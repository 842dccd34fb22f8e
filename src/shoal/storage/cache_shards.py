"""`ShardedCache`: the cache on several servers, each with a share of the entries.

If a server doesn't answer, the entries on the others remain available.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.storage.cache import Cache, CacheEntry
from shoal.storage.cache_server import ServerCache
from shoal.storage.codec import Blob, Buffer
from shoal.storage.ring import Ring
from shoal.storage.shard_urls import shard_urls


def server_cache(store: str, nbytes: int, latency: float = 0.0) -> Cache:
    """Return the cache on a store's servers; in a cluster it is on one node."""
    if len(shard_urls(store)) > 1:
        return ShardedCache(store, nbytes, latency)
    return ServerCache(store, nbytes, latency)


class ShardedCache:
    """A cache that all clients of several servers share."""

    def __init__(self, store: str, nbytes: int, latency: float = 0.0) -> None:
        """Use all servers of a store for at most so many bytes in total."""
        self._urls = shard_urls(store)
        self._nbytes = nbytes // len(self._urls)
        self._latency = latency
        self._ring = Ring(self._urls)
        self._caches: dict[str, ServerCache] = {}
        """The caches used so far, by shard."""

    def _cache(self, shard: str) -> ServerCache:
        if shard not in self._caches:
            self._caches[shard] = ServerCache(self._urls[shard], self._nbytes, self._latency)
        return self._caches[shard]

    @property
    def where(self) -> str:
        """The servers, without their passwords."""
        return f"the stores at {', '.join(self._urls)}"

    def find(self, name: str) -> Buffer | None:
        """Return an entry, and record that it was used."""
        return self._cache(self._ring.shard_of(name)).find(name)

    def keep(self, name: str, entry: Blob) -> None:
        """Add an entry, and evict others from its server if that is full."""
        self._cache(self._ring.shard_of(name)).keep(name, entry)

    def entries(self) -> list[CacheEntry]:
        """List all entries."""
        return [entry for shard in self._urls for entry in self._cache(shard).entries()]

    def remove(self, names: Iterable[str]) -> None:
        """Delete entries."""
        shares: dict[str, list[str]] = {}
        for name in names:
            shares.setdefault(self._ring.shard_of(name), []).append(name)
        for shard, share in shares.items():
            self._cache(shard).remove(share)

    def close(self) -> None:
        """Close the connections."""
        for cache in self._caches.values():
            cache.close()
