"""The gateway's endpoints: TLS, tokens of runs, and clients that are slow, many or large."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from observing import TIMEOUT, eventually
from platform_examples import Caller, gateway, start_request, warm_up_request
from shoal.errors import GatewayBusy, GatewayRefused, GatewayUnavailable, SettingsError
from shoal.platform import endpoints
from shoal.platform import gateway as gateways
from shoal.platform import http as platform_http
from shoal.platform import server as servers
from shoal.platform.endpoints import Door
from shoal.platform.gateway import LocalGateway
from shoal.platform.http import HttpPlatform
from shoal.platform.server import GatewayServer, server_tls
from shoal.platform.throttle import Throttle
from shoal.platform.tokens import run_token
from shoal.types import RunId

pytestmark = pytest.mark.real

TOKEN = "the-gateway-s-token"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGateway]:
    with gateway(tmp_path_factory.mktemp("gateway")) as local:
        yield local


@pytest.fixture
def server(local: LocalGateway) -> Iterator[GatewayServer]:
    server = GatewayServer(local, TOKEN)
    yield server
    server.close()


@contextlib.contextmanager
def client(url: str, token: str = TOKEN, ca_file: str | None = None) -> Iterator[HttpPlatform]:
    made = HttpPlatform(url, token, ca_file=ca_file)
    try:
        yield made
    finally:
        made.close()


def connect(server: GatewayServer) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=TIMEOUT)


def ask(server: GatewayServer, method: str, path: str, token: str, body: Any = None) -> int:
    """Return the status of the reply to a request."""
    connection = http.client.HTTPConnection(str(urlsplit(server.url).netloc), timeout=TIMEOUT)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


# TLS.


@pytest.fixture
def secured(local: LocalGateway, certificate: Path) -> Iterator[GatewayServer]:
    tls = server_tls(str(certificate), str(certificate.with_suffix(".key")))
    server = GatewayServer(local, TOKEN, tls=tls)
    yield server
    server.close()


def test_a_client_that_trusts_the_certificate_is_served_over_tls(
    secured: GatewayServer, certificate: Path
) -> None:
    assert secured.url.startswith("https://")
    with client(secured.url, ca_file=str(certificate)) as platform:
        assert platform.status()["capacity"] == 4
        first = platform._connection
        assert platform.status()["capacity"] == 4
        assert platform._connection is first


def test_a_client_that_distrusts_the_certificate_sends_nothing(
    secured: GatewayServer,
) -> None:
    with client(secured.url) as platform, pytest.raises(GatewayUnavailable, match="Set ca_file"):
        platform.status()


def test_plain_http_is_not_answered_on_a_tls_port(
    secured: GatewayServer, certificate: Path
) -> None:
    with connect(secured) as sock:
        sock.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1" not in sock.recv(1 << 16)
    with client(secured.url, ca_file=str(certificate)) as platform:
        assert platform.status()["capacity"] == 4


def test_a_client_that_never_completes_the_handshake_is_disconnected(
    secured: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_STRANGER_SECONDS", 0.05)
    with connect(secured) as sock:
        assert sock.recv(1) == b""


def test_files_that_are_no_certificate_are_rejected(tmp_path: Path, certificate: Path) -> None:
    (tmp_path / "empty").touch()
    for file in ("empty", "missing"):
        with pytest.raises(SettingsError, match="PEM"):
            server_tls(str(tmp_path / file), str(certificate.with_suffix(".key")))
        with pytest.raises(SettingsError, match="PEM"):
            HttpPlatform("https://127.0.0.1:1", TOKEN, ca_file=str(tmp_path / file))


def test_old_versions_of_tls_are_rejected(secured: GatewayServer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with connect(secured) as sock, pytest.raises(OSError, match=r"(?i)ssl|reset"):
        context.wrap_socket(sock)


# Tokens of runs.


def test_a_sandbox_gets_only_the_token_of_its_run(local: LocalGateway, tmp_path: Path) -> None:
    server = GatewayServer(local, TOKEN)
    try:
        caller = Caller(local, tmp_path)
        caller.carry_out(caller.job(part="token given"))
        given = (tmp_path / "given").read_text()
    finally:
        server.close()
    assert given == run_token(TOKEN, "run-1", "s1")
    assert TOKEN not in given


@pytest.mark.parametrize(
    ("method", "path", "run", "status"),
    [
        ("GET", "/runs/run-1", "run-1", 200),
        ("GET", "/runs/run-1/logs", "run-1", 200),
        ("DELETE", "/runs/run-1", "run-1", 200),
        ("GET", "/status", "run-1", 200),
        ("GET", "/runs/run-2", "run-1", 403),
        ("GET", "/runs/run-2/logs", "run-1", 403),
        ("DELETE", "/runs/run-2", "run-1", 403),
        ("GET", "/metrics", "run-1", 403),
    ],
)
def test_a_runs_token_opens_only_that_run(
    server: GatewayServer, method: str, path: str, run: str, status: int
) -> None:
    assert ask(server, method, path, run_token(TOKEN, run, "s1")) == status


def test_a_runs_token_starts_only_workers_of_that_run_and_session(
    server: GatewayServer, local: LocalGateway, tmp_path: Path
) -> None:
    caller = Caller(local, tmp_path)
    token = run_token(TOKEN, "run-1", "s1")
    for facts in ({"run": RunId("run-2")}, {"session": "s2"}):
        other = caller.job("w1", **facts)
        for path in ("/job", "/fanout"):
            assert ask(server, "POST", path, token, start_request(other)) == 403
        assert ask(server, "POST", "/warmup", token, warm_up_request(other)) == 403
    assert caller.notes() == []
    assert ask(server, "POST", "/job", token, start_request(caller.job())) == 202
    caller.await_quiet()
    assert {line["worker"] for line in caller.notes()} == {"w0"}


def test_a_runs_token_reveals_nothing_about_other_runs(
    server: GatewayServer, local: LocalGateway, tmp_path: Path
) -> None:
    caller = Caller(local, tmp_path)
    caller.invoke(caller.job(part="await go"))
    caller.await_notes("began")
    for run, seen in (("run-1", ["run-1"]), ("run-2", [])):
        with client(server.url, run_token(TOKEN, run, "s1")) as platform:
            assert platform.status()["runs"] == seen
    caller.let_go()
    caller.await_quiet()


# Slow, numerous and large requests.


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"GET /status HT",
        b"GET /status HTTP/1.1\r\nHost: x\r\n",
        b"POST /job HTTP/1.1\r\nContent-Length: 9\r\n\r\n[",
    ],
)
def test_a_silent_client_is_disconnected(
    server: GatewayServer, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(endpoints, "_STRANGER_SECONDS", 0.05)
    with connect(server) as sock:
        sock.sendall(text)
        assert sock.recv(1 << 16) == b""


def test_a_request_that_trickles_in_is_cut_off(
    server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte arrives soon after the last, but the whole request has a time limit."""
    monkeypatch.setattr(endpoints, "_STRANGER_SECONDS", 0.3)
    with connect(server) as sock:
        sock.settimeout(0.02)

        def dripped() -> bool:
            try:
                sock.send(b"G")
                return sock.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        assert eventually(dripped)


