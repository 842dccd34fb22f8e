"""What a gateway answers over HTTP; imported when somebody connects for the first time.

`POST /job` starts workers, `POST /fanout` has the fan-out invoker start many, of which it is told
the names, `POST /warmup` allocates sandboxes without running anything,
`DELETE /runs/RUN` stops a run's workers, `GET /runs/RUN/logs` tells what its user code printed,
`GET /status` and `GET /metrics` (Prometheus text format) what the gateway is doing, and
`GET /openapi.json` describes all of it.

1. Each request carries a token in its `Authorization` header: the gateway's, or one of a run, which
   opens that run only. Bodies are JSON, and what doesn't fit the description is refused with 400.
2. Nobody holds a thread for ever: a request has to be there within a time, a stranger's sooner, and
   a stranger's connection is closed after the first answer.
3. Heads, bodies and requests a second are bounded.
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

from shoal.errors import GatewayBusy, GatewayRefused
from shoal.platform.base import MOST_WARM, Invocation, valid_run, worker_names
from shoal.platform.gateway import LocalGateway
from shoal.platform.invoker import Invoker
from shoal.platform.openapi import description
from shoal.platform.throttle import Throttle
from shoal.platform.tokens import Scope, Token, scope_of
from shoal.types import RunId

log = logging.getLogger(__name__)

_MOST_BYTES = 64 * 1024 * 1024
_MOST_UNASKED = 1024 * 1024
"""Bytes that are read from somebody without a token."""
_MOST_HEAD = 32 * 1024
"""Bytes of a request's headers."""
_IDLE_SECONDS = 60.0
"""How long a connection is kept between requests, and the most that a request may take."""
_STRANGER_SECONDS = 10.0
"""The same for somebody who hasn't shown a token."""
_BUSY_SECONDS = 1
"""After how long to try again when the queue is full."""


@dataclass(frozen=True, slots=True)
class Door:
    """What all connections to a gateway have in common."""

    gateway: LocalGateway | None
    """None: there is only a fan-out invoker behind it."""
    token: Token
    tls: ssl.SSLContext | None = None
    callers: Throttle = field(default_factory=lambda: Throttle(2000, 4000))
    """Requests with a token, of each address and run."""
    strangers: Throttle = field(default_factory=lambda: Throttle(10, 200))
    """Requests without one, of each address."""
    invoker: Invoker | None = None
    """Default: the gateway's own."""


def serve_connection(connection: socket.socket, peer: tuple[str, int], door: Door) -> None:
    """Answer requests on a connection until it is closed."""
    handler = type("Handler", (_Handler,), {"door": door})
    try:
        with connection:
            connection.settimeout(_STRANGER_SECONDS)
            if door.tls is None:
                handler(connection, peer, None)
                return
            with door.tls.wrap_socket(connection, server_side=True) as secured:
                handler(secured, peer, None)
    except OSError as error:
        log.debug("%s went away: %s", peer[0], error)


