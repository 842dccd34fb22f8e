"""`ServerCache`: the cache on a Valkey or Redis server, where workers of many machines share it.

An entry is written with a time to live by a command of its own, because a script copies what it is
given; the script that counts it takes that away. So what nobody counts goes by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from shoal.storage import keys
from shoal.storage.cache import CacheEntry
from shoal.storage.codec import Blob, Buffer, blob_nbytes
from shoal.storage.pieces import PieceClient
from shoal.storage.resp import Arg
from shoal.storage.server import Script

_UNCOUNTED_SECONDS = 3600

_FORGET = """
-- KEYS: when entries were used, their sizes, the sum of these. ARGV[1]: how entries' keys begin.
local function forget(name)
  redis.call('UNLINK', ARGV[1] .. name)
  redis.call('ZREM', KEYS[1], name)
  redis.call('DECRBY', KEYS[3], redis.call('HGET', KEYS[2], name) or 0)
  redis.call('HDEL', KEYS[2], name)
end
"""

_KEEP = (
    _FORGET
    + """
-- KEYS: after those, the entry. ARGV: after that, its name, the time, the most bytes to keep.
-- The first to write is a command that a full memory refuses: after any other all are let through.
local name, most = ARGV[2], tonumber(ARGV[4])
local nbytes = redis.call('STRLEN', KEYS[4])
if nbytes == 0 then return 0 end
redis.call('ZADD', KEYS[1], ARGV[3], name)
local before = redis.call('HGET', KEYS[2], name) or 0
redis.call('HSET', KEYS[2], name, nbytes)
redis.call('INCRBY', KEYS[3], nbytes - before)
redis.call('PERSIST', KEYS[4])
while tonumber(redis.call('GET', KEYS[3])) > most do
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if not oldest then
    redis.call('UNLINK', KEYS[2], KEYS[3])
    break
  end
  forget(oldest)
end
return 1
"""
)

_REMOVE = (
    _FORGET
    + """
for i = 2, #ARGV do forget(ARGV[i]) end
return 1
"""
)

_BATCH = 1000


class ServerCache(PieceClient):
    """A cache that all who use a server share."""

    scripts = {"keep": Script(_KEEP), "remove": Script(_REMOVE)}  # noqa: RUF012 - as its base

    def __init__(self, url: str, nbytes: int, latency: float = 0.0) -> None:
        """Use the server at a URL for at most so many bytes."""
        super().__init__(url, latency)
        self._nbytes = nbytes

    @property
    def where(self) -> str:
        """The server, without the password."""
        return f"the store at {self._address}"

    def find(self, name: str) -> Buffer | None:
        """An entry, which counts as used now."""
        entry: Buffer | None = self._call(
            [
                ["GET", keys.cache_entry(name)],
                ["ZADD", keys.cache_used(), "XX", time.time(), name],
            ]
        )[0]
        return entry

    def keep(self, name: str, entry: Blob) -> None:
        """Put an entry there, and remove others if there is too much."""
        if blob_nbytes(entry) > self._nbytes:
            return
        self._check_length(entry, "It")
        key = keys.cache_entry(name)
        staging: list[Arg] = ["SET", key, entry, "EX", _UNCOUNTED_SECONDS]
        args = (keys.cache_entry(""), name, time.time(), self._nbytes)
        self._script("keep", (*_everywhere(), key), args, [staging])

    def entries(self) -> list[CacheEntry]:
        """All that is kept."""
        used, sizes = self._call(
            [["ZRANGE", keys.cache_used(), 0, -1, "WITHSCORES"], ["HGETALL", keys.cache_sizes()]]
        )
        nbytes = {bytes(n): int(size) for n, size in zip(sizes[::2], sizes[1::2], strict=True)}
        return [
            CacheEntry(str(name, "utf-8"), nbytes.get(bytes(name), 0), float(bytes(at)))
            for name, at in zip(used[::2], used[1::2], strict=True)
        ]

    def remove(self, names: Iterable[str]) -> None:
        """Forget entries."""
        listed = list(names)
        for i in range(0, len(listed), _BATCH):
            args = (keys.cache_entry(""), *listed[i : i + _BATCH])
            self._script("remove", _everywhere(), args)

    def close(self) -> None:
        """Give up the connection."""
        self.disconnect()


def _everywhere() -> tuple[str, str, str]:
    return keys.cache_used(), keys.cache_sizes(), keys.cache_nbytes()
