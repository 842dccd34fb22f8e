"""A gateway over HTTP: access, rejected requests, and the client's errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from observing import TIMEOUT, eventually
from platform_examples import Caller, gateway, invocation, served, start_request, warm_up_request
from shoal.errors import GatewayRefused, GatewayUnavailable, SettingsError
from shoal.platform import endpoints
from shoal.platform.gateway import LocalGateway
from shoal.platform.http import HttpPlatform
from shoal.platform.server import GatewayServer
from shoal.types import RunId

pytestmark = pytest.mark.real

Answer = tuple[int, Any]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGateway]:
    with gateway(tmp_path_factory.mktemp("gateway")) as local:
        yield local


@pytest.fixture(scope="module")
def platform(local: LocalGateway) -> Iterator[HttpPlatform]:
    with served(local) as platform:
        yield platform


@pytest.fixture
def caller(platform: HttpPlatform, tmp_path: Path) -> Caller:
    return Caller(platform, tmp_path)


class RawClient:
    """Sends raw requests."""

    def __init__(self, platform: HttpPlatform) -> None:
        parts = urlsplit(platform.url)
        self.address = (str(parts.hostname), int(parts.port or 0))
        self.token = platform._token.text

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Return the status and the decoded body of the reply."""
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {self.token}"} if headers is None else headers
        try:
            connection.request(method, path, data, given)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        json_sent = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(text) if json_sent else text

    def say(self, text: bytes) -> bytes:
        """Send some bytes on a connection, and return the whole reply."""
        with socket.create_connection(self.address, timeout=TIMEOUT) as sock:
            found = b""
            with contextlib.suppress(ConnectionError):  # the gateway may stop reading
                sock.sendall(text)
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
                while data := sock.recv(1 << 16):
                    found += data
            return found


@pytest.fixture
def door(platform: HttpPlatform) -> RawClient:
    return RawClient(platform)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "Bearer \xe9\xff"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/status"),
        ("GET", "/metrics"),
        ("GET", "/runs/run-1"),
        ("GET", "/runs/run-1/logs"),
        ("POST", "/job"),
        ("POST", "/warmup"),
        ("DELETE", "/runs/run-1"),
        ("GET", "/nowhere"),
    ],
)
def test_without_the_token_nothing_is_revealed(
    door: RawClient, method: str, path: str, headers: dict[str, str]
) -> None:
    status, answer = door.ask(method, path, headers=headers)
    assert status == 401
    assert answer == {"error": "The token is missing or wrong."}


def test_a_worker_is_not_started_without_the_token(door: RawClient, caller: Caller) -> None:
    assert door.ask("POST", "/job", start_request(caller.job()), {})[0] == 401
    caller.carry_out(caller.job("w1"))
    assert {line["worker"] for line in caller.notes()} == {"w1"}


def test_a_wrong_token_is_an_error_with_advice(platform: HttpPlatform) -> None:
    stranger = HttpPlatform(platform.url, "wrong")
    with pytest.raises(GatewayUnavailable, match=r"rejected the token\..* Set token or"):
        stranger.status()
    stranger.close()


@pytest.mark.parametrize("token", ["two\nlines", "€", ""])
def test_an_impossible_token_is_rejected(platform: HttpPlatform, token: str) -> None:
    def ask() -> None:
        stranger = HttpPlatform(platform.url, token)
        try:
            stranger.status()
        finally:
            stranger.close()

    with pytest.raises((SettingsError, GatewayUnavailable), match="token"):
        ask()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"{}",
        b"7",
        b"null",
        b'"text"',
        b"[" * 100_000,
        b"[7]",
        b"[{}]",
        b'{"context": {}, "starts": []}',
        b'{"\\ud800": 1}',
    ],
)
@pytest.mark.parametrize("path", ["/job", "/warmup"])
def test_a_body_that_is_no_request_is_rejected(door: RawClient, path: str, body: bytes) -> None:
    status, answer = door.ask("POST", path, body)
    assert status == 400
    assert answer["error"].endswith(".")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "Object contains unknown field `colour` - at `$.context`"),
        ({"run": None}, "Expected `str`, got `null` - at `$.context.run`"),
        ({"started": "1"}, "Expected `float`, got `str` - at `$.context.started`"),
        ({"started": float("nan")}, "Expected `float` >= 0.0 - at `$.context.started`"),
        ({"farm": 1}, "Expected `bool`, got `int` - at `$.context.farm`"),
        ({"code": {"session": "s", "path": "/"}}, "got `str` - at `$.context.code.path`"),
        ({"run": "../../etc/passwd"}, "Expected letters, digits and hyphens only - at `$.context"),
        ({"run": "a" * 1000}, "Expected `str` of length <= 100 - at `$.context.run`"),
    ],
)
def test_an_invalid_context_is_rejected_with_the_reason(
    door: RawClient, caller: Caller, change: dict[str, Any], message: str
) -> None:
    start, warm_up = start_request(caller.job()), warm_up_request(caller.job())
    for path, body in (("/job", start), ("/fanout", start), ("/warmup", warm_up)):
        body["context"] = body["context"] | change
        status, answer = door.ask("POST", path, body)
        assert status == 400
        assert message in answer["error"]
        assert answer["error"].endswith(". `GET /openapi.json` has the schema.")


