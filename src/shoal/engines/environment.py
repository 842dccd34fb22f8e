"""What `shoal deploy` has made for an engine: noted here, and told by what was deployed.

1. A deployment notes what it was made from: the packages, the lock file, the command.
2. When a session opens, the environment's name is computed again, from the same packages and the
   same file as they are now. Packages that weren't deployed don't matter.
3. A deployment that was made elsewhere has no note here. Then only versions are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from shoal.engines.requirements import Requirements, locked_lines
from shoal.platform.environment import ENVIRONMENT_VARIABLE, Expected, environment_name
from shoal.platform.events import Deployment
from shoal.private import private_folder

FUNCTION_VARIABLE = "SHOAL_FUNCTION"
"""Has the name that a function was deployed with."""
_NOT_AGAIN = frozenset(("store", "dry_run", "no_check", "show_key", "show_store"))
"""Options that aren't part of the command that deploys again."""


class Note(Struct, frozen=True, kw_only=True):
    """What a deployment was made from."""

    command: str
    """Deploys it again."""
    packages: tuple[str, ...]
    locked: tuple[str, ...]
    file: str = ""
    """The lock file; empty: none."""
    digest: str = ""
    """That of the file's content."""

    @property
    def environment(self) -> str:
        """The name that the environment would have now."""
        locked = self.locked
        file = Path(self.file)
        if self.file and file.exists() and _digest(file) != self.digest:
            locked = locked_lines(file)
        return environment_name(Requirements(self.packages, locked).lines)


def note(
    folder: Path, target: str, name: str, made: Requirements, file: Path | None, command: str
) -> None:
    """Note what a deployment was made from.

    Args:
        folder: The data folder.
        target: What it was deployed to, as `shoal deploy` names it.
        name: What clients know it by.
        made: Its packages.
        file: The lock file among them.
        command: Deploys it again.
    """
    named = Note(
        command=command,
        packages=made.packages,
        locked=made.locked,
        file="" if file is None else str(file.absolute()),
        digest="" if file is None else _digest(file),
    )
    path = _path(folder, target, name)
    private_folder(path.parent)
    path.write_bytes(msgspec.json.encode(named))


def forget(folder: Path, target: str, name: str) -> None:
    """Delete the note of a deployment that is gone."""
    _path(folder, target, name).unlink(missing_ok=True)


def expected(folder: Path, target: str, name: str, otherwise: str) -> Expected:
    """The environment that this client expects of a deployment.

    Args:
        folder: The data folder.
        target: What it was deployed to, as `shoal deploy` names it.
        name: What clients know it by.
        otherwise: The command that deploys it, if it wasn't deployed from here.
    """
    path = _path(folder, target, name)
    if not path.exists():
        return Expected("", otherwise)
    noted = msgspec.json.decode(path.read_bytes(), type=Note)
    return Expected(noted.environment, noted.command)


def _path(folder: Path, target: str, name: str) -> Path:
    return folder / "environments" / f"{target}-{quote(name, safe='')}.json"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def command_of(
    target: str, args: argparse.Namespace, parser: argparse.ArgumentParser, *given: str
) -> str:
    """The command that deploys the same again; the store's URL isn't in it.

    Args:
        target: What is deployed to.
        args: The options of this time.
        parser: Knows the options and their defaults.
        given: The positional arguments.
    """
    words = ["shoal", "deploy", target, *given]
    for name, default in vars(parser.parse_args(given)).items():
        value = getattr(args, name, default)
        if name in _NOT_AGAIN or _absolute(value) == _absolute(default):
            continue
        option = f"--{name.replace('_', '-')}"
        values: Sequence[object] = value if isinstance(value, list) else [value]
        for each in values:
            words += [option] if each is True else [option, str(_absolute(each))]
    store = ' --store "$SHOAL_STORE"' if getattr(args, "store", None) else ""
    return shlex.join(words) + store


def _absolute(value: object) -> object:
    return value.absolute() if isinstance(value, Path) else value


def described(deployment: Deployment, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What this process is, without any secret."""
    return {
        "shoal": metadata.version("shoal"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "deployment": deployment.id,
        "environment": variables.get(ENVIRONMENT_VARIABLE, ""),
        "function": variables.get(FUNCTION_VARIABLE, ""),
    }
