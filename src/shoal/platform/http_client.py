"""HTTP connections: open one, check its certificate, notice that the peer has closed it."""

from __future__ import annotations

import http.client
import select
import socket
import ssl

from shoal.errors import SettingsError

CONNECT_SECONDS = 5.0
RETRY_SECONDS = 1.0
"""How long to wait before a retry if the peer doesn't say."""


def connected(
    host: str, port: int, tls: ssl.SSLContext | None, reply_seconds: float | None
) -> http.client.HTTPConnection:
    """Open a connection; raises `OSError` if that fails.

    Args:
        host: The peer.
        port: Its port.
        tls: What certificates to trust; None: plain HTTP.
        reply_seconds: How long an answer may take; None: forever.
    """
    if tls is None:
        connection = http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=tls)
    try:
        connection.connect()
        connection.sock.settimeout(reply_seconds)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise
    return connection


def trusting(ca_file: str | None, ca_data: str | None = None) -> ssl.SSLContext:
    """A TLS context that verifies the peer's certificate.

    Args:
        ca_file: A file of authorities; default: those of the system.
        ca_data: The content of such a file.
    """
    try:
        return ssl.create_default_context(cafile=ca_file, cadata=ca_data)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"ca_file={ca_file!r} can't be loaded: {error}. It must be a file of certificates in "
            "PEM format."
        ) from error


def closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the peer has closed an idle connection."""
    return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])


def retry_after(response: http.client.HTTPResponse) -> float:
    """The seconds after which to try again."""
    wait = response.headers.get("Retry-After", "")
    return float(wait) if wait.isdecimal() else RETRY_SECONDS


def untrusted(url: str, peer: str, error: ssl.SSLCertVerificationError) -> str:
    """What to say about a certificate that isn't trusted."""
    return (
        f"The certificate of the {peer} at {url} isn't trusted: {error.verify_message}. Set "
        "ca_file to the authority that signed it, and use the host name in the certificate."
    )


def checked_token(token: str) -> str:
    """A token that can be sent in a header."""
    if not token.isascii() or not token.isprintable():
        raise SettingsError("A platform's token has printable ASCII characters only.")
    return token
