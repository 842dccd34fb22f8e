"""Where modules are imported from, in this process and in the processes that work for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def import_path() -> tuple[str, ...]:
    """Where this process imports modules from, as absolute paths that hold in any folder."""
    return tuple(os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path)


def import_first_from(entries: Iterable[str]) -> None:
    """Look for modules in these places first, and then where this process does."""
    wanted = tuple(entries)
    sys.path[:] = [*wanted, *(entry for entry in sys.path if entry not in set(wanted))]


def import_also_from(entries: Iterable[str]) -> None:
    """Look for modules where this process does, and then in these places."""
    sys.path.extend([entry for entry in entries if entry not in sys.path])
