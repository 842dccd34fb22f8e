"""`ServerClient`: commands and scripts on a Valkey or Redis server, over one shared connection.

1. A connection that broke is replaced, and what was under way is said again, all of it: whatever is
   said to the server may be said twice. The same goes for a server that is still loading its data.
2. That has an end: `reconnect_seconds` of the server's URL. A client that has never reached the
   server is told at once that nobody is there; a wrong password is never tried twice.
3. Scripts that a restarted server doesn't know are sent again.
4. What is said together concerns keys of one hash tag, unless it is plain commands: so a cluster is
   a server like any other.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

from shoal.errors import RunOver, StoreError, StoreInterrupted, StoreRefused, StoreUnavailable
from shoal.storage.backoff import Backoff
from shoal.storage.cluster import ClusterConnection
from shoal.storage.outage import outage_of
from shoal.storage.resp import Address, Arg, Connection, not_ready, parse_url, urls_in

T = TypeVar("T")

KEPT = "kept"
"""The lifetime of a server that writes everything to a file."""


class Script:
    """A script, and the name by which a server that has seen it knows it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class ServerClient:
    """What asks things of a server; safe to use from several threads."""

    scripts: ClassVar[Mapping[str, Script]] = {}
    """What it runs on the server, by name."""

    def __init__(
        self,
        url: str,
        latency: float = 0.0,
        *,
        known: bool = False,
        revive: Callable[[], None] | None = None,
    ) -> None:
        """Reach the server at a URL.

        Args:
            url: Where it is, how to get in, and for how long to wait for it.
            latency: Seconds added to each round trip.
            known: Somebody has reached it: if nobody answers now, it is waited for.
            revive: Starts the server again if it is gone.
        """
        self.url = url
        self._seeds: Sequence[Address] = [parse_url(each) for each in urls_in(url)]
        """Where the server is, or nodes of a cluster."""
        self._address = self._seeds[0]
        self._latency = latency
        self._revive = revive
        self._outage = outage_of(str(self._address))
        self._hurried = threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._given_up = False
        self._known = known
        if not known:
            self._connection = self._persist(self._first_contact)

    def _first_contact(self) -> Connection:
        """A connection to a server that may not be there: only one that is there is waited for."""
        try:
            return self._connect()
        except StoreInterrupted as error:
            if not_ready(error.__cause__):
                raise
            raise StoreUnavailable(str(error)) from error.__cause__

    def _connect(self) -> Connection:
        if self._address.cluster:
            cluster = ClusterConnection(self._seeds, self._latency)
            self._seeds = cluster.known
            return cluster
        try:
            return Connection(self._address, self._latency, met=self._known)
        except StoreInterrupted as error:
            if self._revive is None or not_ready(error.__cause__):
                raise
        self._revive()
        return Connection(self._address, self._latency)

    def server_of(self, key: str) -> str:
        """The server that has a key."""
        if not self._address.cluster:
            return str(self._address)

        def attempt() -> str:
            with self._connected() as connection:
                return str(connection.node(key).address)

        return self._persist(attempt)

    def _persist(
        self,
        attempt: Callable[[], T],
        *,
        seconds: float | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> T:
        """What an attempt gives that may be made again, until the server answers.

        Args:
            attempt: Raises `StoreInterrupted` if it is to be made again.
            seconds: For how long; default: what the server's URL says.
            wait: Lets time pass between attempts, and says whether they are over.

        Raises:
            StoreUnavailable: The time is over; `StoreInterrupted` if it wasn't, but `wait` said so.
        """
        backoff: Backoff | None = None
        while True:
            try:
                return attempt()
            except StoreInterrupted as error:
                if backoff is None:
                    limit = self._address.reconnect_seconds if seconds is None else seconds
                    ended = wait or self._hurried.wait
                    backoff = Backoff(self._address, limit, ended)
                if not backoff.pause(error):
                    raise

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._lock:
            if self._connection is not None and self._connection.dropped:
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = self._connect()
            kept = False
            try:
                yield self._connection
                kept = not self._given_up
            finally:
                # Whatever an error was, replies may still be on their way that nobody expects.
                if not kept:
                    self._connection.close()
                    self._connection = None

    def _call(
        self, commands: Sequence[Sequence[Arg]], *, seconds: float | None = None
    ) -> list[Any]:
        """Several commands in one round trip."""

        def attempt() -> list[Any]:
            with self._connected() as connection:
                return ready(connection, connection.pipeline(commands))

        return checked(self._persist(attempt, seconds=seconds))

    def _script(
        self,
        name: str,
        script_keys: Sequence[str],
        args: Sequence[Arg],
        before: Sequence[Sequence[Arg]] = (),
        *,
        after: Sequence[Sequence[Arg]] = (),
        seconds: float | None = None,
    ) -> Any:
        """Run a script between other commands, in one round trip."""
        script = self.scripts[name]
        tail = (len(script_keys), *script_keys, *args)

        def attempt() -> list[Any]:
            with self._connected() as connection:
                replies = connection.pipeline([*before, ("EVALSHA", script.sha, *tail), *after])
                reply = replies[len(before)]
                if isinstance(reply, StoreRefused) and "NOSCRIPT" in str(reply):
                    replies = connection.pipeline([*before, ("EVAL", script.source, *tail), *after])
                return ready(connection, replies)

        return checked(self._persist(attempt, seconds=seconds))[len(before)]

    def _aside(self, name: str, script_keys: Sequence[str], args: Sequence[Arg]) -> None:
        """Run a script on a connection of its own, if that can be: the other one is busy."""
        with suppress(StoreError):
            connection = ServerClient._connect(self)
            try:
                tail = (len(script_keys), *script_keys, *args)
                connection.pipeline([("EVAL", self.scripts[name].source, *tail)])
            finally:
                connection.close()

    def hurry(self) -> None:
        """Wait for the server no longer, should it not answer."""
        self._hurried.set()

    def disconnect(self) -> None:
        """Give up the connection, also under whoever uses it; who comes later leaves none."""
        self._given_up = True
        self.hurry()
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def lifetime(connection: Connection) -> str:
    """What changes when a server begins anew with less than it had; nothing if it keeps a file.

    In a cluster it also changes when another node takes over, which may not have heard the latest.
    """
    if connection.lifetime is None:
        connection.lifetime = _lifetime(connection)
    return connection.lifetime


def _lifetime(connection: Connection) -> str:
    commands = [("INFO", "server"), ("INFO", "persistence")]
    if connection.address.cluster:
        commands.append(("CLUSTER", "MYID"))
    server, persistence, *node = ready(connection, connection.pipeline(commands))
    if any(isinstance(reply, StoreRefused) for reply in (server, persistence, *node)):
        return "unknown"
    me = f"{bytes(node[0]).decode()} " if node else ""
    if b"aof_enabled:1" in bytes(persistence):
        return me + KEPT
    return me + bytes(server).partition(b"run_id:")[2].split()[0].decode()


def ready(connection: Connection, replies: list[Any]) -> list[Any]:
    """The replies, unless one says that the server isn't ready."""
    for reply in replies:
        if not_ready(reply):
            raise connection.interruption(reply) from reply
    return replies


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
            f"The store's memory is full ({text}). Give the server more (store_memory_mb, or "
            "maxmemory of a server of your own), or produce smaller outputs."
        )
    if text.startswith("MISCONF"):
        return StoreRefused(
            f"The store can't write to its disk ({text}). Make room on the server's disk, or give "
            "it another one."
        )
    return error
