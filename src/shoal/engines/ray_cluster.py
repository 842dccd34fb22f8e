"""`ray://HOST:PORT` and `ray:///`: each job is a process that an actor of a Ray cluster starts.

1. `ray://HOST:PORT` means what it means to Ray: the cluster's Ray Client server, which clients
   outside of the cluster reach. `ray:///` is the cluster that this machine is a node of: the one
   that this process is connected to, else the one that Ray finds itself.
2. The client's process doesn't connect to Ray. Another process does, the driver
   (`ray_driver.py`): so Ray's log lines, signal handlers and exit hooks stay out of the client, and
   a connection that the user has made is neither used nor disturbed.
3. Jobs outlive the driver. A driver that dies is replaced when it is needed next.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from shoal.errors import PlatformError, SettingsError
from shoal.platform.engine import Ended, EngineFacts, JobState
from shoal.platform.environment import mismatch, this_environment
from shoal.platform.events import KEY_VARIABLE, STORE_VARIABLE, Deployment
from shoal.platform.invocation import PythonEnvironment
from shoal.types import LossReason, Resources

_ANSWER_SECONDS = 120.0
"""How long the driver may take; connecting takes the longest."""
_REACH_SECONDS = 10.0
"""How long the cluster may take to accept a connection."""
_END_SECONDS = 10.0
"""How long the driver may take to disconnect."""
_JOBS_PER_CPU = 2
"""Jobs of several sizes may be there at once, and most book less than a CPU."""
_TOLD = 2000
"""Characters of the driver's log that an error quotes."""


class _RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of the URL."""

    address: str = ""
    """The cluster that `ray:///` stands for, as HOST:PORT of its GCS; empty: Ray finds it."""
    namespace: str = "shoal"
    """The Ray namespace of the actors."""
    idle_seconds: float = 30.0
    spares: Annotated[int, msgspec.Meta(ge=0)] = 0
    capacity: int | None = None


class RayEngine:
    """Starts actors, through the driver."""

    def __init__(self, url: str, deployment: Deployment, folder: Path) -> None:
        """Connect to the cluster."""
        if importlib.util.find_spec("ray") is None:
            raise SettingsError(
                f"platform={url!r} needs Ray, which isn't installed: pip install 'shoal[ray]'."
            )
        self._url = url
        options = _options(url)
        secret = {KEY_VARIABLE: deployment.key.hex(), STORE_VARIABLE: deployment.store}
        self._address = _address(url, options)
        self._connect = {
            "address": self._address,
            "namespace": options.namespace,
            "variables": secret,
        }
        self._lock = threading.Lock()
        self._driver: _DriverProcess | None = None
        self._closed = False
        with self._lock:
            nodes = self._connected()
        cpus = [node["cpus"] for node in nodes]
        self.facts = EngineFacts(
            stays=True,
            watches=True,
            memory_mb=max((node["memory_mb"] for node in nodes), default=0) or None,
            cpus=max(cpus, default=0) or None,
            capacity=options.capacity or max(1, int(_JOBS_PER_CPU * sum(cpus))),
            idle_seconds=options.idle_seconds,
            spares=options.spares,
        )

    def start(self, event: bytes, resources: Resources) -> str:
        """Start an actor that starts a job; it waits until a node has room."""
        handle = f"shoal-{secrets.token_hex(8)}"
        booked = {"num_cpus": _booked(resources.cpu_share), "memory": resources.memory_mb * 2**20}
        self._call("start", handle=handle, event=event.decode(), booked=booked)
        return handle

    def states(self, handles: Sequence[str]) -> Mapping[str, JobState]:
        """Tell how jobs are, as Ray sees them."""
        found = self._call("states", handles=list(handles))
        return {handle: _state(told) for handle, told in found.items()}

    def kill(self, handle: str) -> None:
        """Kill an actor; its job ends with it."""
        self._call("kill", handle=handle)

    def check(self, *, thorough: bool = False) -> str:
        """Tell that the cluster was reached; if thorough, compare the versions on its nodes.

        That starts a process on each node, so a session doesn't wait for it: jobs compare, too.
        """
        if not thorough:
            return "connected"
        nodes = self._call("versions")
        for name, found in nodes.items():
            there = PythonEnvironment(python=found["python"], shoal=found["shoal"])
            problem = mismatch(this_environment(), there, f"on the node {name}")
            if problem is not None:
                raise problem
        return f"Shoal {this_environment().shoal} on {len(nodes)} nodes"

    def close(self) -> None:
        """Disconnect from the cluster."""
        with self._lock:
            self._closed = True
            if self._driver is not None:
                self._driver.close()
                self._driver = None

    def _call(self, op: str, **arguments: Any) -> Any:
        with self._lock:
            if self._closed:
                raise PlatformError(f"The connection to {self._url} is closed.")
            self._connected()
            assert self._driver is not None
            try:
                return self._driver.call(op, **arguments)
            except _DriverEnded as error:
                self._driver = None
                raise PlatformError(f"The connection to {self._url} failed: {error}") from error

    def _connected(self) -> list[dict[str, Any]]:
        """Start a driver unless there is one; return the cluster's nodes if it is new."""
        if self._driver is not None:
            return []
        driver = None
        try:
            _reach(self._address)
            driver = _DriverProcess()
            nodes: list[dict[str, Any]] = driver.call("connect", **self._connect)
        except (OSError, PlatformError, _DriverEnded) as error:
            if driver is not None:
                driver.close()
            raise PlatformError(
                f"No connection to Ray at {self._url}: {str(error).rstrip('.')}. Is the cluster up "
                "(`ray status`), and does it have this client's versions of Ray and Python?"
            ) from error
        self._driver = driver
        return nodes


