"""Run the programs of an engine, and turn what goes wrong into errors that say what to do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.errors import PlatformError, SettingsError

_SECONDS = 120.0
"""How long a program may take: an image may have to be pulled."""


def output_of(
    command: Sequence[str],
    *,
    stdin: str = "",
    seconds: float = _SECONDS,
    cure: str = "",
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """What a program prints.

    Args:
        command: The program and its arguments.
        stdin: What it reads.
        seconds: How long it may take.
        cure: What to do if the program isn't installed.
        folder: Its working folder; None: that of this process.
        variables: Variables for it, beside those of this process.
    """
    shown = " ".join(command[:2])
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=folder,
            env=os.environ | (variables or {}),
        )
    except FileNotFoundError as error:
        raise SettingsError(
            f"The program {command[0]!r} isn't installed here, or not on the PATH. {cure}".strip()
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PlatformError(f"`{shown}` didn't answer within {seconds:g} s.") from error
    if done.returncode:
        said = last_lines(done.stderr) or f"exit code {done.returncode}"
        raise PlatformError(f"`{shown}` failed: {said}")
    return done.stdout


def last_lines(text: str, most: int = 3) -> str:
    """The end of what a program printed, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-most:])[-1000:]