def test_the_total_size_of_headers_is_bounded(server: GatewayServer) -> None:
    with connect(server) as sock:
        lines = b"".join(b"H%d: %s\r\n" % (n, b"x" * 1000) for n in range(50))
        with contextlib.suppress(ConnectionError):
            sock.sendall(b"GET /status HTTP/1.1\r\n" + lines + b"\r\n")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("lengths", [["5", "6"], ["5", "5"], ["+5"], ["5_0"], ["\u0665"]])
def test_an_ambiguous_content_length_is_rejected(server: GatewayServer, lengths: list[str]) -> None:
    head = "".join(f"Content-Length: {length}\r\n" for length in lengths).encode()
    secret = f"Authorization: Bearer {TOKEN}\r\n".encode()
    with connect(server) as sock:
        sock.sendall(b"POST /job HTTP/1.1\r\n" + secret + head + b"\r\n[]   ")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_unauthenticated_clients_are_rate_limited(server: GatewayServer) -> None:
    server._door = Door(server._gateway, TOKEN, strangers=Throttle(0.001, 2))
    assert [ask(server, "GET", "/status", "wrong") for _ in range(5)] == [401, 401, 401, 429, 429]
    assert ask(server, "GET", "/status", TOKEN) == 200


def test_an_unauthenticated_client_gets_one_answer_per_connection(server: GatewayServer) -> None:
    with connect(server) as sock:
        sock.sendall(b"GET /status HTTP/1.1\r\n\r\n" * 2)
        found = b""
        with contextlib.suppress(ConnectionError):
            while data := sock.recv(1 << 16):
                found += data
    assert found.count(b"HTTP/1.1 401 ") == 1


