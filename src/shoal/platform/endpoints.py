"""A gateway's HTTP interface; imported with the first connection.

`POST /job` starts workers of a run, `POST /fanout` starts many of them in the background,
`POST /warmup` allocates sandboxes without running anything,
`DELETE /runs/RUN` stops a run's workers, `GET /runs/RUN/logs` returns what its user code printed,
`GET /status` and `GET /metrics` (Prometheus text format) show what the gateway is doing, and
`GET /openapi.json` describes the interface.

1. Each request carries a token in its `Authorization` header: the gateway's, or that of a run,
   which gives access to that run only. Bodies are JSON; an invalid one is refused with 400.
2. No caller can hold a thread forever: requests have a deadline. Callers without a token have an
   earlier one, and their connection is closed after the first answer.
3. Headers, bodies and requests per second are limited.
"""

from __future__ import annotations

import http.client
import io
import json
import logging
import math
import socket
import ssl
import time
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from msgspec import to_builtins

from shoal.errors import GatewayBusy, GatewayRefused
from shoal.platform.gateway import LocalGateway
from shoal.platform.invocation import StartRequest, WarmUpRequest, from_json, valid_name
from shoal.platform.openapi import description
from shoal.platform.throttle import Throttle
from shoal.platform.tokens import Scope, scope_of
from shoal.types import RunId

log = logging.getLogger(__name__)

_MAX_BODY = 64 * 1024 * 1024
_MAX_STRANGER_BODY = 1024 * 1024
"""Bytes that are read from a caller without a token."""
_MAX_HEADERS = 32 * 1024
"""Bytes of a request's headers."""
_IDLE_SECONDS = 60.0
"""How long a connection may be idle between requests, and how long a request may take."""
_STRANGER_SECONDS = 10.0
"""The same for callers that haven't presented a token."""
_BUSY_SECONDS = 1
"""When to retry if the queue is full."""


@dataclass(frozen=True, slots=True)
class Door:
    """What all connections to a gateway share."""

    gateway: LocalGateway
    token: str
    tls: ssl.SSLContext | None = None
    callers: Throttle = field(default_factory=lambda: Throttle(2000, 4000))
    """Limits requests with a token, per address and run."""
    strangers: Throttle = field(default_factory=lambda: Throttle(10, 200))
    """Limits requests without one, per address."""


def serve_connection(connection: socket.socket, peer: tuple[str, int], door: Door) -> None:
    """Answer requests on a connection until it is closed."""
    handler = type("Handler", (_GatewayHandler,), {"door": door})
    try:
        with connection:
            connection.settimeout(_STRANGER_SECONDS)
            if door.tls is None:
                handler(connection, peer, None)
                return
            with door.tls.wrap_socket(connection, server_side=True) as secured:
                handler(secured, peer, None)
    except OSError as error:
        log.debug("%s disconnected: %s", peer[0], error)


