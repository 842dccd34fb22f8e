"""A connection to a Valkey or Redis server: a minimal client of the wire protocol.

Packaged clients copy large values and take three times as long for a small round trip. This one
writes buffers without copying, and reads large replies directly into their final memory.
"""

from __future__ import annotations

import contextlib
import math
import re
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from shoal.entry_points import STORES, schemes
from shoal.errors import SettingsError, StoreInterrupted, StoreRefused, StoreUnavailable
from shoal.storage.codec import Buffer
from shoal.storage.heartbeat import current_heartbeat
from shoal.storage.outage import outage_of
from shoal.system import MOST_AT_ONCE, at_once

if TYPE_CHECKING:
    import ssl

Arg = str | int | float | Buffer | list[Buffer]
"""An argument of a command. A list of buffers is one argument, written without joining."""

RECONNECT_SECONDS = 20.0
"""How long to wait for a server that stops answering, unless its URL says otherwise."""
_CONNECT_SECONDS = 5.0
_REPLY_SECONDS = 60.0
_GATHER = 32 * 1024
"""Smaller buffers are joined before they are written."""
_TLS_CHUNK = 256 * 1024
"""The most bytes that are encrypted and sent at once."""
_UNSENT = 128 * 1024
"""The most unsent bytes in the system's buffer, so that progress of a transfer is visible."""
_NOT_READY = ("LOADING", "TRYAGAIN", "MASTERDOWN", "MOVED", "ASK ", "CLUSTERDOWN")
"""Prefixes of errors that pass by themselves, or after a reconnect to another node."""
_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server, and its credentials."""

    host: str | None
    port: int
    path: str | None
    """The path of a unix socket; if None, host and port apply."""
    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    ca_file: str | None = None
    ca_data: str | None = None
    """Certificates in PEM format; used instead of a file, which remote workers don't have."""
    reconnect_seconds: float = RECONNECT_SECONDS
    cluster: bool = False
    """Whether the server is a node of a cluster."""

    def __str__(self) -> str:
        return f"unix socket {self.path}" if self.path else f"{self.host}:{self.port}"


def urls_in(store: str) -> list[str]:
    """Split the setting `store` into the URLs of its servers."""
    return re.split(r",(?=[a-z+]+://)", store)


def parse_url(url: str) -> Address:
    """Parse a URL: `redis://`, `rediss://`, `valkey://`, `redis+cluster://` or `unix://`."""
    try:
        return _address(url)
    except ValueError:
        # Not `from` the error, which may quote a part of the password.
        raise SettingsError(
            f"store={_safe(url)!r} is not a valid URL: use redis://HOST:PORT/DB, with numbers "
            "for port, database and reconnect_seconds; in a password, write %40 for @, %23 for # "
            "and %2F for /."
        ) from None


def _address(url: str) -> Address:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if parts.fragment:
        raise ValueError("a fragment")
    scheme, cluster, _ = parts.scheme.partition("+cluster")
    unix = scheme == "unix"
    if scheme not in _SCHEMES or parts.scheme != scheme + cluster or (unix and cluster):
        raise SettingsError(_no_server(url, parts.scheme))
    if unix and (parts.hostname or not parts.path.strip("/")):
        raise SettingsError(
            f"store={_safe(url)!r} names no socket: use unix:///PATH, with three slashes."
        )
    db = query["db"][0] if "db" in query else "" if unix else parts.path.strip("/")
    return Address(
        host=parts.hostname or "localhost",
        port=parts.port or 6379,
        path=unquote(parts.path) if unix else None,
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        db=int(db or 0),
        tls=scheme in ("rediss", "valkeys"),
        ca_file=query["ca_file"][0] if "ca_file" in query else None,
        ca_data=query["ca_data"][0] if "ca_data" in query else None,
        reconnect_seconds=_seconds(query.get("reconnect_seconds", [str(RECONNECT_SECONDS)])[0]),
        cluster=bool(cluster),
    )


