"""Functions answer in the same way on every kind of server."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.engines import entry
from shoal.errors import EnvironmentMismatch, GatewayBusy, StoreUnavailable
from shoal.platform import job
from shoal.platform.events import Deployment, Offer, sealed

DEPLOYMENT = Deployment(b"d" * 32, "redis://store")
OFFER = Offer(job="j", entry="module:function", memory_mb=256, cpus=1.0, idle_seconds=1.0)
Answered = tuple[int, dict[str, Any], dict[str, str]]
"""Status, content and headers."""


@pytest.fixture(autouse=True)
def _deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_STORE", DEPLOYMENT.store)
    monkeypatch.setenv("SHOAL_DEPLOYMENT_KEY", DEPLOYMENT.key.hex())


def flask(method: str, body: bytes) -> Answered:
    request = SimpleNamespace(method=method, get_data=lambda: body, headers={})
    content, status, headers = entry.handle(request)
    return status, json.loads(content), headers


def wsgi(method: str, body: bytes) -> Answered:
    found: list[Any] = []
    environ = {"REQUEST_METHOD": method, "CONTENT_LENGTH": str(len(body)),
               "wsgi.input": io.BytesIO(body)}  # fmt: skip
    content = b"".join(entry.wsgi(environ, lambda status, head: found.extend((status, head))))
    return int(found[0].split()[0]), json.loads(content), dict(found[1])


def asgi(method: str, body: bytes) -> Answered:
    sent: list[Mapping[str, Any]] = []
    half = len(body) // 2
    parts = [{"type": "http.request", "body": body[:half], "more_body": True},
             {"type": "http.request", "body": body[half:]}]  # fmt: skip

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(entry.asgi({"type": "http", "method": method}, receive, send))
    head = {name.decode().title(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], json.loads(sent[1]["body"]), head


@pytest.fixture(params=[flask, wsgi, asgi])
def call(request: pytest.FixtureRequest) -> Callable[[str, bytes], Answered]:
    found: Callable[[str, bytes], Answered] = request.param
    return found


def test_an_event_runs(
    call: Callable[[str, bytes], Answered], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[bytes] = []
    monkeypatch.setattr(job, "run", lambda event: ran.append(event) or {"ran": ["w0"]})
    status, content, headers = call("POST", b'{"an": "event"}')
    assert (status, content, ran) == (200, {"ran": ["w0"]}, [b'{"an": "event"}'])
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_question_is_answered_without_secrets(
    call: Callable[[str, bytes], Answered], method: str
) -> None:
    status, content, _ = call(method, b"")
    assert status == 200
    assert content["deployment"] == DEPLOYMENT.id
    assert {"shoal", "python", "system", "environment"} <= content.keys()
    assert DEPLOYMENT.key.hex() not in json.dumps(content)
    assert "redis" not in json.dumps(content)


def test_an_event_of_another_deployment_is_a_conflict(
    call: Callable[[str, bytes], Answered],
) -> None:
    status, content, _ = call("POST", sealed(OFFER, Deployment(b"o" * 32, DEPLOYMENT.store)))
    assert status == 409
    assert "Deploy again" in content["error"]


def test_what_is_no_event_is_refused(call: Callable[[str, bytes], Answered]) -> None:
    assert call("POST", b"hello")[0] == 400
    assert call("PUT", b"hello")[0] == 405


def test_a_function_without_its_secrets_says_which(
    call: Callable[[str, bytes], Answered], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_DEPLOYMENT_KEY")
    status, content, _ = call("POST", sealed(OFFER, DEPLOYMENT))
    assert status == 409
    assert "SHOAL_DEPLOYMENT_KEY" in content["error"]


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [(StoreUnavailable("No store."), 500, "No store."), (GatewayBusy("Full."), 429, "Full."),
     (EnvironmentMismatch("Shoal 9."), 409, "Shoal 9."),
     (ZeroDivisionError(), 500, "Internal error")],
)  # fmt: skip
def test_errors_are_told(
    call: Callable[[str, bytes], Answered],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    words: str,
) -> None:
    def fail(event: bytes) -> Any:
        raise error

    monkeypatch.setattr(job, "run", fail)
    found, content, headers = call("POST", b"{}")
    assert (found, words in content["error"]) == (status, True)
    assert ("Retry-After" in headers) == (status == 429)


def test_a_body_in_chunks_that_the_server_does_not_read_is_refused() -> None:
    found: list[Any] = []
    environ = {"REQUEST_METHOD": "POST", "HTTP_TRANSFER_ENCODING": "chunked",
               "wsgi.input": io.BytesIO(b"2\r\n{}\r\n0\r\n\r\n")}  # fmt: skip
    content = b"".join(entry.wsgi(environ, lambda status, head: found.append(status)))
    assert found == ["411 Length Required"]
    assert "Content-Length" in json.loads(content)["error"]
    headers = {"Transfer-Encoding": "chunked"}
    request = SimpleNamespace(method="POST", get_data=lambda: b"", headers=headers)
    assert entry.handle(request)[1] == 411


def test_an_asgi_server_may_start_and_stop_it() -> None:
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(entry.asgi({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
