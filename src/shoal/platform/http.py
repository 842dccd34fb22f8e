"""`HttpPlatform`: a gateway somewhere else, spoken to over HTTP or HTTPS.

A gateway that has too much to do is asked again, for a while; so is one that was started again and
has a new token, once that has been read.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from shoal.errors import (
    GatewayBusy,
    GatewayRefused,
    GatewayUnavailable,
    SettingsError,
    TokenRefused,
)
from shoal.execution.pool import WarmPool
from shoal.platform.base import INLINE_NBYTES, Invocation, LogLine
from shoal.platform.tokens import Token, address_of
from shoal.types import Resources, RunId, WorkerId

_CONNECT_SECONDS = 5.0
_REPLY_SECONDS = 30.0
_BUSY = 429
_BUSY_SECONDS = 30.0
"""How long a gateway that has too much to do is asked again."""
_RETRY_SECONDS = 1.0


class HttpPlatform:
    """A gateway somewhere else, through its URL and token."""

    inline_nbytes: int | None = INLINE_NBYTES

    def __init__(
        self,
        url: str,
        token: str | Token,
        latency: float = 0.0,
        ca_file: str | None = None,
        invoker: str | None = None,
    ) -> None:
        """Speak to a gateway.

        Args:
            url: Where it is; `https://` for TLS.
            token: Its token, or that of a run.
            latency: Seconds added to each round trip, for experiments.
            ca_file: Who its certificate may come from; default: whom the system trusts.
            invoker: The URL of a fan-out invoker beside it; default: its own.
        """
        self.url = url
        self._token = token if isinstance(token, Token) else Token(token)
        self._invoker = HttpPlatform(invoker, self._token, latency, ca_file) if invoker else self
        scheme, host, port = address_of(url)
        self._where = (host, port)
        self._tls = _trusting(ca_file) if scheme == "https" else None
        if not self._token.text.isascii() or not self._token.text.isprintable():
            raise SettingsError("A gateway's token has printable ASCII characters only.")
        self._latency = latency
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._host: str | None = None

    @property
    def host(self) -> str:
        """The machine that the gateway is on."""
        if self._host is None:
            self._host = str(self.status().get("host", ""))
        return self._host

    @cached_property
    def memory_mb(self) -> int | None:
        """The most that a worker of the gateway can have."""
        found = self.status().get("memory_mb")
        return None if found is None else int(found)

    @cached_property
    def cpus(self) -> float | None:
        """What the gateway's machine has."""
        found = self.status().get("cpus")
        return None if found is None else float(found)

    def invoke(self, invocations: Sequence[Invocation]) -> None:
        """Start workers."""
        self._request("POST", "/job", [invocation.to_dict() for invocation in invocations])

    def fan_out(self, like: Invocation, workers: Sequence[WorkerId]) -> None:
        """Have the fan-out invoker start workers."""
        self._invoker._request("POST", "/fanout", [like.to_dict(), list(workers)])

    def prewarm(self, invocation: Invocation, count: int) -> None:
        """Have sandboxes ready."""
        self._request("POST", "/warmup", [count, invocation.to_dict()])

    def cancel(self, run: RunId) -> None:
        """Stop the run's workers."""
        self._request("DELETE", f"/runs/{run}")

    def running(self, run: RunId) -> Sequence[int]:
        """The numbers of the tasks that the run's workers are executing."""
        found: Sequence[int] = self._request("GET", f"/runs/{run}").get("running", ())
        return found

    def active(self, run: RunId) -> bool:
        """Whether a worker of the run is at work or waits to be."""
        return bool(self._request("GET", f"/runs/{run}").get("active"))

    def pool(self, session: str) -> WarmPool[Resources]:
        """A pool of the gateway's size, none of whose sandboxes is known to be warm."""
        return WarmPool(int(self.status()["capacity"]))

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """What the run's user code has printed."""
        return [LogLine(**line) for line in self._request("GET", f"/runs/{run}/logs")]

    def status(self) -> dict[str, Any]:
        """What the gateway is doing."""
        found: dict[str, Any] = self._request("GET", "/status")
        return found

    def close(self) -> None:
        """Give up the connections."""
        if self._invoker is not self:
            self._invoker.close()
        with self._lock:
            self._forget()

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        if self._latency:
            threading.Event().wait(self._latency)
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        status, answer = self._patient_exchange(method, path, data)
        if status == 401:
            raise TokenRefused(self.url, fixed=self._token.fixed)
        try:
            found = json.loads(answer or b"{}")
            if status >= 300:
                kind = GatewayBusy if status == _BUSY else GatewayRefused
                raise kind(f"The gateway at {self.url} refuses: {found['error']}")
        except (ValueError, LookupError, TypeError) as error:
            raise GatewayUnavailable(
                f"What answers at {self.url} with status {status} isn't a gateway. Is the address "
                "right?"
            ) from error
        return found

    def _patient_exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """One request; again after a while if the gateway has too much to do, or a new token."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            token = self._token.text
            with self._lock:
                status, answer, wait = self._exchange(method, path, data, token)
            if status == 401 and self._token.renewed(token):
                continue
            if status != _BUSY or time.monotonic() + wait > deadline:
                return status, answer
            time.sleep(wait)

    def _exchange(
        self, method: str, path: str, data: bytes | None, token: str
    ) -> tuple[int, bytes, float]:
        """A status, a body, and after how long to ask again.

        Once more on a new connection if the kept one was closed meanwhile.
        """
        for fresh in (False, True):
            connection = self._connection
            if connection is None or fresh or _closed(connection):
                self._forget()
                connection = self._connect()
            try:
                headers = {"Authorization": f"Bearer {token}"}
                connection.request(method, path, data, headers)
                response = connection.getresponse()
                wait = response.headers.get("Retry-After", "")
                seconds = float(wait) if wait.isdecimal() else _RETRY_SECONDS
                return response.status, response.read(), seconds
            except (OSError, http.client.HTTPException) as error:
                self._forget()
                if fresh or isinstance(error, TimeoutError):
                    raise self._unreachable(error) from error
        raise AssertionError

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            connection = http.client.HTTPConnection(*self._where, timeout=_CONNECT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(
                *self._where, timeout=_CONNECT_SECONDS, context=self._tls
            )
        try:
            connection.connect()
        except OSError as error:
            raise self._unreachable(error) from error
        connection.sock.settimeout(_REPLY_SECONDS)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        return connection

    def _unreachable(self, error: Exception) -> GatewayUnavailable:
        if isinstance(error, ssl.SSLCertVerificationError):
            return GatewayUnavailable(
                f"The certificate of the gateway at {self.url} isn't trusted: "
                f"{error.verify_message}. Set ca_file to the file of who signed it, and use the "
                "name that the certificate has."
            )
        return GatewayUnavailable(
            f"The gateway at {self.url} can't be reached: {error}. Is `shoal gateway` running "
            "there, and is the address right?"
        )


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    """TLS that checks who the gateway is."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"ca_file={ca_file!r} can't be used: {error}. It is a file of certificates in PEM "
            "format."
        ) from error


def _closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has closed a kept connection."""
    return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])
