"""Entry points of HTTP functions: `handle` for functions-framework, `wsgi`, and `asgi`.

All of them answer as docs/engines/http.md says, by way of `answer`. Several requests at a time are
fine: each gets a sandbox of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any

from shoal.engines.environment import described
from shoal.errors import (
    EnvironmentMismatch,
    GatewayBusy,
    GatewayRefused,
    SettingsError,
    ShoalError,
    Tampered,
)
from shoal.platform import job
from shoal.platform.events import Deployment

log = logging.getLogger(__name__)

SLOTS_VARIABLE = "SHOAL_SLOTS"
"""How many requests `asgi` and `serve` answer at a time."""
MAX_BODY = 64 * 2**20
_RETRY_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered with."""

    status: int
    content: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """Its content as JSON."""
        return json.dumps(self.content).encode()

    @property
    def head(self) -> list[tuple[str, str]]:
        """Its headers."""
        length = str(len(self.body))
        own = [("Content-Type", "application/json"), ("Content-Length", length)]
        return [*own, *self.headers.items()]


NO_LENGTH = Answer(411, {"error": "An event needs a Content-Length; don't send it in chunks."})
BUSY = Answer(429, {"error": "All slots are taken."}, {"Retry-After": str(_RETRY_SECONDS)})


def answer(method: str, body: bytes) -> Answer:
    """Do what a request asks for."""
    try:
        if method in ("GET", "HEAD") or not body:
            return Answer(200, described(Deployment.of_environment()))
        if method != "POST":
            return Answer(405, {"error": "Use POST, with an event of Shoal's."})
        if len(body) > MAX_BODY:
            return Answer(413, {"error": f"An event has at most {MAX_BODY} bytes."})
        return Answer(200, job.run(body))
    except Tampered as error:
        return Answer(409, {"error": str(error)})
    except GatewayBusy as error:
        return Answer(429, {"error": str(error)}, BUSY.headers)
    except GatewayRefused as error:
        return Answer(400, {"error": str(error)})
    except (SettingsError, EnvironmentMismatch) as error:  # only its owner can correct that
        return Answer(409, {"error": str(error)})
    except ShoalError as error:
        log.warning("an event failed: %s", error)
        return Answer(500, {"error": str(error)})
    except Exception:  # the request's outermost edge: the caller gets an answer
        log.exception("an event failed")
        return Answer(500, {"error": "Internal error; see the function's log."})


def handle(request: Any) -> tuple[bytes, int, dict[str, str]]:
    """Answer a Flask request, for functions-framework."""
    body = request.get_data()
    chunked = not body and "Transfer-Encoding" in request.headers
    given = NO_LENGTH if chunked else answer(request.method, body)
    return given.body, given.status, dict(given.head)


def wsgi(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a request, for any WSGI server."""
    length = environ.get("CONTENT_LENGTH") or ""
    if not length and "HTTP_TRANSFER_ENCODING" in environ:
        given = NO_LENGTH
    else:
        size = min(int(length), MAX_BODY + 1) if length.isdecimal() else 0
        given = answer(environ["REQUEST_METHOD"], environ["wsgi.input"].read(size))
    start_response(f"{given.status} {HTTPStatus(given.status).phrase}", given.head)
    return [given.body]


async def asgi(
    scope: Mapping[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]
) -> None:
    """Answer a request, for any ASGI server."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["type"] != "http":
        return
    parts, size, more = [], 0, True
    while more and size <= MAX_BODY:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message["type"] == "http.request" and message.get("more_body", False)
    loop = asyncio.get_running_loop()
    given = await loop.run_in_executor(_threads(), answer, scope["method"], b"".join(parts))
    head = [(name.lower().encode(), value.encode()) for name, value in given.head]
    await send({"type": "http.response.start", "status": given.status, "headers": head})
    await send({"type": "http.response.body", "body": given.body})


def slots(variables: Mapping[str, str] = os.environ) -> int:
    """How many requests to answer at a time."""
    text = variables.get(SLOTS_VARIABLE, "4")
    if not text.isdecimal() or not int(text):
        raise SettingsError(f"{SLOTS_VARIABLE}={text!r} must be a whole number, at least 1.")
    return int(text)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(slots(), "shoal-asgi")
