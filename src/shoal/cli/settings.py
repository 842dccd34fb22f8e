"""`shoal settings`: show each setting, its value and its origin. Also adds and parses `--set`."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import Any

from shoal.cli.terminal import print_table
from shoal.errors import SettingsError
from shoal.settings import NAMES, SECRET, origins, resolve


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Show the settings in force in this folder."""
    arguments = parse_assignments(args.assignments)
    settings, where = resolve(arguments), origins(arguments)
    rows = ([name, _shown(name, getattr(settings, name)), _from(where[name])] for name in NAMES)
    print_table(("setting", "value", "from"), rows, words=("value",))


def _from(origin: str) -> str:
    return "--set" if origin == "the call" else origin


def _shown(name: str, value: Any) -> str:
    """A value as text, without secrets: a token, or a URL with a password in it."""
    if name in SECRET and value is not None and (name == "token" or "@" in value):
        return "(hidden)"
    if name == "workers" and value is None:
        return "as the platform offers"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def configure_set(parser: argparse.ArgumentParser, what: str = "a setting") -> None:
    """Add the option `--set` to a command."""
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"{what}, such as workers=4; may be repeated",
    )


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse the values of `--set`: numbers, true, false and other literals, else strings."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not name or not equals:
            raise SettingsError(f"--set {assignment!r}: must be NAME=VALUE, such as workers=4.")
        found[name.strip().replace("-", "_")] = _value(text.strip())
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