class _Arriving(io.RawIOBase):
    """A connection's bytes, which must arrive before a deadline however slowly they trickle."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._idle = True
        self._deadline = 0.0
        self._request = 0.0

    def expect(self, idle: float, request: float) -> None:
        """Allow `idle` seconds until a request begins, and `request` more until it ends."""
        self._idle = True
        self._deadline = time.monotonic() + idle
        self._request = request

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        if self._idle:
            self._idle = False
            self._deadline = time.monotonic() + self._request
        return count


class _Lines(io.BufferedReader):
    """What has arrived, with a limit on all headers of a request together."""

    head = 0
    """Bytes that were read line by line since the request began."""

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        self.head += len(line)
        if self.head > _MAX_HEADERS and len(line) < self.head:  # not for the request line itself
            raise http.client.LineTooLong("header")
        return line


class _GatewayHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "shoal"
    timeout = _IDLE_SECONDS
    door: Door

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._arriving = _Arriving(self.connection)
        self._lines = self.rfile = _Lines(self._arriving)
        self._known = False

    def handle_one_request(self) -> None:
        within = self.timeout if self._known else min(self.timeout, _STRANGER_SECONDS)
        self._arriving.expect(within, within)
        self._lines.head = 0
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s " + format, self.client_address[0], *args)

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a malformed request: always the caller's fault."""
        self.close_connection = True
        self._reply(code if code < 500 else 400, {"error": message or "The request is malformed."})

    def _answer(self, method: str) -> None:
        wait = 0.0
        try:
            scope = scope_of(self.headers.get("Authorization", ""), self.door.token)
            self._known = scope is not None
            self.close_connection = self.close_connection or not self._known
            wait = self._delay(scope)
            body = self._body(_MAX_BODY if self._known else _MAX_STRANGER_BODY)
            if wait:
                status, answer = 429, {"error": "Too many requests."}
            elif scope is None:
                status, answer = 401, {"error": "The token is missing or wrong."}
            else:
                status, answer = self._route(method, body, scope)
        except GatewayBusy as error:
            wait = _BUSY_SECONDS
            status, answer = 429, {"error": str(error)}
        except GatewayRefused as error:
            status, answer = 400, {"error": str(error)}
        except OSError:
            raise
        except Exception:  # the request's outermost edge: the caller gets an answer
            log.exception("%s %s", method, self.path)
            status, answer = 500, {"error": "Internal error; see the gateway's log."}
        self._reply(status, answer, wait)

    def _delay(self, scope: Scope | None) -> float:
        now = time.monotonic()
        if scope is None:
            return self.door.strangers.delay(self.client_address[0], now)
        return self.door.callers.delay((self.client_address[0], scope.run), now)

    def _body(self, limit: int) -> bytes:
        given = self.headers.get_all("Content-Length") or ["0"]
        known = len(given) == 1 and given[0].isascii() and given[0].isdecimal()
        length = int(given[0][:20]) if known else limit + 1
        if length > limit or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise GatewayRefused(f"A request must have a Content-Length of at most {limit} bytes.")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the request was cut off")
        return body

    def _route(self, method: str, body: bytes, scope: Scope) -> tuple[int, Any]:
        match method, self.path.split("/")[1:]:
            case _, ["runs", run, *_] if not valid_name(run):
                return self._missing(method)
            case _, ["runs", run, *_] if not scope.covers(run):
                return _forbidden()
            case "GET", ["metrics"] if scope.run is not None:
                return _forbidden()
            case "POST", ["job" | "fanout" as endpoint]:
                return self._start(endpoint, body, scope)
            case "POST", ["warmup"]:
                return self._warm_up(body, scope)
            case "GET", [*path]:
                return self._look(path, scope)
            case "DELETE", ["runs", run]:
                self.door.gateway.cancel(RunId(run))
                return 200, {}
        return self._missing(method)

    def _start(self, endpoint: str, body: bytes, scope: Scope) -> tuple[int, Any]:
        request = from_json(body, StartRequest)
        if not scope.covers(request.context.run, request.context.code.session):
            return _forbidden()
        gateway = self.door.gateway
        start = gateway.take if endpoint == "job" else gateway.fan_out
        start(request.context, request.starts)
        return 202, {}

    def _warm_up(self, body: bytes, scope: Scope) -> tuple[int, Any]:
        request = from_json(body, WarmUpRequest)
        if not scope.covers(request.context.run, request.context.code.session):
            return _forbidden()
        ready = self.door.gateway.prewarm(request.context, request.resources, request.count)
        return 202, {"warm": ready}

    def _look(self, path: list[str], scope: Scope) -> tuple[int, Any]:
        gateway = self.door.gateway
        match path:
            case ["status"]:
                status = gateway.status() | {"environment": _environment()}
                return 200, status | {"runs": [run for run in status["runs"] if scope.covers(run)]}
            case ["memory", nonce] if valid_name(nonce):
                seen = gateway.sees_folders(nonce)
                return 200, {"path": gateway.probed(nonce), "folders": seen}
            case ["metrics"]:
                return 200, metrics(gateway.status())
            case ["openapi.json"]:
                return 200, description()
            case ["runs", run]:
                return 200, {
                    "active": gateway.active(RunId(run)),
                    "running": list(gateway.running(RunId(run))),
                }
            case ["runs", run, "logs"]:
                return 200, [asdict(line) for line in gateway.logs(RunId(run))]
        return self._missing("GET")

    def _missing(self, method: str) -> tuple[int, Any]:
        return 404, {"error": f"There is no {method} {self.path[:200]} here."}

    def _reply(self, status: int, answer: Any, wait: float = 0.0) -> None:
        text = isinstance(answer, str)
        body = answer.encode() if text else json.dumps(answer).encode()
        self.connection.settimeout(_IDLE_SECONDS if self._known else _STRANGER_SECONDS)
        self.send_response(status)
        self.send_header(
            "Content-Type", "text/plain; version=0.0.4" if text else "application/json"
        )
        self.send_header("Content-Length", str(len(body)))
        if wait:
            self.send_header("Retry-After", str(math.ceil(wait)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _environment() -> Any:
    from shoal.platform.environment import this_environment

    return to_builtins(this_environment())


def _forbidden() -> tuple[int, Any]:
    return 403, {"error": "The token belongs to another run."}


def metrics(status: dict[str, Any]) -> str:
    """A gateway's status in Prometheus' text format."""
    counts = status["invocations"]
    lines = [
        "# HELP shoal_sandboxes Sandboxes by state.",
        "# TYPE shoal_sandboxes gauge",
        f'shoal_sandboxes{{state="busy"}} {status["busy"]}',
        f'shoal_sandboxes{{state="idle"}} {status["idle"]}',
        "# HELP shoal_sandboxes_capacity Sandboxes that may exist at once.",
        "# TYPE shoal_sandboxes_capacity gauge",
        f"shoal_sandboxes_capacity {status['capacity']}",
        "# HELP shoal_queued_invocations Invocations that wait for a sandbox.",
        "# TYPE shoal_queued_invocations gauge",
        f"shoal_queued_invocations {status['queued']}",
        "# HELP shoal_invocations_total Invocations by whether their sandbox was new.",
        "# TYPE shoal_invocations_total counter",
        f'shoal_invocations_total{{start="cold"}} {counts["cold"]}',
        f'shoal_invocations_total{{start="warm"}} {counts["warm"]}',
        "# HELP shoal_sandbox_deaths_total Sandboxes that ended in the middle of an invocation.",
        "# TYPE shoal_sandbox_deaths_total counter",
        f'shoal_sandbox_deaths_total{{reason="died"}} {counts["died"]}',
        f'shoal_sandbox_deaths_total{{reason="out_of_memory"}} {counts["out_of_memory"]}',
        "# HELP shoal_busy_seconds_total Seconds that sandboxes spent on invocations.",
        "# TYPE shoal_busy_seconds_total counter",
        f"shoal_busy_seconds_total {status['busy_seconds']}",
    ]
    return "\n".join(lines) + "\n"
