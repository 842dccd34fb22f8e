"""Start the processes that faults are injected into: a durable store, a gateway and clients.

A client uses that store and gateway, or embeds its own.

Everything that is killed can be restarted: the store with its file, the gateway with its port and a
new token, which clients find where it is written. Some clients reach both through links that can be
slow.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from processes import children

from shoal.errors import ShoalError
from shoal.platform import isolation
from shoal.platform.http import HttpPlatform
from shoal.platform.sandbox_env import hidden_folder
from shoal.storage.embedded import server_binary
from shoal.storage.resp import Connection, parse_url

T = TypeVar("T")

_ZYGOTE = "shoal.platform.zygote"
_ELSEWHERE = ("SHOAL_STORE", "SHOAL_PLATFORM")
"""The environment variables that tell a client where to find store and gateway."""

START_SECONDS = 60.0
END_SECONDS = 30.0
_GATEWAY = (
    "import faulthandler, signal; faulthandler.register(signal.SIGUSR1, all_threads=True); "
    "from shoal.cli.main import main; main()"
)


def eventually(look: Callable[[], T], seconds: float) -> T:
    """Call `look` until its result is true or time is over, and return the last result."""
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def ask(url: str, *command: Any) -> Any:
    """Send one command to a server, on a connection of its own."""
    connection = Connection(parse_url(url))
    try:
        return connection.call(*command)
    finally:
        connection.close()


class StoreProcess:
    """A durable Valkey server."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "store.sock"
        self.url = f"unix://{self.socket}"
        place = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(folder)]
        keeping = ["--appendonly", "yes", "--save", ""]
        telling = ["--loglevel", "warning", "--logfile", str(folder / "store.log")]
        self._command = [str(server_binary()), *place, *keeping, *telling]
        self.start()

    def start(self) -> None:
        """Start or restart it, and wait until it answers."""
        self.process = subprocess.Popen(self._command)
        if not eventually(self._answers, START_SECONDS):
            raise RuntimeError("the store doesn't start")

    def _answers(self) -> bool:
        try:
            self.ask("PING")
        except ShoalError:
            return False
        return True

    def ask(self, *command: Any) -> Any:
        """Send one command, on a connection of its own."""
        return ask(self.url, *command)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Stop it gracefully."""
        self.process.terminate()
        self.process.wait(END_SECONDS)


class GatewayHost:
    """A process with a gateway, and its descendants."""

    process: subprocess.Popen[Any]

    def __init__(self) -> None:
        self._guarded = not isolation.problem(str(hidden_folder()))

    def zygotes(self) -> list[int]:
        """The zygotes that branches are forked from."""
        return sorted(pid for pid in children(self.process.pid) if _ZYGOTE in _command(pid))

    def branches(self) -> list[int]:
        """The branches that sandboxes are forked from, some for each session."""
        return sorted(pid for zygote in self.zygotes() for pid in children(zygote))

    def guards(self) -> list[int]:
        """The guards of isolated sandboxes."""
        return self._below_branches() if self._guarded else []

    def sandboxes(self) -> list[int]:
        """The sandbox processes."""
        below = self._below_branches()
        return sorted(p for g in below for p in children(g)) if self._guarded else below

    def _below_branches(self) -> list[int]:
        return sorted(pid for branch in self.branches() for pid in children(branch))


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


class GatewayProcess(GatewayHost):
    """A `shoal gateway` process."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.linked: int | None = None
        """The port of a link to it."""
        self.tokens = folder / "run" / f"shoal-{os.getuid()}" / "hidden"
        self.log = folder / "gateway.log"
        self._environment = environment
        super().__init__()
        self.start()

    def start(self) -> None:
        """Start or restart it, and wait until it answers."""
        arguments = ["gateway", "--port", str(self.port), "--sandboxes", "12"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _GATEWAY, *arguments, "--idle-seconds", "2"],
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        if not eventually(self._answers, START_SECONDS):
            raise RuntimeError(f"the gateway doesn't start: {self.log.read_text()[-2000:]}")

    def _answers(self) -> bool:
        try:
            self.status()
        except (ShoalError, OSError):  # no token is written yet
            return False
        return True

    def status(self) -> dict[str, Any]:
        """Return the gateway's status."""
        token = (self.tokens / f"gateway-{self.port}.token").read_text().split()[0]
        platform = HttpPlatform(self.url, token)
        try:
            return platform.status()
        finally:
            platform.close()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Stop it as a user would, and return its exit code."""
        self.process.terminate()
        (self.tokens / f"gateway-{self.linked}.token").unlink(missing_ok=True)
        return self.process.wait(END_SECONDS)


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


class LinksProcess:
    """Proxies in front of store and gateway that can be slowed down; see `links.py`."""

    NUMBERS = (0, 1)
    """The numbers of the links to the store and to the gateway."""

    def __init__(self, folder: Path, store: StoreProcess, gateway: GatewayProcess) -> None:
        path, port = folder / "link.sock", free_port()
        self.environment = {
            "SHOAL_STORE": f"unix://{path}",
            "SHOAL_PLATFORM": f"http://127.0.0.1:{port}",
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "laboratory.links"),
                *(f"{path}>{store.socket}", f"{port}>{gateway.port}>{gateway.tokens}"),
            ],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise RuntimeError("the links don't start")
        gateway.linked = port

    def limit(self, link: int, rate: int) -> None:
        """Limit a link to so many bytes per second; 0 removes the limit."""
        assert self.process.stdin is not None
        print(link, rate, file=self.process.stdin, flush=True)

    def end(self) -> None:
        """Cut all connections."""
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()


class ClientProcess(GatewayHost):
    """A client process and its output; an embedded one has its own store and gateway."""

    def __init__(self, folder: Path, environment: dict[str, str], *, embedded: bool) -> None:
        super().__init__()
        self.embedded = embedded
        if embedded:
            environment = {n: v for n, v in environment.items() if n not in _ELSEWHERE}
            environment |= {"SHOAL_IDLE_SECONDS": "2"}
        self.log = folder / "clients.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "laboratory.client"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.run: str | None = None
        """The current run."""
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))
        self._said.put(None)

    def order(self, order: dict[str, Any]) -> None:
        """Make the client run a workflow."""
        assert self.process.stdin is not None
        try:
            print(json.dumps(order), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return  # it has been killed, which `hear` says

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """Return the client's next message; None if it has exited.

        Raises:
            queue.Empty: There is no message in time.
        """
        return self._said.get(timeout=seconds)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()

    def end(self) -> None:
        """Close its input, and wait until it has exited."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()


def embedded_stores(folder: Path) -> list[str]:
    """Return the URLs of the servers that embedded clients have started."""
    return [f"unix://{path}" for path in (folder / "run").glob("shoal-*/*.sock")]


def client_environment(folder: Path) -> dict[str, str]:
    """Return the environment of every process of the laboratory, with separate folders."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    places = {"XDG_DATA_HOME": str(folder / "data"), "XDG_RUNTIME_DIR": str(folder / "run")}
    for place in places.values():
        Path(place).mkdir(mode=0o700, exist_ok=True)
    return kept | places | {"PYTHONPATH": str(Path(__file__).parents[1])}
