"""`function+https://HOST/PATH`: calls a function over HTTP; docs/engines/http.md has the contract.

1. A call is a `POST` of the event. Each call has a thread, because a synchronous function answers
   when its work is done. Calls beyond the capacity wait.
2. A function that is busy (429, 503) is called again, and so is one that can't be reached: nothing
   has happened yet. Nothing else is sent twice.
3. A call that ends with an error, or whose connection drops, has ended its job. What becomes of a
   call that was accepted (202) isn't known.
4. The token is sent to the function's address only, and no error and no log shows it.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from shoal.engines.environment import expected
from shoal.errors import GatewayRefused, GatewayUnavailable, SettingsError
from shoal.platform.engine import Ended, EngineFacts, JobState
from shoal.platform.environment import ANY, client_environment, minor_of, mismatch
from shoal.platform.events import Deployment
from shoal.platform.http_client import checked_token, closed, connected, retry_after, trusting
from shoal.platform.http_client import untrusted as untrusted_words
from shoal.platform.invocation import PythonEnvironment
from shoal.types import LossReason, Resources

PREFIX = "function+"
DONE = "ran"
"""The field of an answer that says that the work is done."""
_CAPACITY = 32
_PAYLOAD_MB = 32.0
_LATE_SECONDS = 30.0
"""How much longer than a function may run its answer may take."""
_CHECK_SECONDS = 60.0
"""How long a function may take to say what it is: an instance may have to start."""
_BUSY_SECONDS = 900.0
"""For how long a function may do nothing but refuse calls because it is busy."""
_UNREACHABLE_SECONDS = 30.0
_LONGEST_WAIT = 10.0
_BUSY = (429, 503)
_DETAIL = 500
"""The most characters of an answer that an error quotes."""
_KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3))
"""A peer that vanishes without a word is noticed within a minute."""


@dataclass(slots=True, eq=False)
class _HttpCall:
    event: bytes
    state: JobState = "waiting"
    connection: http.client.HTTPConnection | None = None
    killed: bool = False


@dataclass(frozen=True, slots=True)
class _HttpAnswer:
    status: int
    body: bytes
    wait: float

    @property
    def json(self) -> dict[str, Any] | None:
        """Its body, if that is an object."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    @property
    def words(self) -> str:
        """What it says."""
        error = (self.json or {}).get("error")
        text = error if isinstance(error, str) else self.body.decode(errors="replace")
        return " ".join(text.split())[:_DETAIL] or "nothing else"


class _Unsent(Exception):
    """A call couldn't be sent."""


