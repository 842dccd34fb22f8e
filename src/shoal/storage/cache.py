"""The cache: outputs of tasks that outlive their runs, in a folder or on a server.

1. An entry's name is the task's name and a digest of everything that the output depends on. Two
   writers of the same name write the same output, so either may win.
2. An entry is signed as a whole, together with its name. One that is damaged, swapped, or written
   with another key counts as missing.
3. The cache has a limit in bytes. The least recently used entries are evicted first.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from shoal.private import private_key
from shoal.storage.codec import Blob, Buffer, decode, encode

_MAGIC = b"SHLCACHE"
_HEAD = 64
"""The length of the header, which keeps the buffers after it aligned."""
_LONGEST_TASK = 150
"""The most characters of a task's name in a file name."""


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """Where the cache is; workers get this."""

    where: str
    """A folder, or the URL of a server."""
    key: bytes
    nbytes: int
    """The limit in bytes."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An output in the cache."""

    name: str
    nbytes: int
    used: float
    """When it was last written or read, in seconds since the epoch."""

    @property
    def task(self) -> str:
        """The name of the task whose output it is."""
        return unquote(self.name.rpartition("/")[0], errors="replace")


class Cache(Protocol):
    """A cache; safe to use from several threads and processes."""

    @property
    def where(self) -> str:
        """The cache's location, for messages."""
        ...

    def find(self, name: str) -> Buffer | None:
        """Return an entry, and record that it was used; None if there is none."""
        ...

    def keep(self, name: str, entry: Blob) -> None:
        """Add an entry, and evict others if the cache is full."""
        ...

    def entries(self) -> list[CacheEntry]:
        """List all entries."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Delete entries; missing ones are ignored."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def entry_name(task: str, digest: str) -> str:
    """Return the name of an entry, which can be a key or a relative path."""
    return f"{quote(task, safe='').replace('.', '%2E')[:_LONGEST_TASK]}/{digest}"


def sealed(value: Any, name: str, key: bytes) -> Blob:
    """Return a value as a signed entry."""
    body = encode(value, key, name, what="an output for the cache")
    return [_head(body, name, key), *body]


def unsealed(entry: Buffer, name: str, key: bytes) -> tuple[Any] | None:
    """Return an entry's value in a tuple; None if its signature or name is wrong."""
    head, body = memoryview(entry)[:_HEAD], memoryview(entry)[_HEAD:]
    if not hmac.compare_digest(head, _head([body], name, key)):
        return None
    return (decode(body, key, name),)


def _head(body: Blob, name: str, key: bytes) -> bytes:
    signature = hmac.new(key, name.encode() + b"\0", "sha256")
    for buffer in body:
        signature.update(buffer)
    return (_MAGIC + signature.digest()).ljust(_HEAD, b"\0")


def cache_key(folder: Path) -> bytes:
    """Return the user's key, from a file that only the user can read; create it if missing."""
    return private_key(folder / "cache.key")
