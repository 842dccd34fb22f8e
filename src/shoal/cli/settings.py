"""`--set NAME=VALUE`: settings, and parameters of a workflow's function, from the command line."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import Any

from shoal.errors import SettingsError


def configure_set(parser: argparse.ArgumentParser, what: str = "a setting") -> None:
    """Let a command take `--set`."""
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"{what}, such as workers=4; may be repeated",
    )


def assigned(assignments: Sequence[str]) -> dict[str, Any]:
    """The values that `--set` gave: numbers, true, false and other literals, else text."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not name or not equals:
            raise SettingsError(f"--set {assignment!r}: write NAME=VALUE, such as workers=4.")
        found[name.strip().replace("-", "_")] = _value(text.strip())
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
