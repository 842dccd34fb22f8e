"""`shoal gateway`: a gateway that stands alone and serves several clients."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import threading

from shoal.errors import UsageError
from shoal.platform.gateway import LocalGateway, new_token
from shoal.platform.logs import RunLogs
from shoal.platform.server import GatewayServer
from shoal.session import WORKER_ENTRY, token_file
from shoal.settings import resolve


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8470, help="port to listen on (8470; 0: any)")
    parser.add_argument("--sandboxes", type=int, help="how many there may be at once (32)")
    parser.add_argument("--idle-seconds", type=float, help="remove idle ones after so long (7)")
    parser.add_argument(
        "--insecure", action="store_true", help="allow plain HTTP on an address others can reach"
    )


def carry_out(args: argparse.Namespace) -> None:
    """Serve until interrupted or terminated."""
    if not _is_loopback(args.host) and not args.insecure:
        raise UsageError(
            f"--host {args.host} can be reached from elsewhere, and HTTP is not encrypted: listen "
            "on 127.0.0.1 behind a TLS proxy, or say --insecure."
        )
    given = {"sandboxes": args.sandboxes, "idle_seconds": args.idle_seconds}
    settings = resolve({name: value for name, value in given.items() if value is not None})
    gateway = LocalGateway(
        WORKER_ENTRY,
        RunLogs(settings.data_folder() / "logs"),
        capacity=settings.sandboxes,
        idle_seconds=settings.idle_seconds,
    )
    token = settings.token or new_token()
    try:
        server = GatewayServer(gateway, token, args.host, args.port)
        path = token_file()
        _write_secret(str(path), token)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        print(f"listening on {server.url}, at most {settings.sandboxes} sandboxes", flush=True)
        print(f"token in {path}; clients of this user find it there", flush=True)
        print(f"use it with SHOAL_PLATFORM={server.url}; Ctrl-C ends it", flush=True)
        ended.wait()
        server.close()
        if path.exists() and path.read_text().strip() == token:
            path.unlink()
    finally:
        gateway.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write_secret(path: str, secret: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secret + "\n")