class _Arriving(io.RawIOBase):
    """A connection's bytes, which have to come in time however slowly they drip."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._idle = True
        self._deadline = 0.0
        self._request = 0.0

    def expect(self, idle: float, request: float) -> None:
        """A request may begin within a time, and has another to arrive once it has begun."""
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
    """What has arrived, with a bound on all headers of a request together."""

    head = 0
    """Bytes that have been read line by line since the request began."""

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        self.head += len(line)
        if self.head > _MOST_HEAD and len(line) < self.head:  # not for the request line itself
            raise http.client.LineTooLong("header")
        return line


class _Handler(BaseHTTPRequestHandler):
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
        """Answer what isn't HTTP as we know it: always the caller's fault."""
        self.close_connection = True
        self._reply(code if code < 500 else 400, {"error": message or "This isn't a request."})

    def _answer(self, method: str) -> None:
        wait = 0.0
        try:
            scope = self._scope()
            self._known = scope is not None
            self.close_connection = self.close_connection or not self._known
            wait = self._delay(scope)
            body = self._body(_MOST_BYTES if self._known else _MOST_UNASKED)
            if wait:
                status, answer = 429, {"error": "There are too many requests."}
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
        except Exception:
            log.exception("%s %s", method, self.path)
            status, answer = 500, {"error": "The gateway has a defect; its log says which."}
        self._reply(status, answer, wait)

    def _scope(self) -> Scope | None:
        """What the request's token opens; that of a gateway started again may have to be read."""
        header, token = self.headers.get("Authorization", ""), self.door.token.text
        scope = scope_of(header, token)
        if scope is None and self.door.token.renewed(token):
            scope = scope_of(header, self.door.token.text)
        return scope

    def _delay(self, scope: Scope | None) -> float:
        now = time.monotonic()
        if scope is None:
            return self.door.strangers.delay(self.client_address[0], now)
        return self.door.callers.delay((self.client_address[0], scope.run), now)

    def _body(self, most: int) -> bytes:
        given = self.headers.get_all("Content-Length") or ["0"]
        known = len(given) == 1 and given[0].isascii() and given[0].isdecimal()
        length = int(given[0][:20]) if known else most + 1
        if length > most or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise GatewayRefused(f"A request has at most {most} bytes and says how many.")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the request was cut off")
        return body

    def _route(self, method: str, body: bytes, scope: Scope) -> tuple[int, Any]:
        match method, self.path.split("/")[1:]:
            case _, ["runs", run, *_] if not valid_run(run):
                return self._missing(method)
            case _, ["runs", run, *_] if not scope.covers(run):
                return _forbidden()
            case "GET", ["metrics"] if scope.run is not None:
                return _forbidden()
            case "POST", ["fanout"]:
                return self._fan_out(body, scope)
            case _ if self.door.gateway is None:
                return self._missing(method)
            case "POST", ["job" | "warmup"]:
                return self._start(body, scope)
            case "GET", [*path]:
                return self._look(path, scope)
            case "DELETE", ["runs", run]:
                self._gateway.cancel(RunId(run))
                return 200, {}
        return self._missing(method)

    @property
    def _gateway(self) -> LocalGateway:
        assert self.door.gateway is not None
        return self.door.gateway

    def _fan_out(self, body: bytes, scope: Scope) -> tuple[int, Any]:
        """Have the fan-out invoker start workers."""
        found = _json_list(body)
        if len(found) != 2:
            raise GatewayRefused("A fan-out is a list of an invocation and of workers' names.")
        like, workers = Invocation.from_dict(found[0]), worker_names(found[1])
        if not scope.covers(like.run, like.session):
            return _forbidden()
        (self.door.invoker or self._gateway).fan_out(like, workers)
        return 202, {}

    def _start(self, body: bytes, scope: Scope) -> tuple[int, Any]:
        """Start workers, or warm sandboxes up."""
        gateway = self._gateway
        if self.path == "/job":
            count, items = None, _json_list(body)
        else:
            count, items = _warmup(body)
        jobs = [Invocation.from_dict(item) for item in items]
        if not all(scope.covers(job.run, job.session) for job in jobs):
            return _forbidden()
        if count is None:
            gateway.take(jobs)
        else:
            gateway.prewarm(jobs[0], count)
        return 202, {}

    def _look(self, path: list[str], scope: Scope) -> tuple[int, Any]:
        gateway = self._gateway
        match path:
            case ["status"]:
                status = gateway.status() | {"host": gateway.host}
                return 200, status | {"runs": [run for run in status["runs"] if scope.covers(run)]}
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


def _forbidden() -> tuple[int, Any]:
    return 403, {"error": "The token is that of another run."}


def _json_list(body: bytes) -> list[Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise GatewayRefused(f"The request isn't JSON: {error}.") from error
    if not isinstance(found, list):
        raise GatewayRefused("The request must be a list of invocations.")
    return found


def _warmup(body: bytes) -> tuple[int, list[Any]]:
    found = _json_list(body)
    if len(found) != 2 or type(found[0]) is not int or not 0 <= found[0] <= MOST_WARM:
        raise GatewayRefused("A warm-up is a list of a count and an invocation.")
    return found[0], found[1:]


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
        "# HELP shoal_invocations_total Invocations by how their sandbox started.",
        "# TYPE shoal_invocations_total counter",
        f'shoal_invocations_total{{start="cold"}} {counts["cold"]}',
        f'shoal_invocations_total{{start="warm"}} {counts["warm"]}',
        "# HELP shoal_sandbox_deaths_total Sandboxes that ended in the middle of a job.",
        "# TYPE shoal_sandbox_deaths_total counter",
        f'shoal_sandbox_deaths_total{{reason="died"}} {counts["died"]}',
        f'shoal_sandbox_deaths_total{{reason="out_of_memory"}} {counts["out_of_memory"]}',
        "# HELP shoal_busy_seconds_total Seconds that sandboxes spent on jobs.",
        "# TYPE shoal_busy_seconds_total counter",
        f"shoal_busy_seconds_total {status['busy_seconds']}",
    ]
    return "\n".join(lines) + "\n"
