"""Jobs of one host keep copies of a run for each other; a job alone keeps none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from shoal.storage.host_memory import HostMemory
from shoal.storage.shared_memory import SharedFolder
from shoal.types import SHARED_NBYTES, RunId, TaskId
from shoal.worker.host_outputs import HostOutputs

RUN, NEXT = RunId("run-1"), RunId("run-2")
OUTPUT, LARGE = TaskId("output"), [b"x" * SHARED_NBYTES]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "memory"
    for module in ("host_memory", "shared_memory"):
        monkeypatch.setattr(f"shoal.storage.{module}.shared_folder", lambda: path)
    return path


@pytest.fixture
def two(root: Path) -> Iterator[tuple[HostMemory, HostMemory]]:
    """Two jobs of a deployment."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(HostMemory("d"))) for _ in range(2))
        yield one, other


def test_a_job_alone_keeps_no_copies(root: Path) -> None:
    with closing(HostMemory("d")) as alone, closing(HostMemory("another deployment")):
        assert alone.folder(RUN) is None


def test_jobs_of_a_host_share_a_folder_for_each_run(two: tuple[HostMemory, HostMemory]) -> None:
    one, other = two
    path = one.folder(RUN)
    assert path is not None
    assert other.folder(RUN) == path != other.folder(NEXT)
    HostOutputs(path, 1 << 30).keep(OUTPUT, LARGE)
    assert bytes(HostOutputs(one.folder(RUN), 0).read(OUTPUT) or b"") == LARGE[0]


def test_a_job_that_was_killed_is_no_neighbour(root: Path) -> None:
    (root).mkdir(mode=0o700)
    (root / ".job-d-0").touch(mode=0o600)  # nobody holds its lock
    with closing(HostMemory("d")) as alone:
        assert alone.folder(RUN) is None
    assert not [path for path in root.iterdir() if path.name != ".lock"]


def test_the_last_job_of_a_run_deletes_its_copies(
    root: Path, two: tuple[HostMemory, HostMemory]
) -> None:
    one, other = two
    paths = [Path(job.folder(RUN) or "") for job in two]
    one.leave()
    assert paths[0].exists()
    other.folder(NEXT)
    assert not paths[0].exists()


def test_a_client_that_makes_a_folder_leaves_copies_in_use(
    two: tuple[HostMemory, HostMemory],
) -> None:
    path = Path(two[0].folder(RUN) or "")
    client = SharedFolder.create(NEXT)
    assert client is not None
    assert path.exists()
    client.delete()


def test_copies_left_by_killed_jobs_are_swept(
    root: Path, two: tuple[HostMemory, HostMemory]
) -> None:
    left = root / "copies-old"
    left.mkdir()
    (left / ".lock").touch(mode=0o600)
    two[0].folder(RUN)
    assert not left.exists()


def test_there_is_room_for_so_many_bytes(two: tuple[HostMemory, HostMemory]) -> None:
    copies = HostOutputs(two[0].folder(RUN), SHARED_NBYTES + 10)
    for name in ("first", "second"):
        copies.keep(TaskId(name), LARGE)
    assert copies.read(TaskId("first")) is not None
    assert copies.read(TaskId("second")) is None


def test_small_outputs_are_not_copied(two: tuple[HostMemory, HostMemory]) -> None:
    copies = HostOutputs(two[0].folder(RUN), 1 << 30)
    copies.keep(OUTPUT, [b"small"])
    assert copies.read(OUTPUT) is None
