"""A Ray cluster of two nodes on this machine's loopback addresses, with a token of its own."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from observing import eventually, exists, processes_mentioning
from store_servers import tcp_server, url_of

MARKS = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray isn't installed: pip install 'shoal[ray]', or run `make engines`",
    ),
]
CPUS, MEMORY_MB = 4, 4000
"""What each node claims to have."""
_HEAD, _OTHER = "127.0.0.2", "127.0.0.3"
_STORE_NBYTES = 80_000_000
"""The least that Ray's object store takes, about; Shoal puts nothing there."""
_TRIES = 5
"""A node gives up if its agents take more than 15 seconds to start, as on a busy machine."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that is up."""

    port: int
    """The port of its GCS."""
    client_port: int
    """The port of its Ray Client server."""
    mark: str
    """A text in the environment of its processes, unless they have changed their titles."""
    folder: Path
    """Where Ray keeps its files."""
    sessions: list[int]
    """The process sessions of its nodes."""

    @property
    def address(self) -> str:
        return f"{_HEAD}:{self.port}"

    def processes(self, text: str = "") -> list[int]:
        """Its processes whose command line has a text; the jobs' are marked, but in no session."""
        marked = processes_mentioning(self.mark)
        return [
            pid
            for pid, command in processes_mentioning("").items()
            if text in command and (pid in marked or _session(pid) in self.sessions)
        ]

    def raylet(self, address: str) -> int:
        """The process that is a node."""
        (pid,) = self.processes(f"--node_ip_address={address}")
        return pid


APART = ("bwrap", "--dev-bind", "/", "/", "--tmpfs", "/dev/shm")
"""Starts a program with a shared memory of its own, as on another machine."""


@contextmanager
def cluster(apart: Sequence[str] = ()) -> Iterator[Cluster]:
    """Start two nodes, and set variables with which this process reaches them.

    Args:
        apart: What starts the second node.
    """
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-"))
        up = Cluster(_port(), _port(), secrets.token_hex(8), Path(folder), [])
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in own.items():
            patch.setenv(name, value)
        stack.callback(lambda: _end(up.processes()))
        clients = f"--ray-client-server-port={up.client_port}"
        head = ["--head", f"--port={up.port}", f"--temp-dir={folder}", clients]
        _start(up, _HEAD, 20_200, *head, "--include-dashboard=false", "--no-monitor")
        _start(up, _OTHER, 21_200, f"--address={up.address}", within=apart)
        yield up


def _start(
    up: Cluster, address: str, ports: int, *options: str, within: Sequence[str] = ()
) -> None:
    """Start a node whose workers listen on ports from a first one on."""
    program = [str(Path(sys.executable).with_name("ray")), "start", f"--node-ip-address={address}"]
    has = [f"--num-cpus={CPUS}", f"--memory={MEMORY_MB * 2**20}"]
    has += [f"--object-store-memory={_STORE_NBYTES}", "--include-log-monitor=false"]
    listens = [f"--min-worker-port={ports}", f"--max-worker-port={ports + 799}"]
    for _ in range(_TRIES):
        said = _tried(up, [*within, *program, *has, *listens, *options])
        if said is None:
            return
    raise AssertionError(said)


def _tried(up: Cluster, command: list[str]) -> str | None:
    """Try to start a node; return None, or what it said when it failed."""
    with tempfile.TemporaryFile("w+") as output:
        node = subprocess.Popen(
            command,
            env=os.environ | {"OF_TEST": up.mark},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        up.sessions.append(node.pid)
        if node.wait() == 0:
            return None
        _end([pid for pid in up.processes() if _session(pid) == node.pid])
        output.seek(0)
        return output.read()


def _end(processes: list[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not any(map(exists, processes)))


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _port() -> int:
    """A free port outside of those that Ray gives to its workers."""
    while True:
        port = 22_000 + secrets.randbelow(8_000)
        with suppress(OSError), socket.create_server((_HEAD, port)):
            return port


@contextmanager
def ray_cluster(_folder: Path) -> Iterator[tuple[str, str]]:
    """Jobs are processes of Ray actors."""
    with cluster() as up, tcp_server() as port:
        yield f"ray:///?address={up.address}&idle_seconds=2", url_of(port)
        assert eventually(lambda: not up.processes("shoal.engines.ray_job"))
