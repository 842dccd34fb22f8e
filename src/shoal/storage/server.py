"""`ServerClient`: commands and scripts on a Valkey or Redis server, over one shared connection.

1. A broken connection is replaced, and the whole operation is sent again, so every operation must
   be repeatable. The same applies while the server loads its data.
2. Retries end after the `reconnect_seconds` of the server's URL. A client that has never reached
   the server fails at once; so does a wrong password.
3. A script that a restarted server doesn't know is sent again.
4. A script and the commands sent with it use keys of one hash tag, so they work in a cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from shoal.clock import RealClock
from shoal.errors import RunOver, StoreError, StoreInterrupted, StoreRefused, StoreUnavailable
from shoal.storage.backoff import Backoff
from shoal.storage.clock import Offset, StoreClock, local_clock, measured
from shoal.storage.cluster import ClusterConnection
from shoal.storage.codec import Buffer
from shoal.storage.outage import outage_of
from shoal.storage.resp import Address, Arg, Connection, not_ready, parse_url, urls_in
from shoal.storage.scripts import Script

T = TypeVar("T")

DURABLE = "durable"
"""The incarnation of a server that writes every command to a file."""


class ServerClient:
    """A client of a server; safe to use from several threads."""

    def __init__(
        self,
        url: str,
        latency: float = 0.0,
        *,
        known: bool = False,
        revive: Callable[[], None] | None = None,
    ) -> None:
        """Connect to the server at a URL.

        Args:
            url: Its address and credentials, and how long to wait for it.
            latency: Seconds added to each round trip.
            known: The server is known to exist: connect later, and wait if it doesn't answer.
            revive: Restarts the server if it is gone.
        """
        self.url = url
        self._seeds: Sequence[Address] = [parse_url(each) for each in urls_in(url)]
        """The server's address, or those of nodes of a cluster."""
        self._address = self._seeds[0]
        self._latency = latency
        self._revive = revive
        self._outage = outage_of(str(self._address))
        self._hurried = threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._given_up = False
        self._clocks: dict[str, StoreClock] = {}
        """The clocks of the server, or of the cluster's nodes, by address."""
        self._known = known
        if not known:
            self._connection = self._persist(self._first_contact)

    def _first_contact(self) -> Connection:
        """Connect for the first time: wait for a server that loads, not for one that is missing."""
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
        """Return the server that holds a key."""
        if not self._address.cluster:
            return str(self._address)

        def attempt() -> str:
            with self._connected() as connection:
                return str(connection.node(key).address)

        return self._persist(attempt)

    def clock_of(self, key: str, sent: float | None = None) -> RealClock:
        """Return a clock that tells the time of the server that holds a key.

        Args:
            key: The key.
            sent: When a message was sent that has just arrived, if any; it checks the clock.
        """
        if self._address.path:
            return local_clock()
        server = self.server_of(key)
        if server not in self._clocks:
            self._clocks[server] = StoreClock(partial(self._measured_time, key))
        return self._clocks[server].current(sent)

    def _measured_time(self, key: str) -> Offset:
        def attempt() -> Offset:
            with self._connected() as connection:
                return measured(partial(_time, connection.node(key)))

        return self._persist(attempt)

    def _persist(
        self,
        attempt: Callable[[], T],
        *,
        seconds: float | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> T:
        """Retry an attempt until the server answers; return its result.

        Args:
            attempt: Raises `StoreInterrupted` if it should be retried.
            seconds: The time limit; default: that of the server's URL.
            wait: Sleeps between attempts, and returns True to end them.

        Raises:
            StoreUnavailable: The time limit is exceeded.
            StoreInterrupted: `wait` has ended the attempts.
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
            reusable = False
            try:
                yield self._connection
                reusable = not self._given_up
            finally:
                # After any error, replies that aren't read may still arrive.
                if not reusable:
                    self._connection.close()
                    self._connection = None

    def _call(
        self, commands: Sequence[Sequence[Arg]], *, seconds: float | None = None
    ) -> list[Any]:
        """Run several commands in one round trip."""

        def attempt() -> list[Any]:
            with self._connected() as connection:
                return ready(connection, connection.pipeline(commands))

        return checked(self._persist(attempt, seconds=seconds))

    def _script(
        self,
        script: Script,
        script_keys: Sequence[Arg],
        args: Sequence[Arg],
        before: Sequence[Sequence[Arg]] = (),
        *,
        after: Sequence[Sequence[Arg]] = (),
        seconds: float | None = None,
    ) -> Any:
        """Run a script between other commands, in one round trip."""
        known = ("EVALSHA", script.sha, len(script_keys), *script_keys, *args)

        def attempt() -> list[Any]:
            with self._connected() as connection:
                replies = connection.pipeline([*before, known, *after])
                reply = replies[len(before)]
                if isinstance(reply, StoreRefused) and "NOSCRIPT" in str(reply):
                    unknown = script.evaluate(script_keys, *args)
                    replies = connection.pipeline([*before, unknown, *after])
                return ready(connection, replies)

        return checked(self._persist(attempt, seconds=seconds))[len(before)]

    def _script_finding_keys(
        self,
        script: Script,
        script_keys: Sequence[Arg],
        args: Sequence[Arg],
        before: Sequence[Sequence[Arg]] = (),
        *,
        seconds: float | None = None,
    ) -> tuple[list[Any], list[Buffer]]:
        """Run a script that includes `declared.lua`.

        It takes one round trip if `script_keys` has all the keys that the script needs. Otherwise
        the script names the others without changing anything, and runs again with them.

        Returns:
            The script's results, and the keys that it named.
        """
        found: list[Buffer] = []
        undeclared, *results = self._script(script, script_keys, args, before, seconds=seconds)
        while undeclared:
            found += undeclared
            touched = (*script_keys, *found)
            undeclared, *results = self._script(script, touched, args, seconds=seconds)
        return results, found

    def _script_aside(
        self, script: Script, script_keys: Sequence[Arg], args: Sequence[Arg]
    ) -> None:
        """Run a script on a connection of its own, because the other one is busy; never raises."""
        with suppress(StoreError):
            connection = ServerClient._connect(self)
            try:
                connection.pipeline([script.evaluate(script_keys, *args)])
            finally:
                connection.close()

    def hurry(self) -> None:
        """Stop waiting for a server that doesn't answer."""
        self._hurried.set()

    def disconnect(self) -> None:
        """Close the connection, even while a thread uses it; later calls leave none open."""
        self._given_up = True
        self.hurry()
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _time(connection: Connection) -> float:
    """Return a server's time, in seconds since the epoch."""
    seconds, micro = checked(ready(connection, connection.pipeline([("TIME",)])))[0]
    return int(seconds) + int(micro) / 1e6


def incarnation(connection: Connection) -> str:
    """Return an id that changes when a server restarts without its data.

    It is the same for every restart of a server that writes to a file. In a cluster it also changes
    on a failover, since the new primary may have missed the latest writes.
    """
    if connection.incarnation is None:
        connection.incarnation = _incarnation(connection)
    return connection.incarnation


def _incarnation(connection: Connection) -> str:
    commands = [("INFO", "server"), ("INFO", "persistence")]
    if connection.address.cluster:
        commands.append(("CLUSTER", "MYID"))
    server, persistence, *node = ready(connection, connection.pipeline(commands))
    if any(isinstance(reply, StoreRefused) for reply in (server, persistence, *node)):
        return "unknown"
    me = f"{bytes(node[0]).decode()} " if node else ""
    if b"aof_enabled:1" in bytes(persistence):
        return me + DURABLE
    return me + bytes(server).partition(b"run_id:")[2].split()[0].decode()


def ready(connection: Connection, replies: list[Any]) -> list[Any]:
    """Return the replies; raise `StoreInterrupted` if one says that the server isn't ready."""
    for reply in replies:
        if isinstance(reply, StoreRefused) and not_ready(reply):
            raise connection.interruption(reply) from reply
    return replies


def checked(replies: list[Any]) -> list[Any]:
    """Return the replies; raise the first error among them."""
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
            "maxmemory of your own server), or produce smaller outputs."
        )
    if text.startswith("MISCONF"):
        return StoreRefused(
            f"The store can't write to its disk ({text}). Make room on the server's disk, or give "
            "it another one."
        )
    return error
