"""`HttpPlatform`: a remote gateway, over HTTP or HTTPS.

It retries while the gateway is busy, up to a limit, and once after reading the new token of a
gateway that was restarted.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from shoal.errors import (
    GatewayBusy,
    GatewayRefused,
    GatewayUnavailable,
    TokenRefused,
)
from shoal.execution.pool import WarmPool
from shoal.platform.base import LogLine
from shoal.platform.http_client import (
    checked_token,
    closed,
    connected,
    retry_after,
    trusting,
    untrusted,
)
from shoal.platform.invocation import (
    INLINE_INPUTS,
    PythonEnvironment,
    RunContext,
    Start,
    StartRequest,
    WarmUpRequest,
    to_json,
)
from shoal.platform.tokens import Token, address_of, run_token
from shoal.types import Resources, RunId

_REPLY_SECONDS = 30.0
_BUSY = 429
_BUSY_SECONDS = 30.0
"""How long to retry while the gateway is busy."""
_BATCH_NBYTES = 32 * 1024 * 1024
"""The most bytes of parts and inputs in one request; as base64, a gateway accepts them."""


class HttpPlatform:
    """A remote gateway, through its URL and token."""

    inline_nbytes: int | None = INLINE_INPUTS
    queue_seconds = 0.0
    function_seconds: float | None = None
    memory_steps: Sequence[int] = ()
    prices: str | None = None

    def __init__(
        self,
        url: str,
        token: str | Token,
        latency: float = 0.0,
        ca_file: str | None = None,
        ca_data: str | None = None,
    ) -> None:
        """Connect to a gateway with the first request.

        Args:
            url: Its address; `https://` for TLS.
            token: Its token, or that of a run.
            latency: Seconds added to each round trip, for experiments.
            ca_file: Certificate authorities to trust; default: the system's.
            ca_data: The content of such a file.
        """
        self.url = url
        self._token = token if isinstance(token, Token) else Token(token)
        scheme, host, port = address_of(url)
        self._address = (host, port)
        self._tls = trusting(ca_file, ca_data) if scheme == "https" else None
        self._ca_file, self._ca_data = ca_file, ca_data
        checked_token(self._token.text)
        self._latency = latency
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._served: set[str] = set()
        """Sessions that may have warm sandboxes."""

    def token_of(self, run: str, session: str) -> str:
        """The token that gives access to one run of a session."""
        return run_token(self._token.text, run, session)

    @property
    def authorities(self) -> str | None:
        """The certificate authorities to trust, for processes on other machines."""
        if self._tls is None or self._ca_file is None:
            return self._ca_data
        # What isn't ASCII is a comment.
        return Path(self._ca_file).read_text(encoding="ascii", errors="ignore")

    @cached_property
    def _offered(self) -> dict[str, Any]:
        """The gateway's status at the first request; what it offers doesn't change."""
        return self.status()

    @property
    def memory_mb(self) -> int | None:
        """The most memory that a worker can have."""
        found: int | None = self._offered.get("memory_mb")
        return found

    @property
    def cpus(self) -> float | None:
        """The CPUs of the gateway's machine."""
        found: float | None = self._offered.get("cpus")
        return found

    @property
    def default_workers(self) -> int | None:
        """One for each core of the gateway's machine."""
        return None if self.cpus is None else max(1, int(self.cpus))

    @property
    def capacity(self) -> int | None:
        """How many sandboxes the gateway may have at once."""
        found: int | None = self._offered.get("capacity")
        return found

    @property
    def idle_seconds(self) -> float | None:
        """How long the gateway keeps an idle sandbox."""
        found: float | None = self._offered.get("idle_seconds")
        return found

    def probed(self, nonce: str) -> str | None:
        """Where the gateway sees the probe in this client's shared memory."""
        found: str | None = self._request("GET", f"/memory/{nonce}").get("path")
        return found

    def sees_folders(self, nonce: str) -> bool:
        """Whether the gateway sees the folders that this client's probe names."""
        found: bool = self._request("GET", f"/memory/{nonce}").get("folders", False)
        return found

    def check_environment(self) -> None:
        """Raise `EnvironmentMismatch` if the gateway has another version of Python or Shoal."""
        from shoal.platform.environment import mismatch, this_environment

        told, here = self.status().get("environment", {}), this_environment()
        there = PythonEnvironment(
            python=told.get("python", here.python), shoal=told.get("shoal", here.shoal)
        )
        problem = mismatch(here, there, f"of the gateway at {self.url}")
        if problem is not None:
            raise problem

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers of a run."""
        self._served.add(context.code.session)
        for some in _batches(starts):
            self._request("POST", "/job", StartRequest(context=context, starts=some))

    def supervise(self, context: RunContext) -> None:
        """Do nothing: the gateway that started the run's workers looks after them."""

    def fan_out(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Have the gateway start many workers of a run in the background."""
        self._request("POST", "/fanout", StartRequest(context=context, starts=tuple(starts)))

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        """Have the gateway prepare sandboxes; returns how many are ready."""
        self._served.add(context.code.session)
        memory_mb, cpus = resources.memory_mb, resources.cpu_share
        request = WarmUpRequest(context=context, memory_mb=memory_mb, cpus=cpus, count=count)
        ready: int = self._request("POST", "/warmup", request).get("warm", count)
        return ready

    def cancel(self, run: RunId) -> None:
        """Stop the run's workers."""
        self._request("DELETE", f"/runs/{run}")

    def running(self, run: RunId) -> Sequence[int]:
        """The numbers of the tasks that the run's workers are executing."""
        found: Sequence[int] = self._request("GET", f"/runs/{run}").get("running", ())
        return found

    def active(self, run: RunId) -> bool:
        """Whether a worker of the run is running or waits for a sandbox."""
        return bool(self._request("GET", f"/runs/{run}").get("active"))

    def pool(self, session: str) -> WarmPool[Resources] | None:
        """An empty pool for a session without workers so far; None afterwards: unknown.

        The gateway could tell, but a question for each run would take longer than it is worth.
        """
        if session in self._served or self.capacity is None or self.idle_seconds is None:
            return None
        return WarmPool(self.capacity, self.idle_seconds)

    def logs(self, run: RunId) -> Sequence[LogLine]:
        """What the run's user code has printed."""
        return [LogLine(**line) for line in self._request("GET", f"/runs/{run}/logs")]

    def status(self) -> dict[str, Any]:
        """What the gateway is doing."""
        found: dict[str, Any] = self._request("GET", "/status")
        return found

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._disconnect()

    def _request(self, method: str, path: str, body: Struct | None = None) -> Any:
        if self._latency:
            threading.Event().wait(self._latency)
        data = None if body is None else to_json(body)
        status, answer = self._retrying_exchange(method, path, data)
        if status == 401:
            raise TokenRefused(self.url, fixed=self._token.fixed)
        try:
            found = json.loads(answer or b"{}")
            if status >= 300:
                refusal = GatewayBusy if status == _BUSY else GatewayRefused
                raise refusal(f"The gateway at {self.url} refused the request: {found['error']}")
        except (ValueError, LookupError, TypeError) as error:
            raise GatewayUnavailable(
                f"The server at {self.url} answered with status {status} and isn't a gateway. Is "
                "the address right?"
            ) from error
        return found

    def _retrying_exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Send a request; retry if the gateway is busy or has a new token."""
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
        """Send a request; the status, the body, and the seconds after which to retry.

        Sent again on a new connection if the gateway had closed the existing one.
        """
        for fresh in (False, True):
            connection = self._connection
            if connection is None or fresh or closed(connection):
                self._disconnect()
                connection = self._connect()
            try:
                headers = {"Authorization": f"Bearer {token}"}
                connection.request(method, path, data, headers)
                response = connection.getresponse()
                return response.status, response.read(), retry_after(response)
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                if fresh or isinstance(error, TimeoutError):
                    raise self._unreachable(error) from error
        raise AssertionError

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        try:
            connection = connected(*self._address, self._tls, _REPLY_SECONDS)
        except OSError as error:
            raise self._unreachable(error) from error
        self._connection = connection
        return connection

    def _unreachable(self, error: Exception) -> GatewayUnavailable:
        if isinstance(error, ssl.SSLCertVerificationError):
            return GatewayUnavailable(untrusted(self.url, "gateway", error))
        return GatewayUnavailable(
            f"The gateway at {self.url} can't be reached: {error}. Is `shoal gateway` running "
            "there, and is the address right?"
        )


def _batches(starts: Sequence[Start]) -> Iterator[tuple[Start, ...]]:
    """Split starts into requests that a gateway accepts."""
    batch: list[Start] = []
    nbytes = 0
    for start in starts:
        size = len(start.part or b"") + len(start.inputs or b"")
        if batch and nbytes + size > _BATCH_NBYTES:
            yield tuple(batch)
            batch, nbytes = [], 0
        batch.append(start)
        nbytes += size
    if batch:
        yield tuple(batch)
