"""Implement `shoal gateway`: a standalone gateway that serves several clients.

Its own sandboxes always reach it over loopback, so only clients see the certificate.
"""

from __future__ import annotations

import argparse
import ipaddress
import signal
import threading

from shoal.client.backends import WORKER_ENTRY, token_file
from shoal.errors import UsageError
from shoal.execution.pool import IDLE_SECONDS, SANDBOXES
from shoal.platform.detached_runs import DetachedRuns
from shoal.platform.gateway import LocalGateway
from shoal.platform.logs import RunLogs
from shoal.platform.sandbox_env import SandboxEnv, variable_names
from shoal.platform.server import GatewayServer, server_tls
from shoal.platform.tokens import address_of, new_token, write_token
from shoal.settings import resolve


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8470, help="port to listen on; 0 for any (default: %(default)s)"
    )
    parser.add_argument(
        "--sandboxes",
        type=int,
        help=f"maximum number of concurrent sandboxes (default: {SANDBOXES})",
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        help=f"remove a sandbox idle for this long (default: {IDLE_SECONDS:g})",
    )
    parser.add_argument("--certificate", metavar="FILE", help="serve HTTPS with this certificate")
    parser.add_argument("--private-key", metavar="FILE", help="the certificate's private key")
    parser.add_argument(
        "--insecure", action="store_true", help="allow plain HTTP on a non-loopback address"
    )


def carry_out(args: argparse.Namespace) -> None:
    """Serve until interrupted or terminated."""
    if (args.certificate is None) != (args.private_key is None):
        raise UsageError("Give both --certificate and --private-key, or neither.")
    tls = server_tls(args.certificate, args.private_key) if args.certificate else None
    if not is_loopback(args.host) and tls is None and not args.insecure:
        raise UsageError(
            f"--host {args.host} can be reached from other machines, but HTTP is not encrypted. "
            "Give --certificate and --private-key, listen on 127.0.0.1 behind a TLS proxy, or "
            "allow it with --insecure."
        )
    given = {"sandboxes": args.sandboxes, "idle_seconds": args.idle_seconds}
    given = {name: value for name, value in given.items() if value is not None}
    settings = resolve(given | {"platform": None})  # ignore the token of another gateway
    gateway = LocalGateway(
        WORKER_ENTRY,
        RunLogs(settings.data_folder() / "logs"),
        capacity=settings.capacity,
        idle_seconds=settings.idle_seconds,
        sandbox_env=SandboxEnv(settings.isolation, True, variable_names(settings.pass_variables)),
    )
    token = settings.token or new_token()

    def announce(url: str) -> None:
        scheme, host, port = address_of(url)
        host = "127.0.0.1" if host == "localhost" else host
        write_token(token_file(port), token, f"{scheme}://{host}:{port}")

    try:
        server = GatewayServer(gateway, token, args.host, args.port, tls, announce=announce)
        inner = (
            GatewayServer(gateway, token) if tls else None
        )  # sandboxes use the server created last
        gateway.remember(DetachedRuns.of_port(server.port))
        path = token_file(server.port)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        print(f"listening on {server.url}, up to {gateway.capacity} sandboxes", flush=True)
        print(f"token in {path}, where this user's clients find it", flush=True)
        print(f"to use it, set SHOAL_PLATFORM={server.url}; Ctrl-C stops it", flush=True)
        ended.wait()
        path.unlink(missing_ok=True)  # before another gateway can take the port and write its token
        server.close()
        if inner is not None:
            inner.close()
    finally:
        gateway.close()


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