def test_a_rate_limited_client_waits_and_continues(
    server: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server._door = Door(server._gateway, TOKEN, callers=Throttle(20, 1))
    paused: list[float] = []
    monkeypatch.setattr(platform_http.time, "sleep", paused.append)
    with client(server.url) as platform:
        for _ in range(10):
            assert platform.status()["capacity"] == 4
    assert paused


def test_a_client_does_not_wait_forever_for_a_busy_gateway(server: GatewayServer) -> None:
    server._door = Door(server._gateway, TOKEN, callers=Throttle(0.001, 1))
    with client(server.url) as platform:
        platform.status()
        platform.status()
        with pytest.raises(GatewayBusy, match="Too many requests"):
            platform.status()


def test_connections_beyond_the_limit_are_rejected(
    local: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_CONNECTIONS", 2 - 2 * local.capacity)
    server = GatewayServer(local, TOKEN)
    try:
        with connect(server) as first, connect(server):
            with connect(server) as third:
                answer = third.recv(1 << 16)
                head, _, body = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 429 ")
                assert f"Content-Length: {len(body)}".encode() in head
                assert json.loads(body) == {"error": "There are too many connections."}
            first.close()
            with client(server.url) as platform:
                assert eventually(lambda: platform.status()["capacity"]) == 4
    finally:
        server.close()


def test_more_workers_than_the_queue_holds_are_rejected(
    server: GatewayServer,
    local: LocalGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(gateways, "_MAX_QUEUED", 2)
    caller = Caller(local, tmp_path)
    jobs = [caller.job(f"w{number}") for number in range(3)]
    assert ask(server, "POST", "/job", TOKEN, start_request(*jobs)) == 429
    assert ask(server, "POST", "/fanout", TOKEN, start_request(*jobs)) == 202
    assert eventually(lambda: "3 workers not started" in caplog.text)
    assert caller.notes() == []
    caller.carry_out(caller.job("w9"))
    assert {line["worker"] for line in caller.notes()} == {"w9"}


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 2**40},
        {"epoch": -1},
        {"memory_mb": 2**30},
        {"cpus": 1e9},
        {"latency": 1e9},
        {"sent": -1.0},
        {"key": "xyz"},
        {"key": "abc"},
        {"session": "../s"},
        {"folder": "a\0b"},
        {"worker": "\ud800"},
        {"worker": "w" * 5000},
        {"path": ["/a"] * 1001},
        {"path": ["/" * 5000]},
        {"preload": ["os; import this"]},
        {"part": "x" * 200_000},
    ],
)
def test_values_out_of_range_are_rejected(
    server: GatewayServer, tmp_path: Path, change: dict[str, Any]
) -> None:
    with client(server.url) as platform:
        job = Caller(platform, tmp_path).job(**change)
        name = next(iter(change))
        with pytest.raises(GatewayRefused, match=rf"- at `\$\.[a-z0-9_.\[\]]*{name}[`\[]"):
            platform.invoke(job.context, [job.start])


@pytest.mark.parametrize("name", ["store", "key", "part", "inputs"])
def test_a_rejection_does_not_repeat_secrets(
    server: GatewayServer, local: LocalGateway, tmp_path: Path, name: str
) -> None:
    for value in (["my secret"], "my secret\0", "my secret" * 3_000_000):
        job = Caller(local, tmp_path).job()
        context, start = job.context, job.start
        if name in start.__struct_fields__:
            start = replace(start, **{name: value})
        else:
            context = replace(context, **{name: value})
        with client(server.url) as platform, pytest.raises(GatewayRefused) as refusal:
            platform.invoke(context, [start])
        assert "my secret" not in str(refusal.value)


def test_the_gateway_describes_its_interface(server: GatewayServer) -> None:
    with client(server.url) as platform:
        found = platform._request("GET", "/openapi.json")
    assert found["openapi"].startswith("3.1")
    known = {(m.upper(), path) for path, item in found["paths"].items() for m in item}
    for method, path in known - {("PARAMETERS", path) for _, path in known}:
        body = {} if method == "POST" else None
        status = ask(
            server, method, path.replace("{run}", "run-1").replace("{nonce}", "a1"), TOKEN, body
        )
        assert str(status) in found["paths"][path][method.lower()]["responses"]
        assert status in (200, 202, 400)
