"""The next run reuses the folder of an ended run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.client.shared_folders import SharedFolders
from shoal.storage import shared_memory
from shoal.storage.shared_memory import SharedFolder, probed, sees_folders
from shoal.types import RunId


class FakePlatform:
    """One whose workers see shared memory in a folder that a function makes of its name."""

    def __init__(self, seen: Callable[[str], str | None], *, folders: bool = True) -> None:
        self._seen = seen
        self._folders = folders
        self.asked: list[str] = []

    def probed(self, nonce: str) -> str | None:
        self.asked.append(nonce)
        return self._seen(nonce)

    def sees_folders(self, nonce: str) -> bool:
        return self._folders and sees_folders(nonce)


def folders_of(seen: Callable[[str], str | None]) -> SharedFolders:
    platform: Any = FakePlatform(seen)
    return SharedFolders(platform)


@pytest.fixture
def folders() -> Iterator[SharedFolders]:
    folders = folders_of(probed)
    yield folders
    folders.delete_spare()


def created(folders: SharedFolders, run: str) -> SharedFolder:
    folder = folders.create(RunId(run))
    assert folder is not None
    return folder


def test_memory_is_shared_with_workers_that_see_it_only() -> None:
    assert folders_of(probed).usable
    assert not folders_of(lambda nonce: None).usable


def test_memory_that_workers_see_elsewhere_is_not_shared() -> None:
    assert not folders_of(lambda nonce: f"/host{probed(nonce)}").usable


def test_a_container_with_the_client_s_shared_memory_has_files_of_its_own() -> None:
    """With `--ipc host`, for example; its workers need the user's code."""
    platform: Any = FakePlatform(probed, folders=False)
    folders = SharedFolders(platform)
    assert folders.usable
    assert not folders.code_visible
    assert folders_of(probed).code_visible
    assert not folders_of(lambda nonce: None).code_visible


def test_the_platform_is_asked_once_and_the_probe_leaves_nothing() -> None:
    platform: Any = FakePlatform(probed)
    folders = SharedFolders(platform)
    assert [folders.usable, folders.usable] == [True, True]
    (nonce,) = platform.asked
    assert probed(nonce) is None


def test_nobody_is_asked_where_there_is_no_shared_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(shared_memory, "shared_folder", lambda: tmp_path / "file" / "shared")
    platform: Any = FakePlatform(probed)
    assert not SharedFolders(platform).usable
    assert not platform.asked


def test_the_next_run_gets_a_retired_folder_empty(folders: SharedFolders) -> None:
    first = created(folders, "test-folders-1")
    assert first.write("small", [b"x"])
    old = Path(first.path)
    folders.retire(first)
    second = created(folders, "test-folders-2")
    assert second is first
    assert Path(second.path).name == "test-folders-2"
    assert not old.exists()
    assert second.read("small") is None
    second.delete()


def test_at_most_one_folder_is_kept(folders: SharedFolders) -> None:
    first, second = created(folders, "test-folders-3"), created(folders, "test-folders-4")
    assert first is not second
    folders.retire(first)
    folders.retire(second)
    assert not Path(first.path).exists()
    assert Path(second.path).exists()
    folders.delete_spare()
    assert not Path(second.path).exists()
