"""AWS Lambda on this machine: Amazon's runtime emulator, in a pool behind the Invoke API.

1. An environment is a process of `aws-lambda-rie` with Amazon's Python runtime, as in Lambda. It
   serves one event at a time, and is frozen between two of them.
2. `Event` puts an event into a queue and answers 202. The first free environment of the function
   takes it; a new one starts if there is none, up to the limit.
3. Payloads have Lambda's limits. Some requests are throttled (429).
4. What fails is told to the first function, the destination of failures.
5. With bubblewrap, an environment sees a read-only system with its own empty `/dev/shm`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from observing import eventually
from store_servers import free_port

EVENT_NBYTES, REQUEST_NBYTES = 2**20, 6 * 2**20
_UP_SECONDS = 100.0
"""How long an environment may take to come up: several start at once on a busy machine."""
HANDLER = "shoal.engines.aws_lambda.handler"


def emulator() -> Path | None:
    """Amazon's emulator, in the package aws-sam-cli; None if it isn't installed."""
    spec = importlib.util.find_spec("samcli")
    if spec is None or spec.origin is None or importlib.util.find_spec("awslambdaric") is None:
        return None
    found = Path(spec.origin).parent / "local" / "rapid" / f"aws-lambda-rie-{os.uname().machine}"
    return found if found.exists() else None


@dataclass
class FunctionProcess:
    """A process that serves one function."""

    process: subprocess.Popen[bytes]
    port: int
    served: int = 0
    ended: bool = False
    """Whether it was killed: the process may not tell so while another thread waits for it."""

    def call(self, event: bytes) -> bytes:
        """Have it serve an event."""
        self._signal(signal.SIGCONT)
        connection = HTTPConnection("127.0.0.1", self.port, timeout=900)
        try:
            connection.request("POST", "/2015-03-31/functions/function/invocations", event)
            return connection.getresponse().read()
        finally:
            connection.close()
            self.served += 1
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """End it, as Lambda does: without notice."""
        self.ended = True
        self._signal(signal.SIGKILL)
        self.process.wait()


@dataclass
class Function:
    """One function: its environments and the events that wait for one."""

    name: str
    memory_mb: int
    idle: list[FunctionProcess] = field(default_factory=list)
    waiting: deque[bytes] = field(default_factory=deque)


class Emulator:
    """Functions with an Invoke API; safe to use from several threads."""

    def __init__(
        self, sizes: Mapping[str, int], variables: Mapping[str, str], folder: Path, most: int = 4,
        throttled: int = 0, seconds: int = 900, code: str | None = None, handler: str = HANDLER,
    ) -> None:  # fmt: skip
        """Make functions; their environments start with the first events.

        Args:
            sizes: The memory of each function, by name.
            variables: The environment variables that functions are deployed with.
            folder: Where environments write.
            most: How many environments there may be at once.
            throttled: Every so manieth request is answered 429; 0: none.
            seconds: How long a function may take.
            code: Folders with an unpacked package and Amazon's runtime, and nothing else; None:
                this process's own packages.
            handler: What runs in the functions.
        """
        self._handler = handler
        self._functions = {name: Function(name, mb) for name, mb in sizes.items()}
        self._variables, self._folder, self._code = variables, folder, code
        self._most, self._throttled, self._seconds = most, throttled, seconds
        self._all: list[FunctionProcess] = []
        self._lock = threading.Condition()
        self._closed = False
        self._starting = ThreadPoolExecutor(1)
        """The thread that starts environments: they end with it, if nobody ends them before."""
        self.requests = 0
        self.cold = 0
        """How many environments were started."""
        self.errors: list[str] = []
        """What functions failed with."""

    def accept(self, name: str, way: str, event: bytes) -> tuple[int, bytes]:
        """Answer a request: its status and body."""
        with self._lock:
            self.requests += 1
            if self._throttled and self.requests % self._throttled == 0:
                return 429, b'{"Type":"User","Reason":"CallerRateLimitExceeded"}'
            function = self._functions.get(name)
        if function is None:
            return 404, b'{"Type":"User","Message":"Function not found"}'
        if len(event) > (EVENT_NBYTES if way == "Event" else REQUEST_NBYTES):
            return 413, b'{"Type":"User","Message":"Request must be smaller"}'
        if way == "RequestResponse":
            return 200, self._serve(function, event)
        threading.Thread(target=self._serve_later, args=(function, event), daemon=True).start()
        return 202, b""

    def _serve_later(self, function: Function, event: bytes) -> None:
        """Serve an asynchronous event; tell the first function if that fails, as it is deployed."""
        answer = self._serve(function, event)
        if b'"errorMessage"' not in answer or self._closed:
            return
        record = {
            "version": "1.0",
            "requestContext": {"functionArn": function.name, "condition": "RetriesExhausted"},
            "requestPayload": json.loads(event),
            "responseContext": {"statusCode": 200, "functionError": "Unhandled"},
            "responsePayload": json.loads(answer),
        }
        self.accept(next(iter(self._functions)), "Event", json.dumps(record).encode())

    def _serve(self, function: Function, event: bytes) -> bytes:
        environment = self._acquire(function)
        if environment is None:
            return b""
        try:
            answer = environment.call(event)
        except OSError as error:  # the environment has died
            answer = json.dumps({"errorMessage": str(error)}).encode()
        with self._lock:
            if b'"errorMessage"' in answer:
                self.errors.append(answer.decode())
            if not environment.ended and environment.process.poll() is None:
                function.idle.append(environment)
            else:
                self._all.remove(environment)
            self._lock.notify_all()
        return answer

    def _acquire(self, function: Function) -> FunctionProcess | None:
        with self._lock:
            self._lock.wait_for(
                lambda: self._closed or function.idle or len(self._all) < self._most
                or any(other.idle for other in self._functions.values())
            )  # fmt: skip
            if self._closed:
                return None
            if function.idle:
                return function.idle.pop()
            if len(self._all) >= self._most:
                evicted = next(other for other in self._functions.values() if other.idle).idle.pop()
                self._all.remove(evicted)
                evicted.end()
            made = self._start(function)
        return self._up(function, made)

    def _start(self, function: Function) -> FunctionProcess:
        """Start an environment; the caller holds the lock."""
        made = self._starting.submit(self._environment, function).result()
        self._all.append(made)
        self.cold += 1
        return made

    def _up(self, function: Function, made: FunctionProcess) -> FunctionProcess:
        """Wait until an environment is up; replace one whose port somebody else has taken."""
        while True:
            process, port = made.process, made.port
            up = eventually(partial(_up_or_ended, process, port), _UP_SECONDS)
            assert up, "the runtime emulator doesn't come up"
            with self._lock:
                if process.poll() is None or made.ended or self._closed:
                    return made
                self._all.remove(made)
                made = self._start(function)

    def _environment(self, function: Function) -> FunctionProcess:
        port, number = free_port(), self.cold
        command = [
            str(emulator()), "--runtime-interface-emulator-address", f"127.0.0.1:{port}",
            "--runtime-api-address", f"127.0.0.1:{free_port()}", "--log-level", "error",
            sys.executable if self._code is None else f"{sys.base_prefix}/bin/python3",
            "-m", "awslambdaric", self._handler,
        ]  # fmt: skip
        folder = self._folder / f"{function.name}-{number}"
        folder.mkdir(parents=True)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        variables = kept | {
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(self._seconds),
            "AWS_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "example",
            "HOME": "/nonexistent",
            "TMPDIR": str(folder),
        }
        if self._code is not None:
            variables["PYTHONPATH"] = self._code
        with open(self._folder / "log", "ab") as log:
            process = subprocess.Popen(
                [*_jail(folder), *command],
                env=variables | self._variables,
                cwd="/",
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return FunctionProcess(process, port)

    def kill(self) -> None:
        """End all environments, whatever they are doing."""
        with self._lock:
            environments = list(self._all)
            for function in self._functions.values():
                self._all = [each for each in self._all if each not in function.idle]
                function.idle.clear()
        for environment in environments:
            environment.end()

    def close(self) -> None:
        """End all environments, and start no more."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            for environment in self._all:
                environment.end()
        self._starting.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)


def _jail(folder: Path) -> list[str]:
    """What makes an environment see a system like Lambda's."""
    found = shutil.which("bwrap")
    if found is None:
        return []
    shared = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    return [
        found, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        "--bind", str(folder), str(folder), "--bind", shared, shared, "--unshare-pid",
        "--unshare-ipc", "--die-with-parent",
    ]  # fmt: skip


def _up_or_ended(process: subprocess.Popen[bytes], port: int) -> bool:
    return _listens(port) or process.poll() is not None


def _listens(port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        _, _, _, name, _ = self.path.split("/")
        way = self.headers.get("x-amz-invocation-type", "RequestResponse")
        status, answer = self.server.emulator.accept(name, way, body)  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.send_header("x-amzn-requestid", str(uuid.uuid4()))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def serving(emulated: Emulator) -> Iterator[str]:
    """The URL of the Invoke API of an emulator."""
    server = _Server(("127.0.0.1", 0), _Api)
    server.emulator = emulated  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        emulated.close()