class _DriverEnded(Exception):
    """The driver's process has ended, or doesn't answer."""


class _DriverProcess:
    """The driver's process; answers one call at a time."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the driver
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal.engines.ray_driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def call(self, op: str, **arguments: Any) -> Any:
        """Have the driver do something; return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_SECONDS)
            line = self._process.stdout.readline() if ready else b""
        except OSError:
            line = b""
        if not line:
            self.close(0)
            raise _DriverEnded(self._told)
        answer = json.loads(line)
        if "error" in answer:
            raise PlatformError(answer["error"])
        return answer["answer"]

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Have the driver end, unless it has; kill it if it doesn't within some seconds."""
        if self._log.closed:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._told = self._end_of_log()

    def _end_of_log(self) -> str:
        with self._log:
            self._log.seek(0)
            told = self._log.read().decode(errors="replace")[-_TOLD:].strip()
        return told or f"its driver gave no answer within {_ANSWER_SECONDS:g} s."


def _options(url: str) -> _RayOptions:
    query = dict(parse_qsl(urlsplit(url).query))
    try:
        return msgspec.convert(query, _RayOptions, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(_RayOptions.__struct_fields__)
        raise SettingsError(f"platform={url!r}: {error}. Known options: {known}.") from error


def _address(url: str, options: _RayOptions) -> str:
    """What `ray.init` is to connect to."""
    where = urlsplit(url).netloc
    if where and options.address:
        raise SettingsError(f"platform={url!r}: give a host or ?address=, not both.")
    if where:
        return f"ray://{where}"
    return options.address or _address_here() or "auto"


def _address_here() -> str | None:
    """The cluster that this process is connected to."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().gcs_address)


def _reach(address: str) -> None:
    """Raise an error if nothing listens at an address: Ray would try for minutes."""
    where = urlsplit(address if "//" in address else f"//{address}")
    if where.port is not None:
        socket.create_connection((where.hostname, where.port), _REACH_SECONDS).close()


def _booked(cpus: float) -> float:
    """CPUs as Ray books them: ten-thousandths below one, and whole ones above."""
    return max(0.0001, round(cpus, 4)) if cpus <= 1 else float(-(-cpus // 1))


def _state(told: Any) -> JobState:
    if told == "waiting" or told == "running":
        return "waiting" if told == "waiting" else "running"
    reason, code, detail = told
    return Ended(LossReason(reason), code, detail)