def test_a_context_without_a_key_is_rejected(door: RawClient, caller: Caller) -> None:
    body = start_request(caller.job())
    del body["context"]["key"]
    _, answer = door.ask("POST", "/job", body)
    assert "missing required field `key` - at `$.context`" in answer["error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "Object contains unknown field `colour` - at `$.starts[1]`"),
        ({"worker": None}, "Expected `str`, got `null` - at `$.starts[1].worker`"),
        ({"epoch": "1"}, "Expected `int`, got `str` - at `$.starts[1].epoch`"),
        ({"memory_mb": 1}, "Expected `int` >= 64 - at `$.starts[1].memory_mb`"),
        ({"memory_mb": 1e3}, "Expected `int`, got `float` - at `$.starts[1].memory_mb`"),
        ({"cpus": float("nan")}, "Expected `float` > 0.0 - at `$.starts[1].cpus`"),
        ({"cpus": -1}, "Expected `float` > 0.0 - at `$.starts[1].cpus`"),
    ],
)
def test_an_invalid_start_is_rejected_with_the_reason(
    door: RawClient, caller: Caller, change: dict[str, Any], message: str
) -> None:
    body = start_request(caller.job(), caller.job("w1"))
    body["starts"][1] |= change
    for path in ("/job", "/fanout"):
        status, answer = door.ask("POST", path, body)
        assert status == 400
        assert message in answer["error"]
    assert caller.notes() == []


def test_the_gateway_works_after_rejected_requests(door: RawClient, caller: Caller) -> None:
    """An impossible invocation must not stay at the head of the queue."""
    door.ask("POST", "/job", start_request(caller.job(memory_mb=1)))
    door.ask("POST", "/job", start_request(caller.job("w1"), caller.job("w2", cpus=0)))
    assert caller.carry_out(caller.job("w3"))[0]["worker"] == "w3"
    assert {line["worker"] for line in caller.notes()} == {"w3"}


@pytest.mark.parametrize("count", [-1, 1.5, True, "2", None, 10**9])
def test_a_warm_up_needs_a_sensible_count(door: RawClient, caller: Caller, count: Any) -> None:
    status, answer = door.ask("POST", "/warmup", warm_up_request(caller.job(), count))
    assert status == 400
    assert "at `$.count`" in answer["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/runs/../../etc/passwd/logs",
        "/runs/..%2f..%2fetc%2fpasswd/logs",
        "/runs/../logs",
        "/runs/./logs",
        "/runs//logs",
        "/runs/a.b/logs",
        f"/runs/{'a' * 5000}/logs",
        "/runs/run-1/logs/more",
        "/nowhere",
        "/",
        "//",
        "/status/more",
        "/status?x=1",
        "*",
    ],
)
def test_other_paths_are_not_found(door: RawClient, path: str) -> None:
    status, answer = door.ask("GET", path)
    assert status == 404
    assert answer["error"].startswith("There is no GET ")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "BREW"])
def test_other_methods_are_client_errors(door: RawClient, method: str) -> None:
    status, answer = door.ask(method, "/status")
    assert status == 400
    assert method in answer["error"]


