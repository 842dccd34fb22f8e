"""`GatewayServer`: the door to a gateway: accepts connections, each served by a thread."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

from shoal.errors import GatewayUnavailable
from shoal.platform.gateway import LocalGateway

log = logging.getLogger(__name__)

_BACKLOG = 256
_LAST_PORT = 65535
_PAUSE = 0.1
"""Seconds until the next try after one that failed, for want of descriptors for example."""


class GatewayServer:
    """Serves a gateway over HTTP.

    Nothing of HTTP is imported before the first connection: most embedded gateways never get one.
    """

    def __init__(
        self, gateway: LocalGateway, token: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._gateway = gateway
        self._token = token
        try:
            if not 0 <= port <= _LAST_PORT:
                raise OSError(0, f"ports go from 0 to {_LAST_PORT}")
            self._socket = socket.create_server((host, port), backlog=_BACKLOG)
        except OSError as error:
            raise GatewayUnavailable(
                f"The gateway can't listen on {host}:{port}: {error.strerror}. Choose another "
                "address or port."
            ) from error
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        gateway.address = (self.url, token)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="shoal-http", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, peer = self._socket.accept()
            except OSError as error:
                if not self._closed.wait(_PAUSE):
                    log.warning("a connection could not be accepted: %s", error)
                continue
            from shoal.platform.handler import serve_connection

            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(
                target=serve_connection,
                args=(connection, peer, self._gateway, self._token),
                name="shoal-http",
                daemon=True,
            ).start()

    def close(self) -> None:
        """Accept no more."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