class HttpFunction:
    """Calls a function at a URL."""

    def __init__(self, url: str, deployment: Deployment, folder: Path) -> None:
        """Make an engine from `function+https://HOST/PATH?capacity=32&seconds=900`."""
        self.url, self._query = _split(url)
        parts = urlsplit(self.url)
        self._host, self._path = parts.hostname or "", parts.path or "/"
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = trusting(deployment.ca_file) if parts.scheme == "https" else None
        self._headers = {"Content-Type": "application/json"}
        if deployment.token is not None:
            self._headers["Authorization"] = f"Bearer {checked_token(deployment.token)}"
        self._deployment, self._folder = deployment, folder
        self.expected = ANY
        self.facts = facts_of(self._query)
        self._numbers = itertools.count(1)
        self._calls: dict[str, _HttpCall] = {}
        self._queue: deque[str] = deque()
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._threads = 0
        self._answered = time.monotonic()
        """When the function last did something."""
        self._closed = threading.Event()

    def start(self, event: bytes, resources: Resources) -> str:
        """Call the function in a thread, now or when another call is done."""
        handle = str(next(self._numbers))
        with self._lock:
            self._calls[handle] = _HttpCall(event)
            self._queue.append(handle)
            if self._threads >= self.facts.capacity:
                return handle
            self._threads += 1
        threading.Thread(target=self._work, name="shoal-call", daemon=True).start()
        return handle

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        """Tell how calls are; those that are done or accepted are left out."""
        with self._lock:
            found = {h: self._calls[h].state for h in handles if h in self._calls}
            for handle, state in found.items():
                if isinstance(state, Ended):
                    del self._calls[handle]
        return found

    def kill(self, handle: str) -> None:
        """Drop a call; a function that is running may continue."""
        with self._lock:
            call = self._calls.pop(handle, None)
            if call is not None:
                call.killed = True
                _hang_up(call.connection)

    def close(self) -> None:
        """Drop all calls; functions that are running continue."""
        self._closed.set()
        for handle in list(self._calls):
            self.kill(handle)
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def check(self, *, thorough: bool = False) -> str:
        """Ask the function what it is; raise an error if it can't run this client's workers."""
        try:
            connection = self._connect(_CHECK_SECONDS)
            with contextlib.closing(connection):
                connection.request("GET", self._path, headers=self._headers)
                response = connection.getresponse()
                answer = _HttpAnswer(response.status, response.read(), 0.0)
        except (OSError, http.client.HTTPException) as error:
            raise GatewayUnavailable(self._unreachable(error)) from error
        found = answer.json
        if answer.status != 200 or found is None or "shoal" not in found:
            raise GatewayUnavailable(self._refusal(answer))
        self._compare(found)
        known = "" if self.expected.name else "; it wasn't deployed from here"
        return f"{self.url}: Shoal {found['shoal']} on Python {found['python']}{known}"

    def _compare(self, found: Mapping[str, Any]) -> None:
        """Raise an error if the function can't run this client's workers."""
        if found.get("deployment") != self._deployment.id:
            raise GatewayRefused(
                f"The function at {self.url} has another deployment key. Set "
                "SHOAL_DEPLOYMENT_KEY among its secrets to the key of this client (`shoal deploy "
                "http DIR` tells where it is), or use that deployment's data folder."
            )
        name = str(found.get("function", ""))
        self.expected = expected(self._folder, "http", name, "shoal deploy http DIR")
        there = PythonEnvironment(
            python=minor_of(str(found.get("python"))),
            shoal=str(found["shoal"]),
            name=str(found.get("environment", "")),
        )
        where = f"of the function at {self.url}"
        problem = mismatch(client_environment(self.expected), there, where)
        if problem is not None:
            raise problem

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue or self._closed.is_set():
                    self._threads -= 1
                    return
                handle = self._queue.popleft()
                call = self._calls.get(handle)
            if call is None:
                continue
            ended = self._perform(call)
            with self._lock:
                if ended is not None:
                    call.state = ended
                else:
                    self._calls.pop(handle, None)

    def _perform(self, call: _HttpCall) -> Ended | None:
        """Make a call; how it ended, or None if all is well."""
        begin, pause = time.monotonic(), 0.1
        while True:
            try:
                answer = self._exchange(call)
                if answer.status not in _BUSY:
                    return self._outcome(answer)
                trouble, limit, wait = self._refusal(answer), _BUSY_SECONDS, answer.wait
            except _Unsent as error:
                trouble, limit, wait = str(error), _UNREACHABLE_SECONDS, 0.0
            except (OSError, http.client.HTTPException, ValueError) as error:
                return _dropped(self.url, error)
            if call.killed or self._closed.is_set():
                return None
            if time.monotonic() - max(begin, self._answered) > limit:
                return Ended(LossReason.ERROR, 1, trouble)
            self._closed.wait(min(max(wait, pause), _LONGEST_WAIT))
            pause *= 2

    def _exchange(self, call: _HttpCall) -> _HttpAnswer:
        connection = self._take()
        with self._lock:
            call.connection = connection
            killed = call.killed
        if killed:
            connection.close()
            raise ConnectionError("the call was dropped")
        try:
            connection.request("POST", self._path, call.event, self._headers)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _Unsent(self._unreachable(error)) from error
        call.state = "running"
        try:
            response = connection.getresponse()
            answer = _HttpAnswer(response.status, response.read(), retry_after(response))
        except BaseException:
            connection.close()
            raise
        call.connection = None
        self._give_back(connection, response)
        if answer.status in _BUSY:
            call.state = "waiting"
        else:
            self._answered = time.monotonic()
        return answer

    def _take(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if not closed(connection):
                return connection
            connection.close()
        try:
            seconds = self.facts.seconds
            return self._connect(None if seconds is None else seconds + _LATE_SECONDS)
        except OSError as error:
            raise _Unsent(self._unreachable(error)) from error

    def _connect(self, seconds: float | None) -> http.client.HTTPConnection:
        connection = connected(self._host, self._port, self._tls, seconds)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return connection

    def _give_back(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        with self._lock:
            if not response.will_close and not self._closed.is_set():
                self._idle.append(connection)
                return
        connection.close()

    def _outcome(self, answer: _HttpAnswer) -> Ended | None:
        """How a call ended that was answered; None if all is well."""
        if answer.status == 202 or (answer.status == 200 and DONE in (answer.json or {})):
            return None
        if answer.status == 504:
            return Ended(LossReason.TIME_LIMIT, None, self._refusal(answer))
        if answer.status >= 500:
            return Ended(LossReason.DIED, None, self._refusal(answer))
        return Ended(LossReason.ERROR, 1, self._refusal(answer))

    def _refusal(self, answer: _HttpAnswer) -> str:
        """What an answer means that isn't the expected one."""
        cure = _CURES.get(answer.status, "" if answer.status >= 300 else _NOT_SHOAL)
        said = f"The function at {self.url} answered with status {answer.status}: {answer.words}"
        return f"{said.rstrip('.')}. {cure}".rstrip()

    def _unreachable(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return untrusted_words(self.url, "function", error)
        return (
            f"The function at {self.url} can't be reached: {error}. Is it deployed, and is the "
            "address right?"
        )


_NOT_SHOAL = "This isn't Shoal's function; is the address right?"
_CURES = {
    401: "Set token where you set platform.",
    403: "Set token where you set platform, or allow calls without one.",
    404: "Is the address right?",
    405: _NOT_SHOAL,
    413: "Set payload_mb in the platform's URL to what the platform allows.",
    429: "Set capacity in the platform's URL to the number of calls that may run at once.",
}


def _dropped(url: str, error: Exception) -> Ended:
    if isinstance(error, TimeoutError):
        return Ended(LossReason.TIME_LIMIT, None, f"The function at {url} didn't answer in time.")
    return Ended(LossReason.DIED, None, f"The connection to the function at {url} dropped: {error}")


def _hang_up(connection: http.client.HTTPConnection | None) -> None:
    """Wake the thread that waits for an answer."""
    if connection is not None and connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _split(url: str) -> tuple[str, dict[str, str]]:
    """A function's own URL, and the facts in the query."""
    try:
        parts = urlsplit(url.removeprefix(PREFIX))
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = None
    if not valid:
        raise SettingsError(
            "platform isn't the URL of a function. Use function+https://HOST/PATH, or "
            "function+http:// within a network that you trust."
        )
    if parts.username or parts.password:
        raise SettingsError(
            "platform: a function's URL has no user or password. Set token where you set platform."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path or '/'}", dict(parse_qsl(parts.query))


def facts_of(query: Mapping[str, str]) -> EngineFacts:
    """What the query of a function's URL says about it."""
    known = {"capacity", "cpus", "memory_mb", "nests", "payload_mb", "prices", "seconds"}
    unknown = query.keys() - known
    if unknown:
        raise SettingsError(
            f"platform: a function has no {', '.join(sorted(unknown))}; its URL may have "
            f"{', '.join(sorted(known))}."
        )
    return EngineFacts(
        stays=False,
        watches=True,
        nests=query.get("nests", "0") not in ("0", "false", "no"),
        capacity=max(1, int(_number(query, "capacity") or _CAPACITY)),
        cpus=_number(query, "cpus"),
        memory_mb=None if (mb := _number(query, "memory_mb")) is None else int(mb),
        payload_nbytes=int((_number(query, "payload_mb") or _PAYLOAD_MB) * 2**20),
        seconds=_number(query, "seconds"),
        prices=query.get("prices", ""),
    )


def _number(query: Mapping[str, str], name: str) -> float | None:
    try:
        found = float(query[name]) if name in query else None
    except ValueError:
        found = -1.0
    if found is not None and not 0 < found < 2**40:
        raise SettingsError(f"platform: {name}={query[name]!r} must be a positive number.")
    return found
