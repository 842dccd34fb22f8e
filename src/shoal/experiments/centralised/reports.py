"""Report finished tasks to a central scheduler, over TCP or through a channel of the store.

1. A report names a task and says whether it failed; it never contains values.
2. Each trip costs the setting `latency`: opening a connection, and a message on it. A message
   through the store is sent together with its output, in one round trip.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from shoal.errors import ShoalError
from shoal.storage import keys
from shoal.storage.base import DEFAULT_TTL
from shoal.storage.codec import Blob
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Arg, Connection
from shoal.types import RunId, TaskId

DONE, FAILED = "done", "failed"
"""The prefix of a report, followed by a space and the task."""

_CONNECT_SECONDS = 5.0
_SILENCE = 24 * 3600.0
"""How many seconds a channel may be silent."""
_BACKLOG = 4096

Tell = Callable[[str | ShoalError], None]
"""Receives a report, or the error that ended the reports."""


class OutputStore(RedisStore):
    """The store, where outputs are saved and, if there is a channel, published."""

    def save(self, run: RunId, task: TaskId, blob: Blob | None, report: str = "") -> None:
        """Save an output unless it is in shared memory, and publish a report, in one round trip."""
        commands: list[list[Arg]] = []
        if blob is not None:
            commands.append(["HSET", keys.outputs(run), task, blob])
            commands.append(["EXPIRE", keys.outputs(run), DEFAULT_TTL])
        if report:
            commands.append(["PUBLISH", keys.reports(run), report])
        if commands:
            self._call(commands)

    def subscribed(self, run: RunId) -> Connection:
        """Open a connection that receives a run's reports."""
        connection = self._connect()
        connection.call("SUBSCRIBE", keys.reports(run))
        return connection


class Reports(Protocol):
    """The source of a scheduler's reports during a run."""

    address: str
    """The address that workers report to; empty if they publish."""

    def close(self) -> None:
        """Stop listening."""
        ...


class TcpReports:
    """Accepts a connection from each worker; one thread serves all of them."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._server = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (self._server, self._wake):
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="shoal-reports", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        heard: dict[socket.socket, bytes] = {}
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake:
                    for connection in heard:
                        connection.close()
                    return
                if key.fileobj is self._server:
                    connection, _ = self._server.accept()
                    heard[connection] = b""
                    self._selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj  # type: ignore[assignment]
                said = _received(connection)
                heard[connection] += said
                if not said:
                    self._selector.unregister(connection)
                    connection.close()
                    report = heard.pop(connection).decode(errors="replace")
                    if report:  # else the worker died, or was started in vain
                        self._tell(report)

    def close(self) -> None:
        """Stop listening."""
        self._waker.send(b"!")
        self._thread.join()
        self._selector.close()
        for sock in (self._server, self._wake, self._waker):
            sock.close()


def _received(connection: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return connection.recv(1 << 16)
    return b""


class TcpReport:
    """A worker's connection to the scheduler, opened while the task runs and used once."""

    def __init__(self, address: str, latency: float) -> None:
        host, _, port = address.rpartition(":")
        self._latency = latency
        self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
        self._open = time.monotonic() + latency

    def send(self, report: str) -> None:
        """Send a report and close the connection."""
        opening = max(0.0, self._open - time.monotonic())
        if opening or self._latency:
            time.sleep(opening + self._latency)
        with self._socket:
            self._socket.sendall(report.encode())


class PublishedReports:
    """Subscribes to the run's channel of the store."""

    def __init__(self, tell: Tell, store: OutputStore, run: RunId) -> None:
        self.address = ""
        self._tell = tell
        self._closed = False
        self._connection = store.subscribed(run)
        self._thread = threading.Thread(target=self._listen, name="shoal-reports", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while True:
                kind, _, report = self._connection.reply(extra_seconds=_SILENCE)
                if kind == b"message":
                    self._tell(str(report, "utf-8"))
        except ShoalError as error:
            if not self._closed:
                self._tell(error)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._connection.interrupt()
        self._thread.join()
        self._connection.close()
