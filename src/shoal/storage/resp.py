"""A connection to a Valkey or Redis server: the wire protocol in its smallest form.

A packaged client copies large values and takes three times as long for a small round trip; this
one writes buffers as they are and reads large replies straight into the memory they stay in.
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
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from shoal.errors import SettingsError, StoreInterrupted, StoreRefused, StoreUnavailable
from shoal.storage.codec import Buffer
from shoal.storage.outage import outage_of
from shoal.storage.pulse import present_pulse
from shoal.system import MOST_AT_ONCE, at_once

Arg = str | int | float | Buffer | list[Buffer]
"""A command's argument; a list of buffers is one argument, written without joining."""

RECONNECT_SECONDS = 20.0
"""For how long a server that can't be reached any more is waited for, unless its URL says so."""
_CONNECT_SECONDS = 5.0
_REPLY_SECONDS = 60.0
_GATHER = 32 * 1024
"""Smaller pieces are joined before they are written."""
_TLS_CHUNK = 256 * 1024
"""What is encrypted and sent within one time limit."""
_UNSENT = 128 * 1024
"""What the system may hold that it can't send yet: the rest shows how far a transfer is."""
_NOT_READY = ("LOADING", "TRYAGAIN", "MASTERDOWN", "MOVED", "ASK ", "CLUSTERDOWN")
"""How the errors of a server begin that will be ready in a moment, or that another one is."""
_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and how to get in."""

    host: str | None
    port: int
    path: str | None
    """A unix socket; else host and port."""
    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    ca_file: str | None = None
    reconnect_seconds: float = RECONNECT_SECONDS
    cluster: bool = False
    """One node of a cluster, which knows the others."""

    def __str__(self) -> str:
        return f"unix socket {self.path}" if self.path else f"{self.host}:{self.port}"


def urls_in(store: str) -> list[str]:
    """The URLs of all servers that a store's setting names, with commas between them."""
    return re.split(r",(?=[a-z+]+://)", store)