@pytest.mark.parametrize("length", [str(10**12), "-1", "many", "1e3"])
def test_a_body_that_is_too_large_or_of_unknown_length_is_rejected(
    door: RawClient, length: str
) -> None:
    head = {"Authorization": f"Bearer {door.token}", "Content-Length": length}
    status, answer = door.ask("POST", "/job", None, head)
    assert status == 400
    assert "at most 67108864 bytes" in answer["error"]


def test_unauthenticated_clients_may_send_less(door: RawClient) -> None:
    status, answer = door.ask("POST", "/job", None, {"Content-Length": str(2 * 1024 * 1024)})
    assert status == 400
    assert "at most 1048576 bytes" in answer["error"]


def test_a_chunked_body_is_rejected(door: RawClient) -> None:
    head = {"Authorization": f"Bearer {door.token}", "Transfer-Encoding": "chunked"}
    status, answer = door.ask("POST", "/job", None, head)
    assert status == 400
    assert "must have a Content-Length" in answer["error"]


@pytest.mark.parametrize(
    "text",
    [
        b"\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /status HTTP/9.9\r\n\r\n",
        b"GET /status HTTP/one\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: 1\r\n" % n for n in range(500)) + b"\r\n",
        b"POST /job HTTP/1.1\r\nContent-Length: 99\r\n\r\n[",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"",
    ],
)
def test_garbage_never_breaks_the_gateway(door: RawClient, text: bytes) -> None:
    for status in re.findall(rb"HTTP/1.1 (\d+)", door.say(text)):
        assert 400 <= int(status) < 500
    assert door.ask("GET", "/status")[0] == 200


def test_a_connection_serves_several_requests(door: RawClient) -> None:
    connection = http.client.HTTPConnection(*door.address, timeout=TIMEOUT)
    for path, status in (("/status", 200), ("/nowhere", 404), ("/status", 200)):
        connection.request("GET", path, headers={"Authorization": f"Bearer {door.token}"})
        response = connection.getresponse()
        response.read()
        assert response.status == status
        assert not response.will_close
    connection.close()


