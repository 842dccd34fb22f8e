"""A gateway's token, which opens everything, and tokens derived from it that open one run.

1. A sandbox gets only the token of the run it works for, so user code can't use the gateway for
   anything else. The gateway keeps no list of them: it computes them again.
2. A gateway leaves its token in a file for its user's clients, with the URL that it belongs to,
   and clients send it nowhere else.
3. A gateway that is started again has a new token, which is in the file before it answers: a
   client that is refused reads the file again.
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
from shoal.platform.base import valid_run
from shoal.private import read_private, write_private


@dataclass(frozen=True, slots=True)
class Scope:
    """What a token opens: a run and a session, or everything if they are None."""

    run: str | None = None
    session: str | None = None

    def covers(self, run: str, session: str | None = None) -> bool:
        """Whether it opens a run, and a session's sandboxes if one is named."""
        return self.run in (None, run) and (session is None or self.session in (None, session))


class Token:
    """A token, as somebody has it who may be refused with it."""

    def __init__(self, text: str, read: Callable[[], str] | None = None) -> None:
        """Have a token.

        Args:
            text: The token.
            read: Reads it again where it came from; None: it was set, and stays as it is.
        """
        self.text = text
        self._read = read

    @property
    def fixed(self) -> bool:
        """Whether it was set, and stays as it is."""
        return self._read is None

    def renewed(self, refused: str) -> bool:
        """Whether there is another one by now than was refused."""
        if self._read is not None:
            with contextlib.suppress(OSError, SettingsError):
                self.text = self._read()
        return self.text != refused


def new_token() -> str:
    """A secret for a gateway's address."""
    return secrets.token_urlsafe(32)


def run_token(token: str, run: str, session: str) -> str:
    """The token that opens only a run of a session."""
    mac = hmac.digest(token.encode(), f"{run} {session}".encode(), "sha256").hex()
    return f"{run}.{session}.{mac}"


def scope_of(header: str, token: str) -> Scope | None:
    """What an `Authorization` header opens, compared in constant time; None: nothing."""
    given = header.encode()
    if hmac.compare_digest(given, f"Bearer {token}".encode()):
        return Scope()
    run, _, rest = header.removeprefix("Bearer ").partition(".")
    session = rest.partition(".")[0]
    if not valid_run(run) or not valid_run(session):
        return None
    expected = f"Bearer {run_token(token, run, session)}".encode()
    return Scope(run, session) if hmac.compare_digest(given, expected) else None


def write_token(path: Path, token: str, url: str) -> None:
    """Keep a token and whose it is in a new file that only its owner can read."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    write_private(unfinished, [f"{token}\n{url}\n".encode()])
    unfinished.replace(path)


def read_token(path: Path) -> tuple[str, str]:
    """The token in a file, which only its owner may be able to read, and the URL it is for."""
    found = read_private(path)
    if found is None:
        raise SettingsError(
            f"{path} holds a secret, and others than its owner can read it: end the gateway, "
            f"`chmod 600 {path}` and start it again, so that there is a new token."
        )
    token, _, url = found.decode().strip().partition("\n")
    return token, url


def reached_as(asked: str, named: str) -> str | None:
    """The URL at which to reach a gateway, if the URL that is asked for is its own; else None.

    Over HTTP a name such as `localhost` becomes the address that the gateway listens on: somebody
    else may listen on another one that the name stands for. Over HTTPS the certificate tells.

    Args:
        asked: What a client is told to use.
        named: What the gateway says that it listens on, with an address or `0.0.0.0` as the host.
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
            f"platform={url!r} is not a gateway's URL. There are http://HOST:PORT and "
            "https://HOST:PORT of a gateway (`shoal gateway` starts one), and None, the default: "
            "workers on this machine."
        )
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)
