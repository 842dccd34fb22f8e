"""`ShardedCache`: the cache on several servers, each of which has a share of the entries.

A server that doesn't answer keeps nobody from the entries of the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.storage.cache import Cache, CacheEntry
from shoal.storage.cacheserver import ServerCache
from shoal.storage.codec import Blob, Buffer
from shoal.storage.places import places
from shoal.storage.ring import Ring


def server_cache(store: str, nbytes: int, latency: float = 0.0) -> Cache:
    """The cache beside a store; in a cluster it is on one node."""
    if len(places(store)) > 1:
        return ShardedCache(store, nbytes, latency)
    return ServerCache(store, nbytes, latency)


class ShardedCache:
    """A cache that all who use some servers share."""

    def __init__(self, store: str, nbytes: int, latency: float = 0.0) -> None:
        """Use all servers of a store, together for at most so many bytes."""
        self._places = places(store)
        self._nbytes = nbytes // len(self._places)
        self._latency = latency
        self._ring = Ring(self._places)
        self._caches: dict[str, ServerCache] = {}
        """Those that have been needed."""

    def _cache(self, place: str) -> ServerCache:
        if place not in self._caches:
            self._caches[place] = ServerCache(self._places[place], self._nbytes, self._latency)
        return self._caches[place]

    @property
    def where(self) -> str:
        """The servers, without their passwords."""
        return f"the stores at {', '.join(self._places)}"

    def find(self, name: str) -> Buffer | None:
        """An entry, which counts as used now."""
        return self._cache(self._ring.place(name)).find(name)

    def keep(self, name: str, entry: Blob) -> None:
        """Put an entry there, and remove others of its server if there is too much."""
        self._cache(self._ring.place(name)).keep(name, entry)

    def entries(self) -> list[CacheEntry]:
        """All that is kept."""
        return [entry for place in self._places for entry in self._cache(place).entries()]

    def remove(self, names: Iterable[str]) -> None:
        """Forget entries."""
        shares: dict[str, list[str]] = {}
        for name in names:
            shares.setdefault(self._ring.place(name), []).append(name)
        for place, share in shares.items():
            self._cache(place).remove(share)

    def close(self) -> None:
        """Give up the connections."""
        for cache in self._caches.values():
            cache.close()