def test_an_internal_error_is_logged_and_reported(
    door: RawClient,
    local: LocalGateway,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> dict[str, Any]:
        raise LookupError("on purpose")

    monkeypatch.setattr(local, "status", broken)
    assert door.ask("GET", "/status")[0] == 500
    assert "on purpose" in caplog.text


def test_starts_that_exceed_a_request_are_sent_in_several(
    platform: HttpPlatform, local: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[list[str]] = []
    monkeypatch.setattr(local, "take", lambda _, starts: taken.append([s.worker for s in starts]))
    monkeypatch.setattr("shoal.platform.http._BATCH_NBYTES", 100)
    sizes = {"w1": 60, "w2": 40, "w3": 1, "w4": 200, "w5": 0}
    jobs = [invocation(worker, part=b"x" * nbytes) for worker, nbytes in sizes.items()]
    platform.invoke(jobs[0].context, [job.start for job in jobs])
    assert taken == [["w1", "w2"], ["w3"], ["w4"], ["w5"]]


def test_status_shows_what_the_gateway_is_doing(door: RawClient, platform: HttpPlatform) -> None:
    status, answer = door.ask("GET", "/status")
    assert status == 200
    assert answer == platform.status()
    assert answer["capacity"] == 4
    assert answer["memory_mb"] == platform.memory_mb >= 2048
    assert {"busy", "idle", "queued", "limits", "invocations", "busy_seconds", "runs"} < {*answer}


def test_metrics_are_in_prometheus_text_format(door: RawClient, caller: Caller) -> None:
    caller.carry_out(caller.job())
    status, text = door.ask("GET", "/metrics")
    assert status == 200
    assert text.endswith("\n")
    samples, types, helped = parsed(text)
    assert {name for name, _ in samples} == types.keys() == helped
    assert samples["shoal_sandboxes_capacity", ""] == 4
    assert samples["shoal_sandboxes", 'state="idle"'] >= 1
    assert samples["shoal_invocations_total", 'start="cold"'] >= 1
    assert samples["shoal_busy_seconds_total", ""] > 0
    for name, kind in types.items():
        assert kind == ("counter" if name.endswith("_total") else "gauge")


def parsed(text: str) -> tuple[dict[tuple[str, str], float], dict[str, str], set[str]]:
    """Return samples by name and labels, types by name, and names with a help line."""
    samples: dict[tuple[str, str], float] = {}
    types: dict[str, str] = {}
    helped: set[str] = set()
    name = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    label = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
    for line in text.splitlines():
        if found := re.fullmatch(rf"# TYPE ({name}) (counter|gauge|histogram|summary)", line):
            assert found[1] not in types
            types[found[1]] = found[2]
        elif found := re.fullmatch(rf"# HELP ({name}) .+", line):
            helped.add(found[1])
        else:
            found = re.fullmatch(rf"({name})(?:\{{({label}(?:,{label})*)\}})? (\S+)", line)
            assert found is not None, line
            assert found[1] in types, "its type comes first"
            assert (found[1], found[2] or "") not in samples
            samples[found[1], found[2] or ""] = float(found[3])
    return samples, types, helped


def test_an_unreachable_gateway_is_reported_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    platform = HttpPlatform(f"http://127.0.0.1:{port}", "token")
    with pytest.raises(GatewayUnavailable, match=r"can't be reached.*shoal gateway"):
        platform.active(RunId("run-1"))


@pytest.mark.parametrize(
    "url", ["", "localhost:8470", "redis://localhost", "http://", "http://host:port", "http://["]
)
def test_an_invalid_gateway_url_is_rejected(url: str) -> None:
    with pytest.raises(SettingsError, match="not a gateway's URL"):
        HttpPlatform(url, "token")


class Elsewhere(BaseHTTPRequestHandler):
    """A web server that is no gateway."""

    def do_GET(self) -> None:
        status, body = (200, b"<html>") if "run-1" in self.path else (302, b"")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize("run", ["run-1", "run-2"])
def test_another_web_server_is_not_mistaken_for_a_gateway(run: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        platform = HttpPlatform(f"http://127.0.0.1:{server.server_address[1]}", "token")
        with pytest.raises(GatewayUnavailable, match="isn't a gateway"):
            platform.active(RunId(run))
        platform.close()
        server.shutdown()


def test_a_kept_connection_that_the_gateway_closed_is_replaced(
    local: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints._GatewayHandler, "timeout", 0.05)
    with served(local) as platform:
        platform.status()
        first = platform._connection
        assert first is not None
        assert first.sock.recv(1) == b""  # the gateway has disconnected
        platform.status()
        assert platform._connection is not first


def test_a_rejection_is_raised_with_the_gateways_reason(caller: Caller) -> None:
    with pytest.raises(GatewayRefused, match=r"refused the request: .* at `\$\.starts\[0\]\.epoch"):
        caller.invoke(caller.job(epoch="first"))


def test_many_requests_at_once_are_all_answered(caller: Caller) -> None:
    jobs = [caller.job(f"w{number}") for number in range(24)]
    threads = [threading.Thread(target=caller.invoke, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    caller.await_quiet()
    assert sorted(line["worker"] for line in caller.notes("ended")) == sorted(
        job.worker for job in jobs
    )


def test_two_servers_cannot_have_one_port(local: LocalGateway, platform: HttpPlatform) -> None:
    port = urlsplit(platform.url).port
    assert port is not None
    for taken, reason in ((port, "in use"), (99999, "ports go from 0 to 65535")):
        with pytest.raises(GatewayUnavailable, match=f"can't listen.*{reason}.*another"):
            GatewayServer(local, "token", port=taken)


def test_the_server_survives_a_failed_accept(
    local: LocalGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([OSError(24, "Too many open files")])
    accept = socket.socket.accept

    def accept_or_fail(sock: socket.socket) -> Any:
        for failure in failures:
            raise failure
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
    with served(local) as platform:
        assert platform.status()["capacity"] == 4
        assert eventually(lambda: "Too many open files" in caplog.text)


def test_a_closed_server_is_unreachable(local: LocalGateway) -> None:
    with served(local) as platform:
        url = platform.url
    late = HttpPlatform(url, "token")
    with pytest.raises(GatewayUnavailable, match="can't be reached"):
        late.status()
