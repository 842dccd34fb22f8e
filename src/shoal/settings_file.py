"""`shoal.toml`: reads it, and refuses one that another user could have written.

The file says where code and data go, so its writer controls both.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

from shoal.errors import SettingsError

FILE = "shoal.toml"


def read_settings(path: Path, names: Collection[str]) -> dict[str, Any]:
    """What a file sets, at its top level or in a table `[shoal]`."""
    import tomllib

    try:
        with path.open(encoding="utf-8") as file:
            _check_trusted(path, os.fstat(file.fileno()), path.parent.stat())
            found = tomllib.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} can't be read: {error}.") from error
    return _without_table(found, names)


def _without_table(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    table = found.pop("shoal", {})
    for name, value in found.items():
        if isinstance(value, dict) and name not in names:
            raise SettingsError(
                f"{FILE} has a table [{name}]: put settings at the top level, or in [shoal]."
            )
    if not isinstance(table, dict):
        raise SettingsError(f"{FILE} sets shoal to {table!r}; it must be a table: [shoal].")
    for name in table.keys() & found.keys():
        raise SettingsError(f"{FILE} sets {name} twice: at the top level, and in [shoal].")
    return {**found, **table}


def _check_trusted(path: Path, file: os.stat_result, folder: os.stat_result) -> None:
    if file.st_uid not in (os.getuid(), 0):
        raise SettingsError(
            f"{path} isn't used: it belongs to another user (number {file.st_uid}), who could "
            "redirect your code and data. If you trust what is in it, make it yours: "
            f"`cp {FILE} {FILE}.mine && mv -f {FILE}.mine {FILE}`; otherwise use another folder."
        )
    if _others_write(file):
        raise SettingsError(
            f"{path} isn't used: others can write to it, and so redirect your code and data. "
            f"Check what is in it, then `chmod go-w {shlex.quote(str(path))}`."
        )
    if _others_write(folder) and not folder.st_mode & stat.S_ISVTX:
        raise SettingsError(
            f"{path} isn't used: others can write to its folder, and so replace the file. "
            f"`chmod go-w {shlex.quote(str(path.parent))}`, or use another folder."
        )


def _others_write(found: os.stat_result) -> bool:
    """Whether users other than the owner and root can write to a file or folder."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _alone_in(found.st_gid)


def _alone_in(group: int) -> bool:
    """Whether a group has no member but the user, as many systems create one per user."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = user.pw_uid != 0 and user.pw_gid == group and found.gr_name == user.pw_name
    return own and set(found.gr_mem) <= {user.pw_name}
