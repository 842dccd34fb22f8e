"""`shoal invoker`: a fan-out invoker that stands alone, beside a gateway.

It has the gateway's token, and opens for the same callers: the gateway's own token, or a run's for
that run. Workers use it if the setting `invoker` names it.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Sequence

from shoal.cli.gateway import is_loopback
from shoal.connecting import gateway_access
from shoal.errors import UsageError
from shoal.platform.base import Invocation
from shoal.platform.http import HttpPlatform
from shoal.platform.invoker import Invoker
from shoal.platform.server import GatewayServer
from shoal.settings import resolve
from shoal.types import WorkerId


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument("--platform", help="the gateway's URL (the setting `platform`)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8471, help="port to listen on (8471; 0: any)")


def carry_out(args: argparse.Namespace) -> None:
    """Serve until interrupted or terminated."""
    settings = resolve({"platform": args.platform} if args.platform else {})
    if not is_loopback(args.host):
        raise UsageError(
            f"--host {args.host} can be reached from elsewhere, and HTTP is not encrypted: listen "
            "on 127.0.0.1, behind a TLS proxy if others are to reach it."
        )
    if settings.platform is None:
        raise UsageError("Whom to invoke through? Give --platform, the gateway's URL.")
    url, token = gateway_access(settings.platform, settings.token)

    def invoke(invocations: Sequence[Invocation]) -> None:
        with contextlib.closing(HttpPlatform(url, token, ca_file=settings.ca_file)) as gateway:
            gateway.invoke(invocations)

    def hand_on(like: Invocation, workers: Sequence[WorkerId]) -> None:
        with contextlib.closing(HttpPlatform(server.url, token)) as another:
            another.fan_out(like, workers)

    invoker = Invoker(invoke, hand_on)
    server = GatewayServer(None, token, args.host, args.port, invoker=invoker)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    print(f"listening on {server.url}, invoking through {url}", flush=True)
    print(f"use it with SHOAL_INVOKER={server.url}; Ctrl-C ends it", flush=True)
    ended.wait()
    server.close()
    invoker.close()