def parse_url(url: str) -> Address:
    """The address in a URL: `redis://`, `rediss://`, `valkey://`, `redis+cluster://`, `unix://`."""
    try:
        return _address(url)
    except ValueError:
        # Not `from` the error: what it quotes may be a part of the password.
        raise SettingsError(
            f"store={_safe(url)!r} is not a store's URL: use redis://HOST:PORT/DB, with numbers "
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
        raise SettingsError(
            f"store={_safe(url)!r} is not a store's URL: use redis://HOST:PORT/DB, rediss:// for "
            "TLS, redis+cluster:// for a cluster, or unix:///PATH."
        )
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
        reconnect_seconds=_seconds(query.get("reconnect_seconds", [str(RECONNECT_SECONDS)])[0]),
        cluster=bool(cluster),
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def with_patience(store: str, reconnect_seconds: float) -> str:
    """The URLs, saying for how long a server is waited for; whoever is given them does the same."""
    if reconnect_seconds == RECONNECT_SECONDS:
        return store
    said = f"reconnect_seconds={reconnect_seconds:g}"
    urls = [
        url if "reconnect_seconds=" in url else f"{url}{'&' if '?' in url else '?'}{said}"
        for url in urls_in(store)
    ]
    return ",".join(urls)


def _safe(url: str) -> str:
    """The URL without its password."""
    head, at, tail = url.rpartition("@")
    scheme, colon, _ = head.partition("://")
    return f"{scheme + colon if colon else ''}…@{tail}" if at else url


class Connection:
    """One connection; the caller sees to it that one thread at a time uses it."""

    def __init__(self, address: Address, latency: float = 0.0, *, met: bool = False) -> None:
        """Connect.

        Args:
            address: Where to, and how to get in.
            latency: Seconds added to each round trip.
            met: It is known who answers there: the greeting travels with the first commands.
        """
        self.address = address
        self.lifetime: str | None = None
        """The server's, once somebody has asked for it."""
        self._latency = latency
        self._outage = outage_of(str(address))
        self._socket = self._connect()
        self._buffer = bytearray(1 << 16)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._greeting = self._words()
        """What is said before the first commands."""
        self._unanswered = 0
        """How much of it the server has still to reply to."""
        self._place: memoryview | None = None
        """Where a reply of just that length is written to."""
        if not met:
            try:
                self._let_in(self.pipeline([("PING",)])[0])
            except BaseException:
                self.close()
                raise
        self._socket.settimeout(_REPLY_SECONDS)

    def _connect(self) -> socket.socket:
        try:
            sock = _dialled(self.address)
        except OSError as error:
            raise StoreInterrupted(
                f"The store at {self.address} can't be reached: {error}. Is the server running, "
                "and is the address right?",
                str(self.address),
            ) from error
        return sock

    def _words(self) -> list[Sequence[Arg]]:
        address = self.address
        words: list[Sequence[Arg]] = []
        if address.password is not None:
            who = (address.username,) if address.username else ()
            words.append(("AUTH", *who, address.password))
        if address.db:
            words.append(("SELECT", address.db))
        return words

    def _let_in(self, answer: Any) -> None:
        """Heed what the server says to a greeting."""
        if isinstance(answer, StoreRefused):
            if not_ready(answer):
                raise self.interruption(answer) from answer
            raise StoreRefused(
                f"The store at {self.address} doesn't let us in: {answer}. Check the user name, "
                "password and database in the store's URL."
            ) from answer
        if answer not in (b"PONG", b"OK"):
            raise self._strange(repr(answer))

    def node(self, key: str) -> Connection:
        """The connection to the server that has a key."""
        return self

    @property
    def nodes(self) -> Sequence[Connection]:
        """Connections to all servers that have something."""
        return (self,)

    @property
    def dropped(self) -> bool:
        """Whether the server hung up while nothing was asked of it."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def hang_up(self) -> None:
        """Close it under whoever waits for a reply; that one gets an error."""
        self.interrupt()
        self._socket.close()

    def interrupt(self) -> None:
        """End whoever waits for a reply, who closes it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def call(self, *args: Arg) -> Any:
        """One command, one reply; an error reply is raised."""
        reply = self.pipeline([args])[0]
        if isinstance(reply, StoreRefused):
            raise reply
        return reply

    def call_into(self, place: memoryview, *args: Arg) -> Any:
        """One command; a reply as long as `place` is written there, and `place` returned.

        Error replies are returned, too.
        """
        self._place = place
        try:
            return self.pipeline([args])[0]
        finally:
            self._place = None

    def pipeline(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Several commands in one round trip; error replies stand among the others."""
        self.send(commands)
        return [self.reply() for _ in commands]

    def send(self, commands: Sequence[Sequence[Arg]]) -> None:
        """Write commands; each wants a `reply`."""
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
                _encode(arg, small, pieces)
        if small:
            pieces.append(b"".join(small))
        try:
            self._write(pieces)
        except OSError as error:
            raise self._broken(error) from error

    def _write(self, pieces: list[Buffer]) -> None:
        """Write all; the socket's time limit is for each part of it that is sent."""
        if len(pieces) == 1 and not self.address.tls:
            sent = self._socket.sendmsg(pieces)
            if sent == len(pieces[0]):
                return
            pieces = [memoryview(pieces[0])[sent:]]
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        pulse = present_pulse()
        while views:
            sent = self._write_some(views)
            if pulse is not None:
                pulse.moved(sent)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _write_some(self, views: list[memoryview]) -> int:
        if self.address.tls:
            return self._socket.send(views[0][:_TLS_CHUNK])
        return self._socket.sendmsg(at_once(views))

    def reply(self, patience: float = 0.0) -> Any:
        """The next reply, for which the server may take `patience` seconds longer than usual."""
        try:
            if patience:
                self._socket.settimeout(_REPLY_SECONDS + patience)
            while self._unanswered:
                self._unanswered -= 1
                self._let_in(self._reply())
            reply = self._reply()
        except OSError as error:
            raise self._broken(error) from error
        except ValueError as error:
            raise self._strange(str(error)) from error
        if not not_ready(reply):
            self._outage.ended()
        return reply

    def interruption(self, error: StoreRefused) -> StoreInterrupted:
        """What to raise for the reply of a server that isn't ready."""
        where = str(self.address)
        return StoreInterrupted(f"The store at {where} isn't ready yet: {error}.", where)

    def _broken(self, error: OSError) -> StoreInterrupted:
        where = str(self.address)
        return StoreInterrupted(f"The connection to the store at {where} broke: {error}.", where)

    def _strange(self, said: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"The store at {self.address} speaks another protocol: {said}. Is that the address of "
            "a Valkey or Redis server, and is rediss:// used where it wants TLS?"
        )

    def _reply(self) -> Any:
        line = self._line()
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
        raise self._strange(repr(line[:60]))

    def _line(self) -> bytes:
        while True:
            found = self._buffer.find(b"\r\n", self._start, self._end)
            if found >= 0:
                line = bytes(self._view[self._start : found])
                self._start = found + 2
                return line
            self._fill()

    def _bulk(self, length: int) -> Buffer:
        have = self._end - self._start
        place = self._place
        if have >= length + 2 and place is None:
            data = bytes(self._view[self._start : self._start + length])
            self._start += length + 2
            return data
        value = bytearray(length) if place is None or place.nbytes != length else place
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
            kept = self._end - self._start
            self._buffer[:kept] = self._buffer[self._start : self._end]
            self._start, self._end = 0, kept
        if self._end == len(self._buffer):
            raise ConnectionResetError("a reply line is too long")
        self._end += self._received(self._view[self._end :])

    def _received(self, place: memoryview) -> int:
        got = self._socket.recv_into(place[:MOST_AT_ONCE])
        if not got:
            raise ConnectionResetError("the server hung up")
        pulse = present_pulse()
        if pulse is not None:
            pulse.moved(got)
        return got


def not_ready(reply: Any) -> bool:
    """Whether a reply says that the server will be ready in a moment."""
    return isinstance(reply, StoreRefused) and str(reply).startswith(_NOT_READY)


def _dialled(address: Address) -> socket.socket:
    """A socket that is connected."""
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
    import ssl

    try:
        context = ssl.create_default_context(cafile=address.ca_file)
        return context.wrap_socket(sock, server_hostname=address.host)
    except FileNotFoundError as error:
        sock.close()
        raise SettingsError(f"store: there is no ca_file {address.ca_file!r}.") from error
    except BaseException:
        sock.close()
        raise


def _encode(arg: Arg, small: list[bytes], pieces: list[Buffer]) -> None:
    """Append an argument; what is large goes into `pieces` as it is, behind what came before."""
    if isinstance(arg, str):
        data: Buffer = arg.encode()
    elif isinstance(arg, (int, float)):
        data = str(arg).encode()
    elif isinstance(arg, list):
        small.append(b"$%d\r\n" % sum(memoryview(buffer).nbytes for buffer in arg))
        for buffer in arg:
            _append(buffer, small, pieces)
        small.append(b"\r\n")
        return
    else:
        data = arg
    if type(data) is bytes and len(data) < _GATHER:
        small.append(b"$%d\r\n%b\r\n" % (len(data), data))
        return
    small.append(b"$%d\r\n" % memoryview(data).nbytes)
    _append(data, small, pieces)
    small.append(b"\r\n")


def _append(data: Buffer, small: list[bytes], pieces: list[Buffer]) -> None:
    if memoryview(data).nbytes < _GATHER:
        small.append(bytes(data))
        return
    pieces.append(b"".join(small))
    small.clear()
    pieces.append(data)
