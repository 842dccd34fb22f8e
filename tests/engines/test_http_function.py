"""How the engine for HTTP functions understands what a function answers."""

from __future__ import annotations

import json
import logging
import platform
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from observing import eventually
from shoal import __version__
from shoal.engines.environment import described, note
from shoal.engines.http_function import HttpFunction, facts_of
from shoal.engines.requirements import Requirements
from shoal.errors import EnvironmentMismatch, GatewayRefused, GatewayUnavailable, SettingsError
from shoal.platform.engine import Ended
from shoal.platform.environment import environment_name
from shoal.platform.events import Deployment
from shoal.types import LossReason, Resources

DEPLOYMENT = Deployment(b"k" * 32, "redis://store")
SIZE = Resources(512)
Reply = tuple[int, bytes, dict[str, str]] | None
"""Status, body and headers; None: hang up."""
DONE: Reply = (200, b'{"ran": []}', {})


@dataclass
class Function:
    """A function that answers as a test says."""

    port: int = 0
    replies: list[Reply] = field(default_factory=list)
    """The next answers; the last one is given again and again."""
    requests: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)
    """Until this is set, no event is answered."""

    @property
    def url(self) -> str:
        return f"function+http://127.0.0.1:{self.port}/shoal"

    def engine(self, query: str = "", token: str | None = None) -> HttpFunction:
        return HttpFunction(self.url + query, replace(DEPLOYMENT, token=token), Path())


@pytest.fixture
def function() -> Iterator[Function]:
    made = Function()
    made.free.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply()

        def do_POST(self) -> None:
            self._reply()

        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            made.requests.append((self.path, body, dict(self.headers)))
            made.free.wait(30)
            reply = made.replies.pop(0) if len(made.replies) > 1 else made.replies[0]
            if reply is None:
                self.close_connection = True
                return
            status, content, headers = reply
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.free.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("BUSY", 0.5), ("UNREACHABLE", 0.3)):
        monkeypatch.setattr(f"shoal.engines.http_function._{name}_SECONDS", seconds)


def outcome(engine: HttpFunction, event: bytes = b"{}") -> Ended | None:
    """How a call ended; None if all was well."""
    handle = engine.start(event, SIZE)
    found: list[Any] = []

    def over() -> bool:
        found[:] = engine.states([handle]).values()
        return not found or isinstance(found[0], Ended)

    assert eventually(over)
    engine.close()
    return found[0] if found else None


@pytest.mark.parametrize("reply", [DONE, (202, b"", {})])
def test_work_that_is_done_or_accepted_is_well(function: Function, reply: Reply) -> None:
    function.replies = [reply]
    assert outcome(function.engine(), b'{"shoal": 1}') is None
    ((path, body, _),) = function.requests
    assert (path, body) == ("/shoal", b'{"shoal": 1}')


def test_a_dropped_connection_means_that_the_job_died_and_may_restart(function: Function) -> None:
    function.replies = [None]
    ended = outcome(function.engine())
    assert ended is not None
    assert (ended.reason, ended.code) == (LossReason.DIED, None)
    assert len(function.requests) == 1


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [(500, LossReason.DIED, None), (502, LossReason.DIED, None),
     (504, LossReason.TIME_LIMIT, None), (400, LossReason.ERROR, 1), (401, LossReason.ERROR, 1),
     (404, LossReason.ERROR, 1), (409, LossReason.ERROR, 1), (413, LossReason.ERROR, 1)],
)  # fmt: skip
def test_errors_are_told_in_words_and_not_tried_again(
    function: Function, status: int, reason: LossReason, code: int | None
) -> None:
    function.replies = [(status, b'{"error": "It is Monday."}', {})]
    ended = outcome(function.engine())
    assert ended is not None
    assert (ended.reason, ended.code) == (reason, code)
    assert f"answered with status {status}: It is Monday." in ended.detail
    assert len(function.requests) == 1


@pytest.mark.parametrize("body", [b"<html>Welcome", b'{"shoal": "0.1.0"}', b'["ran"]'])
def test_an_answer_that_does_not_say_that_the_work_is_done_is_an_error(
    function: Function, body: bytes
) -> None:
    function.replies = [(200, body, {})]
    ended = outcome(function.engine())
    assert ended is not None
    assert "isn't Shoal's function" in ended.detail


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_function_is_called_again(function: Function, status: int) -> None:
    function.replies = [(status, b"", {"Retry-After": "0"}), (status, b"", {}), DONE]
    function.replies[1] = (status, b"", {"Retry-After": "0"})
    assert outcome(function.engine()) is None
    assert len(function.requests) == 3


def test_a_function_that_stays_busy_is_given_up(function: Function) -> None:
    function.replies = [(429, b'{"error": "No."}', {"Retry-After": "0"})]
    ended = outcome(function.engine())
    assert ended is not None
    assert (ended.reason, ended.code) == (LossReason.ERROR, 1)
    assert "Set capacity" in ended.detail


