"""What a gateway answers over HTTP; imported when somebody connects for the first time.

`POST /job` starts workers, `POST /warmup` allocates sandboxes without running anything,
`DELETE /runs/RUN` stops a run's workers, `GET /runs/RUN/logs` tells what its user code printed,
`GET /status` and `GET /metrics` (Prometheus text format) what the gateway is doing. Each request
carries the token in its `Authorization` header; bodies are JSON.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from typing import Any

from shoal.errors import GatewayRefused
from shoal.platform.base import Invocation, valid_run
from shoal.platform.gateway import LocalGateway
from shoal.types import RunId

log = logging.getLogger(__name__)

_MOST_BYTES = 64 * 1024 * 1024
_MOST_UNASKED = 1024 * 1024
"""Bytes that are read from somebody without a token."""
_IDLE_SECONDS = 60.0
_MOST_WARM = 1024


def serve_connection(
    connection: socket.socket, peer: tuple[str, int], gateway: LocalGateway, token: str
) -> None:
    """Answer requests on a connection until it is closed."""
    handler = type("Handler", (_Handler,), {"gateway": gateway, "token": token})
    with connection:
        try:
            handler(connection, peer, None)
        except OSError as error:
            log.debug("%s went away: %s", peer[0], error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "shoal"
    timeout = _IDLE_SECONDS
    gateway: LocalGateway
    token: str

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
        try:
            allowed = self._allowed()
            body = self._body(_MOST_BYTES if allowed else _MOST_UNASKED)
            if allowed:
                status, answer = self._route(method, body)
            else:
                status, answer = 401, {"error": "The token is missing or wrong."}
        except GatewayRefused as error:
            status, answer = 400, {"error": str(error)}
        except OSError:
            raise
        except Exception:
            log.exception("%s %s", method, self.path)
            status, answer = 500, {"error": "The gateway has a defect; its log says which."}
        self._reply(status, answer)

    def _body(self, most: int) -> bytes:
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= most or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise GatewayRefused(f"A request has at most {most} bytes and says how many.")
        return self.rfile.read(length)

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode())

    def _route(self, method: str, body: bytes) -> tuple[int, Any]:
        gateway = self.gateway
        match method, self.path.strip("/").split("/"):
            case "POST", ["job"]:
                gateway.invoke([Invocation.from_dict(item) for item in _json_list(body)])
                return 202, {}
            case "POST", ["warmup"]:
                count, item = _warmup(body)
                gateway.prewarm(Invocation.from_dict(item), count)
                return 202, {}
            case "GET", ["status"]:
                return 200, gateway.status() | {"host": gateway.host}
            case "GET", ["metrics"]:
                return 200, metrics(gateway.status())
            case "GET", ["runs", run]:
                return 200, {"active": gateway.active(RunId(run))}
            case "DELETE", ["runs", run]:
                gateway.cancel(RunId(run))
                return 200, {}
            case "GET", ["runs", run, "logs"] if valid_run(run):
                return 200, [asdict(line) for line in gateway.logs(RunId(run))]
        return 404, {"error": f"There is no {method} {self.path} here."}

    def _reply(self, status: int, answer: Any) -> None:
        text = isinstance(answer, str)
        body = answer.encode() if text else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header(
            "Content-Type", "text/plain; version=0.0.4" if text else "application/json"
        )
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _json_list(body: bytes) -> list[Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise GatewayRefused(f"The request isn't JSON: {error}.") from error
    if not isinstance(found, list):
        raise GatewayRefused("The request must be a list of invocations.")
    return found


def _warmup(body: bytes) -> tuple[int, Any]:
    found = _json_list(body)
    if len(found) != 2 or type(found[0]) is not int or not 0 <= found[0] <= _MOST_WARM:
        raise GatewayRefused("A warm-up is a list of a count and an invocation.")
    return found[0], found[1]


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
