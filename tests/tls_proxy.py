"""TLS in front of a server that has none."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def tls_in_front(certificate: Path, port: int) -> Iterator[int]:
    """The port at which a server on loopback is reached over TLS."""
    with TlsProxy(certificate, port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield proxy.server_address[1]
        proxy.shutdown()
        thread.join()


class TlsProxy(socketserver.ThreadingTCPServer):
    """Takes TLS off what is sent to it and passes it on."""

    daemon_threads = False

    def __init__(self, certificate: Path, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _PassingOn)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.target = ("127.0.0.1", port)


class _PassingOn(socketserver.BaseRequestHandler):
    server: TlsProxy

    def handle(self) -> None:
        context = self.server.context
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            client = stack.enter_context(context.wrap_socket(self.request, server_side=True))
            store = stack.enter_context(socket.create_connection(self.server.target))
            while True:
                waiting = (
                    [client] if client.pending() else select.select([client, store], [], [])[0]
                )
                for source, target in ((client, store), (store, client)):
                    if source in waiting:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        target.sendall(data)