def test_a_function_that_cannot_be_reached_is_given_up(function: Function) -> None:
    engine = HttpFunction("function+http://127.0.0.1:9/", DEPLOYMENT, Path())
    ended = outcome(engine)
    assert ended is not None
    assert "can't be reached" in ended.detail
    with pytest.raises(GatewayUnavailable, match="can't be reached"):
        engine.check()


def test_starting_does_not_wait_and_calls_beyond_the_capacity_do(function: Function) -> None:
    function.free.clear()
    function.replies = [DONE]
    engine = function.engine("?capacity=2")
    handles = [engine.start(b"{}", SIZE) for _ in range(3)]
    assert eventually(
        lambda: list(engine.states(handles).values()) == ["running", "running", "waiting"]
    )
    assert eventually(lambda: len(function.requests) == 2)
    function.free.set()
    assert eventually(lambda: not engine.states(handles))
    assert len(function.requests) == 3
    engine.close()


def test_a_call_that_waits_can_be_dropped(function: Function) -> None:
    function.free.clear()
    function.replies = [DONE]
    engine = function.engine("?capacity=1")
    first, second = (engine.start(b"{}", SIZE) for _ in range(2))
    engine.kill(second)
    assert engine.states([second]) == {}
    function.free.set()
    assert eventually(lambda: not engine.states([first]))
    engine.close()
    assert len(function.requests) == 1


def test_closing_ends_the_threads_of_calls_that_run(function: Function) -> None:
    function.free.clear()
    function.replies = [DONE]
    engine = function.engine()
    engine.start(b"{}", SIZE)
    assert eventually(lambda: len(function.requests) == 1)
    engine.close()
    assert eventually(lambda: all(t.name != "shoal-call" for t in threading.enumerate()))


def test_the_token_is_sent_and_never_shown(
    function: Function, caplog: pytest.LogCaptureFixture
) -> None:
    function.replies = [(403, b"", {})]
    with caplog.at_level(logging.DEBUG):
        engine = function.engine(token="open-sesame")
        ended = outcome(engine)
    assert function.requests[0][2]["Authorization"] == "Bearer open-sesame"
    assert ended is not None
    assert "open-sesame" not in ended.detail + caplog.text + repr(engine)


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(SettingsError, match="Set token") as caught:
        HttpFunction("function+https://me:sesame@host/", DEPLOYMENT, Path())
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["function+https://", "function+ftp://host/", "function+http://h:x/"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="isn't the URL of a function"):
        HttpFunction(url, DEPLOYMENT, Path())


def test_facts_come_from_the_query() -> None:
    facts = facts_of({"capacity": "100", "memory_mb": "1024", "seconds": "900", "payload_mb": "6",
                      "nests": "1", "cpus": "2"})  # fmt: skip
    assert (facts.capacity, facts.memory_mb, facts.seconds, facts.cpus) == (100, 1024, 900.0, 2.0)
    assert (facts.payload_nbytes, facts.nests, facts.stays) == (6 * 2**20, True, False)
    assert facts_of({}).memory_mb is None
    assert not facts_of({"nests": "0"}).nests


@pytest.mark.parametrize("query", [{"capacity": "many"}, {"seconds": "-1"}, {"size": "1"}])
def test_facts_that_make_no_sense_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(query))):
        facts_of(query)


def test_a_function_whose_environment_is_not_the_clients_is_refused_with_the_command(
    function: Function, tmp_path: Path
) -> None:
    """The client deployed a package that it has in another version now."""
    packages = Requirements(("msgspec",))
    note(tmp_path, "http", "mine", packages, None, "shoal deploy http /out")
    name = environment_name(packages.lines)
    found = described(DEPLOYMENT) | {"function": "mine", "environment": name}
    function.replies = [(200, json.dumps(found).encode(), {})]
    engine = HttpFunction(function.url, DEPLOYMENT, tmp_path)
    assert engine.check().endswith(platform.python_version())
    assert (engine.expected.name, engine.expected.renewal) == (name, "shoal deploy http /out")
    found["environment"] = "older"
    function.replies = [(200, json.dumps(found).encode(), {})]
    with pytest.raises(EnvironmentMismatch, match=r"environment older .*`shoal deploy http /out`"):
        engine.check()
    found["function"] = "deployed elsewhere"
    function.replies = [(200, json.dumps(found).encode(), {})]
    assert "wasn't deployed from here" in engine.check()


def test_a_function_of_this_deployment_passes_the_check(function: Function) -> None:
    function.replies = [(200, json.dumps(described(DEPLOYMENT)).encode(), {})]
    assert "Shoal" in function.engine().check()


@pytest.mark.parametrize(
    ("fact", "value", "words"),
    [("deployment", "another", "another deployment key"), ("python", "3.8.1", "Python 3.8 instead"),
     ("shoal", "9.9.9", "shoal deploy http"), ("shoal", f"{__version__}.1", "instead of")],
)  # fmt: skip
def test_another_deployment_or_version_fails_the_check(
    function: Function, fact: str, value: str, words: str
) -> None:
    found = described(DEPLOYMENT) | {fact: value}
    function.replies = [(200, json.dumps(found).encode(), {})]
    with pytest.raises((GatewayRefused, EnvironmentMismatch), match=words):
        function.engine().check()
