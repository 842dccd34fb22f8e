"""`ServerClient`: commands and scripts on a Valkey or Redis server, over one shared connection."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from shoal.errors import RunOver, StoreRefused
from shoal.storage.resp import Address, Arg, Connection, parse_url


class Script:
    """A script, and the name by which a server that has seen it knows it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class ServerClient:
    """What asks things of a server; safe to use from several threads.

    A connection that broke is given up, and the next command makes another.
    """

    scripts: ClassVar[Mapping[str, Script]] = {}
    """What it runs on the server, by name."""

    def __init__(self, url: str, latency: float = 0.0) -> None:
        """Reach the server at a URL; `latency` seconds are added to each round trip."""
        self.url = url
        self._address: Address = parse_url(url)
        self._latency = latency
        self._lock = threading.Lock()
        self._connection: Connection | None = Connection(self._address, latency)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._lock:
            if self._connection is not None and self._connection.dropped:
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = Connection(self._address, self._latency)
            try:
                yield self._connection
            except BaseException:
                # Whatever it was, replies may still be on their way that nobody would expect.
                self._connection.close()
                self._connection = None
                raise

    def _call(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Several commands in one round trip."""
        with self._connected() as connection:
            replies = connection.pipeline(commands)
        return checked(replies)

    def _script(
        self,
        name: str,
        script_keys: Sequence[str],
        args: Sequence[Arg],
        before: Sequence[Sequence[Arg]] = (),
    ) -> Any:
        """Run a script, after other commands, in one round trip."""
        script = self.scripts[name]
        tail = (len(script_keys), *script_keys, *args)
        with self._connected() as connection:
            replies = connection.pipeline([*before, ("EVALSHA", script.sha, *tail)])
            if isinstance(replies[-1], StoreRefused) and "NOSCRIPT" in str(replies[-1]):
                replies[-1:] = connection.pipeline([("EVAL", script.source, *tail)])
        return checked(replies)[-1]

    def disconnect(self) -> None:
        """Give up the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def checked(replies: list[Any]) -> list[Any]:
    """The replies, unless one of them is an error."""
    for reply in replies:
        if isinstance(reply, StoreRefused):
            raise _explained(reply)
    return replies


def _explained(error: StoreRefused) -> Exception:
    text = str(error)
    if "RUNOVER" in text:
        return RunOver(text[text.index("RUNOVER") + 8 :].partition(" script:")[0] + ".")
    if text.startswith("OOM"):
        return StoreRefused(
            f"The store's memory is full ({text}). Give the server more (maxmemory), or produce "
            "smaller outputs."
        )
    return error
