"""A gateway's token, which gives access to everything, and tokens derived from it for one run.

1. A sandbox gets only the token of its run, so user code can't use the gateway for anything else.
   The gateway stores no list of these tokens: it recomputes them.
2. A gateway writes its token and its URL to a file for its user's clients. They send the token to
   no other URL.
3. A restarted gateway has a new token, and writes the file before it answers. A client whose token
   is refused reads the file again.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shoal.errors import SettingsError
from shoal.platform.invocation import valid_name
from shoal.private import read_private, write_private


@dataclass(frozen=True, slots=True)
class Scope:
    """What a token gives access to: a run and a session, or everything if they are None."""

    run: str | None = None
    session: str | None = None

    def covers(self, run: str, session: str | None = None) -> bool:
        """Whether it gives access to a run, and to a session's sandboxes if one is named."""
        return self.run in (None, run) and (session is None or self.session in (None, session))


class Token:
    """A client's token, which can be read again if it is refused."""

    def __init__(self, text: str, read: Callable[[], str] | None = None) -> None:
        """Make a token.

        Args:
            text: The token.
            read: Reads it again from its source; None: the user has set it, and it is fixed.
        """
        self.text = text
        self._read = read

    @property
    def fixed(self) -> bool:
        """Whether the user has set it, so that it never changes."""
        return self._read is None

    def renewed(self, refused: str) -> bool:
        """Read the token again; whether it differs from the refused one."""
        if self._read is not None:
            with contextlib.suppress(OSError, SettingsError):
                self.text = self._read()
        return self.text != refused


def new_token() -> str:
    """A new secret for a gateway."""
    return secrets.token_urlsafe(32)


def run_token(token: str, run: str, session: str) -> str:
    """The token that gives access to one run of a session."""
    mac = hmac.digest(token.encode(), f"{run} {session}".encode(), "sha256").hex()
    return f"{run}.{session}.{mac}"


def scope_of(header: str, token: str) -> Scope | None:
    """What an `Authorization` header gives access to; None: nothing. Compares in constant time."""
    given = header.encode()
    if hmac.compare_digest(given, f"Bearer {token}".encode()):
        return Scope()
    run, _, rest = header.removeprefix("Bearer ").partition(".")
    session = rest.partition(".")[0]
    if not valid_name(run) or not valid_name(session):
        return None
    expected = f"Bearer {run_token(token, run, session)}".encode()
    return Scope(run, session) if hmac.compare_digest(given, expected) else None


def write_token(path: Path, token: str, url: str) -> None:
    """Write a token and the URL it is for to a new file that only its owner can read."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    write_private(unfinished, [f"{token}\n{url}\n".encode()])
    unfinished.replace(path)


def read_token(path: Path) -> tuple[str, str]:
    """The token in a file, and the URL it is for; only the owner may be able to read the file."""
    found = read_private(path)
    if found is None:
        raise SettingsError(
            f"{path} holds a secret, and others can read it: end the gateway, "
            f"`chmod 600 {path}` and start it again, which makes a new token."
        )
    token, _, url = found.decode().strip().partition("\n")
    return token, url


def reached_as(asked: str, named: str) -> str | None:
    """The URL at which to reach a gateway if the requested URL is the gateway's; else None.

    Over HTTP, `localhost` becomes the address that the gateway listens on, because another process
    may listen on another address of that name. Over HTTPS, the certificate tells.

    Args:
        asked: The URL that a client is to use.
        named: The URL that the gateway announces, with an address or `0.0.0.0` as its host.
    """
    (scheme, host, port), own = address_of(asked), address_of(named)
    if (scheme, port) != (own[0], own[2]):
        return None
    names = {
        "0.0.0.0": ("127.0.0.1", "localhost", socket.gethostname().lower()),
        "127.0.0.1": ("127.0.0.1", "localhost"),
    }
    if host not in names.get(own[1], (own[1],)):
        return None
    return f"http://127.0.0.1:{port}" if (scheme, host) == ("http", "localhost") else asked


def address_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a gateway's URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(
            f"platform={url!r} is not a gateway's URL. Use http://HOST:PORT or https://HOST:PORT "
            "of a gateway (`shoal gateway` starts one), or None, the default: workers on this "
            "machine."
        )
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)
