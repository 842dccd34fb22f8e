"""Folders and files that only their user can enter, read or write, whatever the umask is.

1. A folder is made with mode 700, and so are its missing parents; a file with mode 600.
2. What an earlier version left open in the data folder is closed: others lose their permissions
   for whatever belongs to this user. Links are left alone, and so are open secrets, which nobody
   may trust any more.
3. A data folder that the user names may hold other things. Those, and the folders that hold them,
   stay as they are.
4. A folder of another user is refused: its owner could replace what is in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from shoal.errors import SettingsError

_OTHERS = 0o077
_RUN = r"(farm-)?\d{4}-\d{6}-[0-9a-f]{6}"
_OURS = re.compile(
    r"history(-\d+)?\.sqlite.* | cache\.key(\.[0-9a-f]+)?"
    rf"| logs(/{_RUN}\.jsonl)? | (unfinished | kept)(/{_RUN}(\.\d+)?)?"
    r"| cache(/nbytes | /unfinished(/[0-9a-f]+)? | /entries(/[^/]+(/[0-9a-f]+)?)?)?"
    r"| store(/[a-z]+\.lock | /server\.log | /temp-.+ | /appendonlydir(/[^/]+)?)?",
    re.VERBOSE,
)
"""What Shoal writes in a data folder."""
_ANYTHING = re.compile(r"(?s:.*)")
_SECRET = re.compile(r"cache\.key.*|(unfinished|kept)/.+")
"""Files that were always closed, and whose readers refuse an open one: it may be known to others,
or written by them. Closing it would hide that."""
_MANY = "cache"
"""Has too many files to look at each time; its entries were never open."""
_seen: set[tuple[str, int]] = set()
"""Data folders that this process has looked through, with their modes."""


def private_folder(folder: Path) -> Path:
    """A folder of this user's: made if it isn't there, refused if it is another user's."""
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
    """Shoal's own folder in a place where everybody may make one: made, or closed if it is open."""
    with contextlib.suppress(FileExistsError):
        _make(folder)
    found = folder.lstat()
    if found.st_uid != os.getuid() or stat.S_ISLNK(found.st_mode):
        raise _foreign(folder)
    _close(folder, found.st_mode)
    return folder


def data_folder(folder: Path, *, named: bool) -> Path:
    """A data folder in which what Shoal has made is closed to others.

    Args:
        folder: It needn't be there yet; who writes to it makes it.
        named: The user chose it, so it may hold other things.
    """
    try:
        found = folder.stat()
    except OSError:
        return folder
    if found.st_uid != os.getuid():
        raise SettingsError(
            f"The data folder {folder} belongs to another user, who could read and replace what "
            "is kept there: set `folder` to one of your own."
        )
    if stat.S_ISDIR(found.st_mode) and (str(folder), found.st_mode) not in _seen:
        try:
            alone = _close_within(folder, "", _OURS if named else _ANYTHING)
            if (alone or not named) and not found.st_mode & stat.S_ISVTX:  # all share /tmp
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
    """A file of this user's: made empty if it isn't there, refused if it is another user's.

    One that is there is neither opened nor closed, which would end locks of SQLite on it.
    """
    try:
        write_private(path, [])
    except FileExistsError:
        if path.lstat().st_uid != os.getuid():
            raise _foreign(path) from None
    return path


def read_private(path: Path) -> bytes | None:
    """What is in a file; None if it is another user's, or others can read or write it."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read() if is_private(os.fstat(file.fileno())) else None


def is_private(found: os.stat_result) -> bool:
    """Whether a file is this user's, and nobody else can read or write it."""
    return found.st_uid == os.getuid() and not found.st_mode & _OTHERS


def _make(folder: Path) -> None:
    folder.mkdir(0o700)
    folder.chmod(0o700)


def _foreign(path: Path) -> PermissionError:
    what = "is a link" if path.is_symlink() else "belongs to another user"
    return PermissionError(errno.EPERM, f"It {what}", str(path))


def _close_within(folder: Path, within: str, ours: re.Pattern[str]) -> bool:
    """Close what Shoal has made in a folder; whether nothing else is in it."""
    alone = True
    with os.scandir(folder) as entries:
        for entry in entries:
            name = within + entry.name
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                if not ours.fullmatch(name) or not _closed(entry, name, ours):
                    alone = False
    return alone


def _closed(entry: os.DirEntry[str], name: str, ours: re.Pattern[str]) -> bool:
    """Close what Shoal has made; False: it has not, or not all that is in it."""
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
        if error.errno != errno.EROFS:  # nothing is written there either
            raise
