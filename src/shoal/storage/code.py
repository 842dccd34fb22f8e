"""`CodeServer`: archives of users' modules, on the store's server.

1. An archive's name is the SHA-256 of its content, so it is written once, whichever runs use it. It
   needs no signature: a worker is told the name with its run's key, and checks the content.
2. Each use renews its time to live, which exceeds that of a run.
3. A store of several servers keeps all archives on one of them.
"""

from __future__ import annotations

from hashlib import sha256

from shoal.errors import CodeLost, Tampered
from shoal.storage import keys
from shoal.storage.base import DEFAULT_TTL
from shoal.storage.chunks import ChunkClient
from shoal.storage.codec import Buffer
from shoal.storage.shard_urls import url_for

_TTL = 2 * DEFAULT_TTL


def archive_name(archive: Buffer) -> str:
    """The name of an archive."""
    return sha256(archive).hexdigest()


class CodeServer(ChunkClient):
    """A client of the server that keeps a store's archives."""

    def __init__(self, store: str, latency: float = 0.0) -> None:
        """Use the servers of a store, which exist."""
        super().__init__(url_for(store, "code"), latency, known=True)

    def renew(self, name: str) -> bool:
        """Renew an archive's time to live; whether the server has it."""
        (found,) = self._call([["EXPIRE", keys.code_archive(name), _TTL]])
        return bool(found)

    def keep(self, name: str, archive: Buffer) -> None:
        """Write an archive."""
        self._check_length([archive], "The archive of your project's modules")
        self._call([["SET", keys.code_archive(name), [archive], "EX", _TTL]])

    def fetch(self, name: str) -> Buffer:
        """An archive, as it was written."""
        key = keys.code_archive(name)
        found: Buffer | None = self._call([["GET", key], ["EXPIRE", key, _TTL]])[0]
        if found is None:
            raise CodeLost(
                f"The store at {self._address} no longer has the project's modules: it was "
                "restarted without its data, or its memory was full. Run the workflow again."
            )
        if archive_name(found) != name:
            raise Tampered(f"The archive {name[:12]} of a project's modules has been changed.")
        return found
