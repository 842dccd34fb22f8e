"""Large outputs in shared memory: complete or absent, privately writable, deleted with the run."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.storage import shared_memory
from shoal.storage.codec import decode, encode
from shoal.storage.shared_memory import SharedFolder, probe, sees_folders, worthwhile
from shoal.types import SHARED_NBYTES, RunId

KEY = bytes(32)
CONTENT = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the folders of this user's runs."""
    folder = tmp_path / "shared"
    monkeypatch.setattr(shared_memory, "shared_folder", lambda: folder)
    return folder


def created(run: str) -> SharedFolder:
    folder = SharedFolder.create(RunId(run))
    assert folder is not None
    return folder


@pytest.fixture
def folder(root: Path) -> Iterator[SharedFolder]:
    folder = created("run-1")
    yield folder
    folder.delete()


def content(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def test_a_written_output_can_be_read_by_others(folder: SharedFolder) -> None:
    assert folder.write("a#1", [b"head", b"", memoryview(CONTENT), bytearray(b"tail")])
    assert folder.write("b#1", [b"other"])
    other = SharedFolder(folder.path)
    assert content(other.read("a#1")) == b"head" + CONTENT + b"tail"
    assert content(other.read("b#1")) == b"other"


def test_output_of_thousands_of_buffers_is_written_whole(folder: SharedFolder) -> None:
    pieces = [b"%d" % number for number in range(3000)]
    assert folder.write("a", list(pieces))
    assert content(folder.read("a")) == b"".join(pieces)


def test_missing_output_is_none(folder: SharedFolder) -> None:
    assert folder.read("a") is None
    folder.delete()
    assert folder.read("a") is None


@pytest.mark.parametrize("name", ["../../escape", "a/b", ".lock", "ü#1", "x" * 1000, "\n"])
def test_the_name_may_be_any_string(folder: SharedFolder, root: Path, name: str) -> None:
    assert folder.write(name, [b"x"])
    assert content(folder.read(name)) == b"x"
    assert {path.name for path in root.parent.iterdir()} == {root.name}
    assert len(list(Path(folder.path).iterdir())) == 2


def test_writes_to_a_mapped_output_stay_private(folder: SharedFolder) -> None:
    folder.write("a", [CONTENT])
    one, other = folder.read("a"), folder.read("a")
    assert one is not None
    one[:5] = b"mine!"
    assert content(one) == b"mine!" + CONTENT[5:]
    assert content(other) == CONTENT
    assert content(folder.read("a")) == CONTENT


def test_a_mapped_array_is_writable_privately(folder: SharedFolder) -> None:
    array = np.arange(100_000)
    folder.write("a", encode(array, KEY, "name"))
    view = folder.read("a")
    assert view is not None
    one = decode(view, KEY, "name")
    assert np.shares_memory(one, np.frombuffer(view, "uint8"))
    one[:] = 0
    again = folder.read("a")
    assert again is not None
    assert np.array_equal(decode(again, KEY, "name"), array)


def test_an_output_written_again_replaces_the_first(folder: SharedFolder) -> None:
    folder.write("a", [b"first"])
    first = folder.read("a")
    folder.write("a", [b"second, longer"])
    assert content(folder.read("a")) == b"second, longer"
    assert content(first) == b"first"


def test_an_output_is_written_only_if_absent_on_request(folder: SharedFolder) -> None:
    assert folder.write("task", [b"first"], over=False)
    assert not folder.write("task", [b"second"], over=False)
    assert content(folder.read("task")) == b"first"
    assert len(os.listdir(folder.path)) == 2  # with the lock


def test_output_is_not_visible_before_it_is_complete(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is written in small pieces, and read between them."""
    writev = os.writev
    seen: list[memoryview | None] = []

    def little(descriptor: int, buffers: Any) -> int:
        seen.append(SharedFolder(folder.path).read("a"))
        return writev(descriptor, [memoryview(buffers[0])[:10_000]])

    monkeypatch.setattr(os, "writev", little)
    assert folder.write("a", [b"head", CONTENT, CONTENT, b"tail"])
    assert len(seen) > 50
    assert seen == [None] * len(seen)
    assert content(folder.read("a")) == b"head" + CONTENT + CONTENT + b"tail"


@pytest.mark.parametrize("written_before", [0, 2])
def test_a_lack_of_room_is_reported_and_leaves_nothing(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch, written_before: int
) -> None:
    writev = os.writev
    calls: list[int] = []

    def full(descriptor: int, buffers: Any) -> int:
        calls.append(descriptor)
        if len(calls) > written_before:
            raise OSError(errno.ENOSPC, "No space left on device")
        return writev(descriptor, [memoryview(buffers[0])[:1000]])

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        assert not folder.write("a", [CONTENT])
    assert folder.read("a") is None
    assert [path.name for path in Path(folder.path).iterdir()] == [".lock"]
    assert folder.write("a", [CONTENT])


def test_an_output_without_room_leaves_the_old_one_in_place(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a", [b"first"])

    def full(descriptor: int, buffers: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    assert not folder.write("a", [b"second"])
    assert content(folder.read("a")) == b"first"


def test_the_folder_and_its_files_are_private(folder: SharedFolder, root: Path) -> None:
    folder.write("a", [b"x"])
    for path in (root, Path(folder.path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in Path(folder.path).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_deleting_a_run_removes_all_of_it_and_nothing_else(root: Path) -> None:
    one, other = created("run-1"), created("run-2")
    for folder in (one, other):
        folder.write("a", [b"x"])
        folder.write("b", [b"y"])
    mapped = one.read("a")
    one.delete()
    one.delete()
    assert not Path(one.path).exists()
    assert content(mapped) == b"x"
    assert content(other.read("a")) == b"x"
    assert not one.write("c", [b"late"])
    assert not Path(one.path).exists()
    other.delete()


def test_active_runs_are_left_alone(root: Path) -> None:
    folders = [created(f"run-{number}") for number in range(3)]
    for folder in folders:
        assert folder.write("a", [b"x"])
    assert {path.name for path in root.iterdir()} == {".lock", "run-0", "run-1", "run-2"}
    for folder in folders:
        folder.delete()


OWNER = """
import pathlib, sys
from shoal.storage import shared_memory

shared_memory.shared_folder = lambda: pathlib.Path(sys.argv[1], "shared")
folder = shared_memory.SharedFolder.create("theirs")
assert folder.write("a", [b"x" * 1000])
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.mark.real
def test_folder_of_a_process_lives_as_long_as_the_process(root: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root.parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    theirs = SharedFolder(owner.stdout.readline().strip())
    created("run-1").delete()
    assert content(theirs.read("a")) == b"x" * 1000
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert content(theirs.read("a")) == b"x" * 1000
    created("run-2").delete()
    assert not Path(theirs.path).exists()


def test_a_half_created_or_half_deleted_folder_is_removed(root: Path) -> None:
    (root / "half").mkdir(parents=True)
    (root / "half" / "file").write_text("x")
    created("run-1").delete()
    assert {path.name for path in root.iterdir()} == {".lock"}


def test_runs_that_start_together_do_not_delete_each_others_folders(root: Path) -> None:
    """A race between a folder's creation and its locking.

    1. One client creates its folder, and has not locked it yet.
    2. Another looks for leftovers of crashed clients, and finds a folder without a lock.
    """
    together = threading.Barrier(8)

    def begin(number: int) -> list[SharedFolder]:
        together.wait()
        return [created(f"run-{number}-{turn}") for turn in range(10)]

    with ThreadPoolExecutor(8) as pool:
        folders = [folder for found in pool.map(begin, range(8)) for folder in found]
    assert all(folder.write("a", [b"x"]) for folder in folders)
    for folder in folders:
        folder.delete()
    assert {path.name for path in root.iterdir()} == {".lock"}


def test_there_is_no_shared_folder_if_none_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "shared_folder", lambda: tmp_path / "none" / "shared")
    assert SharedFolder.create(RunId("run-1")) is None


def test_a_folder_of_another_user_is_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert SharedFolder.create(RunId("run-1")) is None


def test_a_symlink_instead_of_the_folder_is_not_used(tmp_path: Path, root: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").mkdir()
    root.symlink_to(tmp_path / "mine")
    assert SharedFolder.create(RunId("run-1")) is None
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["kept"]


def test_only_large_outputs_are_worthwhile() -> None:
    assert worthwhile([bytes(SHARED_NBYTES)])
    assert worthwhile([bytes(SHARED_NBYTES - 1), b"x"])
    assert not worthwhile([bytes(SHARED_NBYTES - 1)])


def retired(folder: SharedFolder, run: str) -> SharedFolder:
    assert folder.retire()
    taken_over = SharedFolder.create(RunId(run), folder)
    assert taken_over is folder
    return folder


def spares(folder: SharedFolder) -> list[int]:
    found = (path.name for path in Path(folder.path).iterdir())
    return sorted(int(name.split(".")[1]) for name in found if name.startswith("spare."))


def test_the_next_run_overwrites_the_files_of_the_last(folder: SharedFolder, root: Path) -> None:
    folder.write("a", [CONTENT])
    inode = next(path for path in Path(folder.path).iterdir() if path.name != ".lock").stat().st_ino
    retired(folder, "run-2")
    assert Path(folder.path) == root / "run-2"
    assert folder.read("a") is None
    assert folder.write("b", [CONTENT[:-1000]])
    assert content(folder.read("b")) == CONTENT[:-1000]
    assert spares(folder) == []
    files = [path for path in Path(folder.path).iterdir() if path.name != ".lock"]
    assert [path.stat().st_ino for path in files] == [inode]


def test_a_file_that_is_still_mapped_is_never_overwritten(folder: SharedFolder) -> None:
    """The caller of the first run keeps its result.

    1. A run's output is mapped, and the array made from it is kept.
    2. The run ends, and the next one reuses its folder.
    3. It writes an output of the same size.
    """
    array = np.arange(100_000)
    folder.write("a", encode(array, KEY, "name"))
    view = folder.read("a")
    assert view is not None
    kept = decode(view, KEY, "name")
    del view
    assert not folder.retire()
    folder.write("b", encode(array[::-1].copy(), KEY, "name"))
    assert np.array_equal(kept, np.arange(100_000))


def test_a_file_can_be_reused_once_its_mapping_is_gone(folder: SharedFolder) -> None:
    folder.write("a", [CONTENT])
    view = folder.read("a")
    assert content(view) == CONTENT
    del view
    assert folder.retire()
    assert spares(folder) == [len(CONTENT)]


def test_only_files_of_similar_size_are_reused(folder: SharedFolder) -> None:
    for number in (1, 3, 8):
        folder.write(f"a{number}", [CONTENT * number])
    retired(folder, "run-2")
    size = len(CONTENT)
    assert folder.write("b", [CONTENT * 4])
    assert spares(folder) == [size, 8 * size]
    assert folder.write("c", [b"x"])
    assert folder.write("d", [CONTENT * 20])
    assert spares(folder) == [size, 8 * size]
    assert content(folder.read("d")) == CONTENT * 20


def test_two_workers_never_reuse_the_same_file(folder: SharedFolder) -> None:
    folder.write("a", [CONTENT])
    retired(folder, "run-2")
    one, other = SharedFolder(folder.path), SharedFolder(folder.path)
    for worker in (one, other):
        worker._claim_spare(1, "nothing of that size")
    assert one.write("b", [CONTENT])
    assert other.write("c", [CONTENT[::-1]])
    assert content(folder.read("b")) == CONTENT
    assert content(folder.read("c")) == CONTENT[::-1]


def test_the_size_of_files_kept_for_reuse_is_bounded(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_MOST_SPARE", 2 * len(CONTENT))
    for number in range(4):
        folder.write(f"a{number}", [CONTENT])
    folder.write("small", [b"x"])
    assert folder.retire()
    assert spares(folder) == [len(CONTENT)] * 2
    assert len(list(Path(folder.path).iterdir())) == 3


def test_an_output_that_is_being_written_is_never_overwritten(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that nobody waits for is late.

    1. It writes an output while the run ends and its folder is reused.
    2. The next run overwrites the files it finds there.
    3. The worker continues to write.
    """
    folder.write("b", [CONTENT])
    writev = os.writev
    late = threading.Event()

    def slow(descriptor: int, buffers: Any) -> int:
        written = writev(descriptor, [memoryview(buffers[0])[:200_000]])
        if not late.is_set():
            late.set()
            retired(folder, "run-2")
            for name in ("c", "d", "e"):
                assert folder.write(name, [CONTENT])
        return written

    monkeypatch.setattr(os, "writev", slow)
    SharedFolder(folder.path).write("a", [b"late" * (len(CONTENT) // 4)])
    for name in ("c", "d", "e"):
        assert content(folder.read(name)) == CONTENT


def test_overwriting_a_file_shows_nothing_before_it_is_complete(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a", [CONTENT])
    successor = retired(folder, "run-2")
    writev = os.writev
    seen: list[memoryview | None] = []

    def little(descriptor: int, buffers: Any) -> int:
        seen.append(successor.read("b"))
        return writev(descriptor, [memoryview(buffers[0])[:10_000]])

    monkeypatch.setattr(os, "writev", little)
    assert successor.write("b", [CONTENT[::-1]])
    assert seen == [None] * len(seen)
    assert content(successor.read("b")) == CONTENT[::-1]


def test_a_folder_with_nothing_large_is_not_reused(folder: SharedFolder) -> None:
    folder.write("a", [b"small"])
    assert not folder.retire()
    assert [path.name for path in Path(folder.path).iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_reused_is_replaced(root: Path) -> None:
    folder = created("run-1")
    folder.write("a", [CONTENT])
    assert folder.retire()
    (root / "run-2").mkdir()
    (root / "run-2" / "in the way").write_text("")
    successor = SharedFolder.create(RunId("run-2"), folder)
    assert successor is not None
    assert not Path(folder.path).exists()
    assert successor.write("b", [CONTENT])
    successor.delete()


def test_a_folder_in_another_one_s_place_is_told_apart(tmp_path: Path) -> None:
    project, missing = tmp_path / "project", tmp_path / "missing"
    project.mkdir()
    with probe([str(project), str(missing)]) as (nonce, _):
        assert sees_folders(nonce)
        project.rename(tmp_path / "moved")
        assert not sees_folders(nonce)
        project.mkdir()
        assert not sees_folders(nonce)
    assert not sees_folders(nonce)
