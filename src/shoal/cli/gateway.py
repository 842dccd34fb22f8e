"""`shoal gateway`: a gateway that stands alone and serves several clients.

Its own sandboxes always reach it on loopback, so a certificate concerns only those outside.
"""

from __future__ import annotations

import argparse
import ipaddress
import signal
import threading

from shoal.connecting import token_file
from shoal.errors import UsageError
from shoal.platform.gateway import LocalGateway
from shoal.platform.housing import Housing, variable_names
from shoal.platform.kept import KeptRuns
from shoal.platform.logs import RunLogs
from shoal.platform.server import GatewayServer, server_tls
from shoal.platform.tokens import address_of, new_token, write_token
from shoal.session import WORKER_ENTRY
from shoal.settings import SANDBOXES, resolve


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8470, help="port to listen on (8470; 0: any)")
    parser.add_argument("--sandboxes", type=int, help="how many there may be at once (32)")
    parser.add_argument("--idle-seconds", type=float, help="remove idle ones after so long (7)")
    parser.add_argument("--certificate", help="file with the certificate to serve HTTPS with")
    parser.add_argument("--private-key", help="file with the certificate's key")
    parser.add_argument(
        "--insecure", action="store_true", help="allow plain HTTP on an address others can reach"
    )


def carry_out(args: argparse.Namespace) -> None:
    """Serve until interrupted or terminated."""
    if (args.certificate is None) != (args.private_key is None):
        raise UsageError("--certificate and --private-key are given together.")
    tls = server_tls(args.certificate, args.private_key) if args.certificate else None
    if not is_loopback(args.host) and tls is None and not args.insecure:
        raise UsageError(
            f"--host {args.host} can be reached from elsewhere, and HTTP is not encrypted: give "
            "--certificate and --private-key, listen on 127.0.0.1 behind a TLS proxy, or say "
            "--insecure."
        )
    given = {"sandboxes": args.sandboxes, "idle_seconds": args.idle_seconds}
    given = {name: value for name, value in given.items() if value is not None}
    settings = resolve(given | {"platform": None})  # the token is its own, not another gateway's
    gateway = LocalGateway(
        WORKER_ENTRY,
        RunLogs(settings.data_folder() / "logs"),
        capacity=settings.sandboxes or SANDBOXES,
        idle_seconds=settings.idle_seconds,
        housing=Housing(settings.isolation, True, variable_names(settings.pass_variables)),
    )
    token = settings.token or new_token()

    def announce(url: str) -> None:
        scheme, host, port = address_of(url)
        host = "127.0.0.1" if host == "localhost" else host
        write_token(token_file(port), token, f"{scheme}://{host}:{port}")

    try:
        server = GatewayServer(gateway, token, args.host, args.port, tls, announce=announce)
        inner = GatewayServer(gateway, token) if tls else None  # sandboxes use the last one
        gateway.remember(KeptRuns.of_port(server.port))
        path = token_file(server.port)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        print(f"listening on {server.url}, at most {gateway.capacity} sandboxes", flush=True)
        print(f"token in {path}; clients of this user find it there", flush=True)
        print(f"use it with SHOAL_PLATFORM={server.url}; Ctrl-C ends it", flush=True)
        ended.wait()
        path.unlink(missing_ok=True)  # before another gateway can have the port, and its token here
        server.close()
        if inner is not None:
            inner.close()
    finally:
        gateway.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
