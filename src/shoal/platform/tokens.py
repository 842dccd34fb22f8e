"""A gateway's token, which opens everything, and tokens derived from it that open one run.

A sandbox gets only the token of the run it works for, so user code can't use the gateway for
anything else. The gateway keeps no list of them: it computes them again.
"""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import SettingsError
from shoal.platform.base import valid_run
from shoal.private import is_private, write_private


@dataclass(frozen=True, slots=True)
class Scope:
    """What a token opens: a run and a session, or everything if they are None."""

    run: str | None = None
    session: str | None = None

    def covers(self, run: str, session: str | None = None) -> bool:
        """Whether it opens a run, and a session's sandboxes if one is named."""
        return self.run in (None, run) and (session is None or self.session in (None, session))


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


def write_token(path: Path, token: str) -> None:
    """Keep a token in a new file that only its owner can read, whatever was there before."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    write_private(unfinished, [f"{token}\n".encode()])
    unfinished.replace(path)


def read_token(path: Path) -> str:
    """The token in a file, which nobody but its owner may be able to read."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        if not is_private(os.fstat(file.fileno())):
            raise SettingsError(
                f"{path} holds a secret, and others than its owner can read it: end the gateway, "
                f"`chmod 600 {path}` and start it again, so that there is a new token."
            )
        return file.read().strip()
