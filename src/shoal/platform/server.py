"""`GatewayServer`: accepts a gateway's HTTP connections, and serves each in a thread.

It listens on loopback by default. It rejects connections beyond a limit that grows with the
gateway's capacity.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.errors import GatewayUnavailable, SettingsError
from shoal.platform.gateway import LocalGateway

if TYPE_CHECKING:
    import ssl

    from shoal.platform.endpoints import Door

log = logging.getLogger(__name__)

_BACKLOG = 256
_LAST_PORT = 65535
_PAUSE = 0.1
"""Seconds to wait after a failure to accept, such as a lack of file descriptors."""
_CONNECTIONS = 256
"""Connections allowed besides two for each sandbox."""
_FULL = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: 44\r\n"
    b'Retry-After: 1\r\nConnection: close\r\n\r\n{"error": "There are too many connections."}'
)


class GatewayServer:
    """Serves a gateway over HTTP.

    HTTP modules are imported with the first connection: most embedded gateways never get one.
    """

    def __init__(
        self,
        gateway: LocalGateway,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        *,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """Listen.

        Args:
            gateway: The gateway to serve.
            token: What callers must present.
            host: The address to listen on.
            port: The port to listen on; 0: any.
            tls: Serves HTTPS if given.
            announce: Called with the URL before clients can connect.
        """
        self._gateway = gateway
        self._token = token
        self._tls = tls
        self._door: Door | None = None
        self._open = 0
        self._counting = threading.Lock()
        self._socket = socket.socket()
        try:
            if not 0 <= port <= _LAST_PORT:
                raise OSError(0, f"ports go from 0 to {_LAST_PORT}")
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self.port: int = self._socket.getsockname()[1]
            self.url = f"http{'s' if tls else ''}://{host}:{self.port}"
            gateway.address = (self.url, token)
            if announce is not None:
                announce(self.url)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise GatewayUnavailable(
                f"The gateway can't listen on {host}:{port}: {error.strerror}. Choose another "
                "address or port."
            ) from error
        self._closed = threading.Event()
        self._socket.setblocking(False)
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for end in (self._socket, self._wake):
            self._selector.register(end, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._accept, name="shoal-http", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            self._selector.select()
            try:
                connection, peer = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if not self._closed.wait(_PAUSE):
                    log.warning("could not accept a connection: %s", error)
                continue
            if not self._admit():
                self._reject(connection)
                continue
            threading.Thread(
                target=self._serve, args=(connection, peer), name="shoal-http", daemon=True
            ).start()

    def _admit(self) -> bool:
        limit = _CONNECTIONS + 2 * self._gateway.capacity
        with self._counting:
            if self._open >= limit:
                return False
            self._open += 1
            return True

    def _reject(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            if self._tls is None:
                connection.send(_FULL)

    def _serve(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        from shoal.platform.endpoints import Door, serve_connection

        try:
            if self._door is None:
                self._door = Door(self._gateway, self._token, self._tls)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serve_connection(connection, peer, self._door)
        finally:
            with self._counting:
                self._open -= 1

    def close(self) -> None:
        """Accept no more connections."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._waker.send(b"!")
        self._thread.join()
        self._selector.close()
        for end in (self._socket, self._wake, self._waker):
            end.close()


def server_tls(certificate: str, private_key: str) -> ssl.SSLContext:
    """A TLS context for a certificate and its key, each in a file; TLS 1.2 or newer."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # clients take unsolicited data on an idle connection for its end
    try:
        context.load_cert_chain(certificate, private_key, password=_no_password)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"The certificate {certificate} and the private key {private_key} can't be loaded: "
            f"{error}. Both must be files in PEM format, and the key must have no passphrase."
        ) from error
    return context


def _no_password() -> str:
    """Fail, where OpenSSL would ask on the terminal."""
    raise ValueError("the private key has a passphrase")
