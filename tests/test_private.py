"""Only its user can enter the data folder and read its files, with any umask."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import shoal
from observing import eventually
from shoal.client.resume import read
from shoal.errors import HistoryError, SettingsError, UsageError
from shoal.metadata.sqlite import SqliteHistory
from shoal.platform.logs import RunLogs
from shoal.private import (
    data_folder,
    guarded_folder,
    open_private,
    private_folder,
    read_private,
    write_private,
)
from shoal.session import Session
from shoal.settings import Settings
from shoal.storage.cache import cache_key
from shoal.storage.cache_folder import FolderCache
from shoal.types import RunId

RUN = RunId("1115-160112-98ecce")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of a folder and everything in it."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): oct(mode(path)) for path in found}


def closed(folder: Path) -> dict[str, str]:
    """Return the modes that they should have."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): "0o700" if path.is_dir() else "0o600" for path in found}


def open_all(folder: Path) -> None:
    """Make a folder readable, as an earlier version, a umask or a restored backup would."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def some_log(folder: Path) -> None:
    RunLogs(folder / "logs").append(RUN, "w0", "stdout", "text")


def some_history(folder: Path) -> None:
    with closing(SqliteHistory(folder)) as history:
        assert history.runs(most=1) == []
        assert len(list(folder.iterdir())) == 3  # with -wal and -shm
        assert modes(folder) == closed(folder)


def some_entry(folder: Path) -> None:
    FolderCache(folder / "cache", 1000).keep("task/0a", [b"entry"])


def some_key(folder: Path) -> None:
    cache_key(folder)


@pytest.mark.parametrize("write", [some_log, some_history, some_entry, some_key])
def test_written_files_are_private_with_any_umask(
    tmp_path: Path, umask: int, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "missing" / "data")
    assert modes(tmp_path / "missing") == closed(tmp_path / "missing")
    assert len(modes(tmp_path / "missing")) > 2


def test_a_readable_file_becomes_private_when_written_to(tmp_path: Path) -> None:
    some_log(tmp_path)
    open_all(tmp_path)
    some_log(tmp_path)
    assert mode(tmp_path / "logs" / f"{RUN}.jsonl") == 0o600


def test_a_symlink_instead_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    (tmp_path / "file").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        open_private(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "file", [b"secret"])
    assert (tmp_path / "mine").read_text() == ""


@pytest.mark.parametrize("named", [False, True])
def test_files_that_an_earlier_version_left_readable_become_private(
    tmp_path: Path, named: bool
) -> None:
    folder = tmp_path / "data"
    some_log(folder)
    some_entry(folder)
    for name in ("history-2.sqlite", "history-2.sqlite-wal", "history-2.sqlite.damaged-1"):
        write_private(folder / name, [])
    private_folder(folder / "store" / "appendonlydir")
    for name in ("server.log", "file.lock", "appendonlydir/appendonly.aof.1.incr.aof"):
        write_private(folder / "store" / name, [])
    private_folder(folder / "unfinished")
    open_all(folder)
    assert data_folder(folder, named=named) == folder
    assert modes(folder) == closed(folder)


def test_everything_in_the_default_folder_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_text("")
    open_all(tmp_path)
    data_folder(tmp_path, named=False)
    assert modes(tmp_path) == closed(tmp_path)


def test_other_files_in_a_folder_that_the_user_names_stay_unchanged(tmp_path: Path) -> None:
    """These include the user's own log folder, in which only Shoal's logs become private."""
    some_log(tmp_path)
    (tmp_path / "logs" / "nginx.jsonl").write_text("")
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "index.html").write_text("")
    some_entry(tmp_path)
    (tmp_path / "store").symlink_to(tmp_path / "public")
    open_all(tmp_path)
    data_folder(tmp_path, named=True)
    found = modes(tmp_path)
    assert found["."] == found["logs"] == found["public"] == "0o755"
    assert found["logs/nginx.jsonl"] == found["public/index.html"] == "0o644"
    assert found[f"logs/{RUN}.jsonl"] == found["cache/entries/task/0a"] == "0o600"
    assert found["cache"] == "0o700"


def test_a_folder_shared_by_all_users_is_left_unchanged(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    data_folder(tmp_path, named=True)
    assert mode(tmp_path) == 0o1777


def test_only_permissions_of_other_users_are_removed(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    data_folder(tmp_path, named=True)
    assert mode(tmp_path) == 0o2700


def test_a_key_that_was_readable_is_replaced(tmp_path: Path) -> None:
    known = cache_key(tmp_path)
    open_all(tmp_path)
    assert cache_key(data_folder(tmp_path, named=False)) != known
    assert modes(tmp_path) == closed(tmp_path)


def test_an_archive_that_others_could_have_written_stays_rejected(tmp_path: Path) -> None:
    write_private(private_folder(tmp_path / "unfinished") / RUN, [b"a pickle"])
    open_all(tmp_path)
    with pytest.raises(UsageError, match="could have written it"):
        read(data_folder(tmp_path, named=False), RUN)


@pytest.mark.parametrize("use", [private_folder, guarded_folder])
def test_a_folder_of_another_user_is_rejected(
    tmp_path: Path, use: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(PermissionError, match="belongs to another user"):
        use(tmp_path)
    with pytest.raises(SettingsError, match=r"belongs to another user.*set `folder`"):
        Settings(folder=str(tmp_path)).data_folder()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_history_of_another_user_is_rejected_and_not_written_to(tmp_path: Path) -> None:
    """Another user who may write to that folder could put one there, and read it."""
    theirs = tmp_path / "history-2.sqlite"
    theirs.touch(mode=0o666)
    os.chown(theirs, 12345, -1)
    with pytest.raises(HistoryError, match="belongs to another user"):
        SqliteHistory(tmp_path)
    assert theirs.read_bytes() == b""


def test_a_secret_is_not_read_through_a_symlink(tmp_path: Path) -> None:
    write_private(tmp_path / "mine", [b"secret"])
    assert read_private(tmp_path / "mine") == b"secret"
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        read_private(tmp_path / "link")


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "file")
    assert data_folder(tmp_path / "file", named=True) == tmp_path / "file"


@pytest.mark.real
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_can_access_nothing_of_an_active_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @shoal.task
    def large() -> bytearray:
        print("printed")
        return bytearray(2**20)

    @shoal.task
    def waiting(data: bytearray, told: Path) -> int:
        while not told.exists():
            time.sleep(0.01)
        return len(data)

    base = Path(tempfile.mkdtemp())
    before = os.umask(0o000)
    try:
        base.chmod(0o755)
        for variable, name in (("XDG_DATA_HOME", "data"), ("XDG_RUNTIME_DIR", "run")):
            (base / name).mkdir(mode=0o755)
            monkeypatch.setenv(variable, str(base / name))
        with Session(workers=1, durable=True) as session:
            run = session.submit(waiting(large(), base / "told"))
            assert eventually(lambda: run.logs())
            shared = Path(f"/dev/shm/shoal-{os.getuid()}")
            looking = ["find", str(base), str(shared), "-readable", "-o", "-executable"]
            found = subprocess.run(
                looking, user=65534, group=65534, extra_groups=(), capture_output=True, text=True
            )
            (base / "told").touch()
            assert run.result() == 2**20
        assert len(list(base.rglob("*"))) > 10
        assert set(found.stdout.split()) == {str(base), str(base / "data"), str(base / "run")}
    finally:
        os.umask(before)
        shutil.rmtree(base)


@pytest.mark.real
def test_everything_that_runs_leave_in_the_data_folder_is_private(tmp_path: Path) -> None:
    @shoal.task(cache=True)
    def printed(number: int) -> int:
        print("number", number)
        return number

    folder = tmp_path / "data"
    before = os.umask(0o000)
    try:
        for number in range(2):
            with Session(workers=1, folder=str(folder), durable=True) as session:
                assert session.compute(printed(number)) == [number]
                assert modes(folder) == closed(folder)
            written = modes(folder)
            assert {"logs", "cache", "store", "cache.key", "history-2.sqlite"} < set(written)
            (folder / "cache.key").unlink()
            open_all(folder)
    finally:
        os.umask(before)
