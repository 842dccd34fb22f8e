"""Folders and files that only their user can enter, read or write, whatever the umask.

1. A folder, and each missing parent, is made with mode 700, and a file with mode 600.
2. What an earlier version left open to others in the data folder is closed, if it belongs to this
   user. Links stay as they are, and so do open secrets, which must not be trusted any more.
3. A data folder that the user names may hold other things. Those, and the folders that hold them,
   stay as they are.
4. A folder of another user is refused: its owner could replace what is in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from shoal.errors import SettingsError

_OTHERS = 0o077
_KEY_NBYTES = 32
_RUN = r"(farm-)?\d{4}-\d{6}-[0-9a-f]{6}"
_OURS = re.compile(
    r"history(-\d+)?\.sqlite.* | (cache | deployment)\.key(\.[0-9a-f]+)?"
    r"| deployments(/[0-9a-f]+\.json)?"
    rf"| logs(/{_RUN}\.jsonl)? | (unfinished | kept)(/{_RUN}(\.\d+)?)?"
    r"| cache(/nbytes | /unfinished(/[0-9a-f]+)? | /entries(/[^/]+(/[0-9a-f]+)?)?)?"
    r"| store(/[a-z]+\.lock | /server\.log | /temp-.+ | /appendonlydir(/[^/]+)?)?",
    re.VERBOSE,
)
"""What Shoal writes in a data folder."""
_ANYTHING = re.compile(r"(?s:.*)")
_SECRET = re.compile(r"(cache|deployment)\.key.*|(unfinished|kept|deployments)/.+")
"""Files that were always closed. Readers refuse an open one, which others may have read or written;
closing it would hide that."""
_MANY = "cache"
"""A folder with too many files to check each time; its entries were never open."""
_seen: set[tuple[str, int]] = set()
"""Data folders that this process has checked, with their modes."""


def private_folder(folder: Path) -> Path:
    """A folder of this user: made if it is missing, refused if another user owns it."""
    try:
        _make(folder)
    except FileNotFoundError:
        private_folder(folder.parent)
        with contextlib.suppress(FileExistsError):  # another process was faster
            _make(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
        if folder.stat().st_uid != os.getuid():
            raise _foreign(folder) from None
    return folder


def guarded_folder(folder: Path) -> Path:
    """Shoal's folder in one that all users share: made if missing, closed if open to others."""
    with contextlib.suppress(FileExistsError):
        _make(folder)
    found = folder.lstat()
    if found.st_uid != os.getuid() or stat.S_ISLNK(found.st_mode):
        raise _foreign(folder)
    _close(folder, found.st_mode)
    return folder


def data_folder(folder: Path, *, named: bool) -> Path:
    """The data folder, after closing what Shoal has made in it to others.

    Args:
        folder: Its path; it needn't exist yet, and is made by the first write.
        named: Whether the user chose it, so that it may hold other things.
    """
    try:
        found = folder.stat()
    except OSError:
        return folder
    if found.st_uid != os.getuid():
        raise SettingsError(
            f"The data folder {folder} belongs to another user, who could read and replace what "
            "is in it: set `folder` to one of your own."
        )
    if stat.S_ISDIR(found.st_mode) and (str(folder), found.st_mode) not in _seen:
        try:
            alone = _close_within(folder, "", _OURS if named else _ANYTHING)
            if (alone or not named) and not found.st_mode & stat.S_ISVTX:  # such as /tmp
                _close(folder, found.st_mode)
        except OSError as error:
            raise SettingsError(
                f"The data folder {folder} can't be closed to other users: {error}. "
                "Set `folder` to another one."
            ) from error
        _seen.add((str(folder), folder.stat().st_mode))
    return folder


def open_private(path: str | Path, flags: int) -> int:
    """Open a file that only its owner can read and write; fits the `opener` of `open()`."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    try:
        if flags & os.O_CREAT and stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_private(path: Path, content: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write a new file that only its owner can read."""
    with open(path, "xb", opener=open_private) as file:
        file.writelines(content)


def private_file(path: Path) -> Path:
    """A file of this user: made empty if it is missing, refused if another user owns it.

    An existing file isn't opened: closing it would end SQLite's locks on it.
    """
    try:
        write_private(path, [])
    except FileExistsError:
        if path.lstat().st_uid != os.getuid():
            raise _foreign(path) from None
    return path


def read_private(path: Path) -> bytes | None:
    """A file's content; None if another user owns it, or can read or write it."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read() if is_private(os.fstat(file.fileno())) else None


def private_key(path: Path) -> bytes:
    """A key of this user, from a file; made if it is missing or others can read it."""
    for _ in range(3):  # another process may make one at the same time
        with contextlib.suppress(FileNotFoundError):
            key = read_private(path)
            if key is not None and len(key) == _KEY_NBYTES:
                return key
            path.unlink(missing_ok=True)
        private_folder(path.parent)
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            write_private(fresh, [secrets.token_bytes(_KEY_NBYTES)])
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    raise OSError(f"{path} changes all the time")


def is_private(found: os.stat_result) -> bool:
    """Whether this user owns a file, and no other user can read or write it."""
    return found.st_uid == os.getuid() and not found.st_mode & _OTHERS


def _make(folder: Path) -> None:
    folder.mkdir(0o700)
    folder.chmod(0o700)


def _foreign(path: Path) -> PermissionError:
    what = "is a link" if path.is_symlink() else "belongs to another user"
    return PermissionError(errno.EPERM, f"It {what}", str(path))


def _close_within(folder: Path, within: str, ours: re.Pattern[str]) -> bool:
    """Close what Shoal has made in a folder; returns whether it holds nothing else."""
    alone = True
    with os.scandir(folder) as entries:
        for entry in entries:
            name = within + entry.name
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                if not ours.fullmatch(name) or not _closed(entry, name, ours):
                    alone = False
    return alone


def _closed(entry: os.DirEntry[str], name: str, ours: re.Pattern[str]) -> bool:
    """Close an entry and what is in it; False if Shoal hasn't made all of that."""
    found = entry.stat(follow_symlinks=False)
    if found.st_uid != os.getuid() or stat.S_ISLNK(found.st_mode):
        return False
    passed_over = name == _MANY and is_private(found)
    if stat.S_ISDIR(found.st_mode) and not passed_over:
        alone = _close_within(Path(entry.path), f"{name}/", ours)
        if not alone:
            return False
    if not _SECRET.fullmatch(name):
        _close(Path(entry.path), found.st_mode)
    return True


def _close(path: Path, mode: int) -> None:
    if not mode & _OTHERS:
        return
    try:
        path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
    except OSError as error:
        if error.errno != errno.EROFS:  # no user writes to a read-only disk
            raise
