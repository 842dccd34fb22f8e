"""The cache: outputs of tasks that are kept across runs, in a folder or on a server.

1. An entry's name is its task's and a digest of all that the output depends on. Who writes the
   same name writes the same thing, so of two writers either may win.
2. An entry is signed as a whole, together with its name: one that was damaged, exchanged, or
   written with another key is as good as none.
3. What is kept is bounded in bytes. What hasn't been used for longest goes first.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from shoal.private import private_folder, read_private, write_private
from shoal.storage.codec import Blob, Buffer, decode, encode

_MAGIC = b"SHLCACHE"
_HEAD = 64
"""So that the buffers behind it are aligned."""
_KEY = 32
_LONGEST_TASK = 150
"""Characters of a task's name that a file's name has room for."""


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where outputs are kept, as workers are told."""

    where: str
    """A folder, or the URL of a server."""
    key: bytes
    nbytes: int
    """The most that is kept."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An output that is kept."""

    name: str
    nbytes: int
    used: float
    """When it was last written or read, in seconds since the epoch."""

    @property
    def task(self) -> str:
        """The name of the task whose output it is."""
        return unquote(self.name.rpartition("/")[0], errors="replace")


class Cache(Protocol):
    """Keeps entries; safe to use from several threads and processes."""

    @property
    def where(self) -> str:
        """What to call it."""
        ...

    def find(self, name: str) -> Buffer | None:
        """An entry, which counts as used now; None: there is none."""
        ...

    def keep(self, name: str, entry: Blob) -> None:
        """Put an entry there, and remove others if there is too much."""
        ...

    def entries(self) -> list[CacheEntry]:
        """All that is kept."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Forget entries; those that aren't there don't matter."""
        ...

    def close(self) -> None:
        """Give up a connection."""
        ...


def entry_name(task: str, digest: str) -> str:
    """The name of an entry: it can be a key, and a path below a folder."""
    return f"{quote(task, safe='').replace('.', '%2E')[:_LONGEST_TASK]}/{digest}"


def sealed(value: Any, name: str, key: bytes) -> Blob:
    """A value as an entry."""
    body = encode(value, key, name, what="an output for the cache")
    return [_head(body, name, key), *body]


def unsealed(entry: Buffer, name: str, key: bytes) -> tuple[Any] | None:
    """The value of an entry, in a tuple; None: it isn't what was sealed under that name."""
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
    """The user's key, from a file that only the user can read; made if there is none."""
    path = folder / "cache.key"
    for _ in range(3):  # another client may make one at the same time
        with contextlib.suppress(FileNotFoundError):
            key = read_private(path)
            if key is not None and len(key) == _KEY:
                return key
            path.unlink(missing_ok=True)  # others may know it
        private_folder(folder)
        fresh = folder / f"cache.key.{secrets.token_hex(8)}"
        try:
            write_private(fresh, [secrets.token_bytes(_KEY)])
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    raise OSError(f"{path} changes all the time")
