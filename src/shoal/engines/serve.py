"""`python -m shoal.engines.serve`: a function's server, for containers and custom handlers.

1. Each connection has a thread. An event beyond the slots is answered with 429, so the caller or
   the platform finds another instance; questions are always answered.
2. A worker continues if its caller hangs up: its outputs are in the store.
3. SIGTERM ends the server and its workers; their callers notice at once.
4. Secrets are variables, or files in the folder that SHOAL_SECRETS names: `shoal-store` has the
   value of SHOAL_STORE.
5. On Fn, which sets FN_LISTENER, the server listens on that socket, and the function's status
   travels in a header.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from shoal.engines.entry import BUSY, MAX_BODY, NO_LENGTH, Answer, answer, slots
from shoal.errors import ShoalError
from shoal.platform import job
from shoal.platform.events import Deployment

log = logging.getLogger(__name__)

_PORTS = ("PORT", "FUNCTIONS_CUSTOMHANDLER_PORT")
"""Variables in which platforms give the port."""
_PORT = "8080"
SECRETS_VARIABLE = "SHOAL_SECRETS"
FN_VARIABLE = "FN_LISTENER"
_IDLE_SECONDS = 620.0
"""Longer than load balancers keep a connection, so that they are the ones to close it."""


class FunctionServer(ThreadingHTTPServer):
    """Answers with as many events at a time as there are slots."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, most: int) -> None:
        super().__init__((host, port), _FunctionHandler)
        self.slots = threading.BoundedSemaphore(most)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong with a connection."""
        log.debug("%s: %r", client_address, sys.exception())


class FnServer(FunctionServer):
    """Listens on the socket that Fn's agent calls."""

    address_family = socket.AF_UNIX

    def __init__(self, listener: str, most: int) -> None:
        self._path = Path(listener.removeprefix("unix:"))
        super().__init__(str(self._path.with_name("bound.sock")), 0, most)

    def server_bind(self) -> None:
        """Bind a socket that Fn's agent may write to, and show it only then."""
        bound = Path(str(self.server_address[0]))
        self.socket.bind(str(bound))
        bound.chmod(0o666)
        self.server_name, self.server_port = "fn", 0

    def server_activate(self) -> None:
        """Listen."""
        super().server_activate()
        self._path.symlink_to("bound.sock")


class _FunctionHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "shoal"
    timeout = _IDLE_SECONDS
    server: FunctionServer

    def setup(self) -> None:
        super().setup()
        if not isinstance(self.server, FnServer):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._reply(answer("GET", b""))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            large = Answer(413, {"error": f"Give a Content-Length of at most {MAX_BODY}."})
            self._reply(large if length else NO_LENGTH)
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            return
        if body and not self.server.slots.acquire(blocking=False):
            self._reply(BUSY)
            return
        try:
            given = answer("POST", body)
        finally:
            if body:
                self.server.slots.release()
        self._reply(given)

    def _reply(self, given: Answer) -> None:
        fn = isinstance(self.server, FnServer)
        self.send_response(200 if fn else given.status)
        for name, value in [*given.head, *([("Fn-Http-Status", str(given.status))] if fn else [])]:
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):  # the caller has hung up
            self.wfile.write(given.body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s " + format, self.client_address, *args)


def read_secrets(folder: Path) -> None:
    """Set the variables that files in a folder stand for, unless they are set."""
    for file in sorted(folder.glob("shoal-*")):
        os.environ.setdefault(file.name.upper().replace("-", "_"), file.read_text().strip())


def main(argv: list[str] | None = None) -> int:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(prog="python -m shoal.engines.serve", description=__doc__)
    port = next((os.environ[name] for name in _PORTS if name in os.environ), _PORT)
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    parser.add_argument("--port", type=int, default=int(port), help="port (default: $PORT or 8080)")
    parser.add_argument("--slots", type=int, help="events at a time (default: $SHOAL_SLOTS or 4)")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        if SECRETS_VARIABLE in os.environ:
            read_secrets(Path(os.environ[SECRETS_VARIABLE]))
        Deployment.of_environment()
        most = args.slots or slots()
        fn = os.environ.get(FN_VARIABLE)
        server = FnServer(fn, most) if fn else FunctionServer(args.host, args.port, most)
    except (ShoalError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    threading.Thread(target=server.serve_forever, name="shoal-http", daemon=True).start()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    server.server_close()
    job.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