def names_servers(store: str) -> bool:
    """Whether a store's URL has a scheme of Valkey or Redis servers."""
    return store.partition("://")[0].lower().removesuffix("+cluster") in _SCHEMES


def _no_server(url: str, scheme: str) -> str:
    """What to say about a URL that names no Valkey or Redis server."""
    others = schemes(STORES)
    if scheme in others:
        return (
            f"store={_safe(url)!r} is no Valkey or Redis server, which farms, engines and code for "
            "other machines need."
        )
    brought = "".join(f", {each}://" for each in others)
    return (
        f"store={_safe(url)!r} is not a valid URL: use redis://HOST:PORT/DB, rediss:// for TLS, "
        f"redis+cluster:// for a cluster, or unix:///PATH{brought}. Other stores need a package "
        f"that brings them (entry points {STORES!r})."
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def with_reconnect_seconds(store: str, reconnect_seconds: float) -> str:
    """Add `reconnect_seconds` to URLs that don't have it, so that workers wait as long too."""
    if reconnect_seconds == RECONNECT_SECONDS:
        return store
    query = f"reconnect_seconds={reconnect_seconds:g}"
    urls = [
        url if "reconnect_seconds=" in url else f"{url}{'&' if '?' in url else '?'}{query}"
        for url in urls_in(store)
    ]
    return ",".join(urls)


def with_certificates(store: str) -> str:
    """Replace each `ca_file` by its content, so that the URLs work on other machines, too."""
    if "ca_file=" not in store:
        return store
    return ",".join(map(_with_certificates, urls_in(store)))


def _with_certificates(url: str) -> str:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if "ca_file" not in query:
        return url
    (ca_file,) = query.pop("ca_file")[:1]
    try:
        query["ca_data"] = [Path(ca_file).read_text()]
    except (OSError, ValueError) as error:
        raise SettingsError(f"store: ca_file {ca_file!r} can't be read: {error}.") from error
    return parts._replace(query=urlencode(query, doseq=True, quote_via=quote)).geturl()


def _safe(url: str) -> str:
    """Return a URL without its password."""
    head, at, tail = url.rpartition("@")
    scheme, colon, _ = head.partition("://")
    return f"{scheme + colon if colon else ''}…@{tail}" if at else url


class Connection:
    """A connection, for one thread at a time."""

    def __init__(self, address: Address, latency: float = 0.0, *, met: bool = False) -> None:
        """Connect.

        Args:
            address: The server's address and credentials.
            latency: Seconds added to each round trip.
            met: The server is known to accept the login: it travels with the first commands.
        """
        self.address = address
        self.incarnation: str | None = None
        """The server's incarnation, once it is known."""
        self._latency = latency
        self._outage = outage_of(str(address))
        self._socket = self._connect()
        self._buffer = bytearray(1 << 16)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._greeting = self._login()
        """The commands that log in, sent before the first others."""
        self._unanswered = 0
        """How many replies to these are still to come."""
        self._target: memoryview | None = None
        """Memory for a reply of exactly its length."""
        if not met:
            try:
                self._check_login(self.pipeline([("PING",)])[0])
            except BaseException:
                self.close()
                raise
        self._socket.settimeout(_REPLY_SECONDS)

    def _connect(self) -> socket.socket:
        try:
            sock = _connected(self.address)
        except OSError as error:
            raise StoreInterrupted(
                f"The store at {self.address} can't be reached: {error}. Is the server running, "
                "and is the address right?",
                str(self.address),
            ) from error
        return sock

    def _login(self) -> list[Sequence[Arg]]:
        address = self.address
        commands: list[Sequence[Arg]] = []
        if address.password is not None:
            who = (address.username,) if address.username else ()
            commands.append(("AUTH", *who, address.password))
        if address.db:
            commands.append(("SELECT", address.db))
        return commands

    def _check_login(self, answer: Any) -> None:
        """Check the reply to a login command."""
        if isinstance(answer, StoreRefused):
            if not_ready(answer):
                raise self.interruption(answer) from answer
            raise StoreRefused(
                f"The store at {self.address} rejected the login: {answer}. Check the user name, "
                "password and database in the store's URL."
            ) from answer
        if answer not in (b"PONG", b"OK"):
            raise self._unexpected(repr(answer))

    def node(self, key: str) -> Connection:
        """Return the connection to the server that holds a key."""
        return self

    @property
    def nodes(self) -> Sequence[Connection]:
        """Connections to all servers that hold data."""
        return (self,)

    @property
    def dropped(self) -> bool:
        """Whether the server closed the idle connection."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def hang_up(self) -> None:
        """Close the connection, even while a thread waits for a reply; that thread fails."""
        self.interrupt()
        self._socket.close()

    def interrupt(self) -> None:
        """Have the thread that waits for a reply fail and close the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def call(self, *args: Arg) -> Any:
        """Run one command; raise an error reply."""
        reply = self.pipeline([args])[0]
        if isinstance(reply, StoreRefused):
            raise reply
        return reply

    def call_into(self, target: memoryview, *args: Arg) -> Any:
        """Run one command; a reply as long as `target` is read into it, and `target` returned.

        Error replies are returned, not raised.
        """
        self._target = target
        try:
            return self.pipeline([args])[0]
        finally:
            self._target = None

    def pipeline(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Run several commands in one round trip; return error replies among the others."""
        self.send(commands)
        return [self.reply() for _ in commands]

    def send(self, commands: Sequence[Sequence[Arg]]) -> None:
        """Send commands; call `reply` once for each."""
        if self._latency:
            time.sleep(self._latency)
        if self._greeting:
            commands = [*self._greeting, *commands]
            self._unanswered, self._greeting = len(self._greeting), []
        pieces: list[Buffer] = []
        small: list[bytes] = []
        for command in commands:
            small.append(b"*%d\r\n" % len(command))
            for arg in command:
                if isinstance(arg, str):
                    arg = arg.encode()
                elif isinstance(arg, (int, float)):
                    arg = str(arg).encode()
                if type(arg) is bytes and len(arg) < _GATHER:
                    small.append(b"$%d\r\n%b\r\n" % (len(arg), arg))
                else:
                    _gather(arg if isinstance(arg, list) else [arg], small, pieces)
        if small:
            pieces.append(b"".join(small))
        try:
            self._write(pieces)
        except OSError as error:
            raise self._broken(error) from error

    def _write(self, pieces: list[Buffer]) -> None:
        """Write all buffers; the socket's timeout applies to each part that is sent."""
        if len(pieces) == 1 and not self.address.tls:
            sent = self._socket.sendmsg(pieces)
            if sent == len(pieces[0]):
                return
            pieces = [memoryview(pieces[0])[sent:]]
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        heartbeat = current_heartbeat()
        while views:
            sent = self._write_some(views)
            if heartbeat is not None:
                heartbeat.moved(sent)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _write_some(self, views: list[memoryview]) -> int:
        if self.address.tls:
            return self._socket.send(views[0][:_TLS_CHUNK])
        return self._socket.sendmsg(at_once(views))

    def reply(self, extra_seconds: float = 0.0) -> Any:
        """Read the next reply; the server may take `extra_seconds` longer than usual."""
        try:
            if extra_seconds:
                self._socket.settimeout(_REPLY_SECONDS + extra_seconds)
            while self._unanswered:
                self._unanswered -= 1
                self._check_login(self._reply())
            reply = self._reply()
        except OSError as error:
            raise self._broken(error) from error
        except ValueError as error:
            raise self._unexpected(str(error)) from error
        if not (isinstance(reply, StoreRefused) and not_ready(reply)):
            self._outage.ended()
        return reply

    def interruption(self, error: StoreRefused) -> StoreInterrupted:
        """Return the error to raise for the reply of a server that isn't ready."""
        where = str(self.address)
        return StoreInterrupted(f"The store at {where} isn't ready yet: {error}.", where)

    def _broken(self, error: OSError) -> StoreInterrupted:
        where = str(self.address)
        return StoreInterrupted(f"The connection to the store at {where} broke: {error}.", where)

    def _unexpected(self, reply: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"The store at {self.address} speaks another protocol: {reply}. Is it a Valkey or "
            "Redis server, and does the URL start with rediss:// if it uses TLS?"
        )

    def _reply(self) -> Any:
        while (end := self._buffer.find(b"\r\n", self._start, self._end)) < 0:
            self._fill()
        line = bytes(self._view[self._start : end])
        self._start = end + 2
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self._bulk(length)
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind == b"*":
            count = int(rest)
            return None if count < 0 else [self._reply() for _ in range(count)]
        if kind == b"-":
            return StoreRefused(rest.decode(errors="replace"))
        raise self._unexpected(repr(line[:60]))

    def _bulk(self, length: int) -> Buffer:
        have = self._end - self._start
        target = self._target
        if have >= length + 2 and target is None:
            data = bytes(self._view[self._start : self._start + length])
            self._start += length + 2
            return data
        value = bytearray(length) if target is None or target.nbytes != length else target
        view = memoryview(value)
        taken = min(have, length)
        view[:taken] = self._view[self._start : self._start + taken]
        self._start += taken
        while taken < length:
            taken += self._received(view[taken:])
        while self._end - self._start < 2:
            self._fill()
        self._start += 2
        return value

    def _fill(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            unread = self._end - self._start
            self._buffer[:unread] = self._buffer[self._start : self._end]
            self._start, self._end = 0, unread
        if self._end == len(self._buffer):
            raise ConnectionResetError("a reply line is too long")
        self._end += self._received(self._view[self._end :])

    def _received(self, target: memoryview) -> int:
        got = self._socket.recv_into(target[:MOST_AT_ONCE])
        if not got:
            raise ConnectionResetError("the server closed the connection")
        heartbeat = current_heartbeat()
        if heartbeat is not None:
            heartbeat.moved(got)
        return got


def not_ready(reply: Any) -> bool:
    """Whether a reply says that the server isn't ready yet."""
    return isinstance(reply, StoreRefused) and str(reply).startswith(_NOT_READY)


def _connected(address: Address) -> socket.socket:
    """Return a connected socket."""
    if address.path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_CONNECT_SECONDS)
            sock.connect(address.path)
        except BaseException:
            sock.close()
            raise
        return sock
    where = (address.host or "localhost", address.port)
    sock = socket.create_connection(where, timeout=_CONNECT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
    return _secured(sock, address) if address.tls else sock


def _secured(sock: socket.socket, address: Address) -> socket.socket:
    try:
        context = _trusting(address)
        return context.wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise


def _trusting(address: Address) -> ssl.SSLContext:
    """A TLS context that trusts the authorities in the URL, or the system's."""
    import ssl

    try:
        return ssl.create_default_context(cafile=address.ca_file, cadata=address.ca_data)
    except (OSError, ValueError) as error:  # SSLError is an OSError, too
        what = "ca_data" if address.ca_file is None else f"ca_file {address.ca_file!r}"
        raise SettingsError(
            f"store: {what} can't be loaded: {error}. It must be certificates in PEM format."
        ) from error


def _gather(arg: list[Buffer], small: list[bytes], pieces: list[Buffer]) -> None:
    """Append a large argument; its large buffers go into `pieces` uncopied."""
    small.append(b"$%d\r\n" % sum([memoryview(buffer).nbytes for buffer in arg]))
    for buffer in arg:
        _append(buffer, small, pieces)
    small.append(b"\r\n")


def _append(data: Buffer, small: list[bytes], pieces: list[Buffer]) -> None:
    if memoryview(data).nbytes < _GATHER:
        small.append(bytes(data))
        return
    pieces.append(b"".join(small))
    small.clear()
    pieces.append(data)
