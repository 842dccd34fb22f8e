"""A job serves several events at a time, and says what each of its workers is doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from observing import eventually
from shoal.platform.events import Deployment, Work
from shoal.platform.invocation import RunContext, Start, UserCode
from shoal.platform.job import Job, board_of
from shoal.storage.base import Opening
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.job_board import JobBoard
from shoal.storage.redis import RedisStore
from shoal.types import Resources, RunId, WorkerId

pytestmark = pytest.mark.real

RUN = RunId("run-1")


class Scene:
    """A job of a function, and its board."""

    def __init__(self, url: str) -> None:
        self.deployment = Deployment(b"d" * 32, url)
        self.sent: list[tuple[str, int]] = []
        self.settled = 0
        self.job = Job(self.deployment, "j", stays=False, elsewhere=self._send, settle=self._settle)
        self.board: JobBoard = board_of(self.deployment, stays=False)
        self.context = RunContext(run=RUN, key=b"k", store=url, code=UserCode(session="s"))

    def _send(self, context: RunContext, starts: Sequence[Start]) -> None:
        time.sleep(0.3)  # whoever doesn't wait for this is noticed
        self.sent += [(start.worker, start.epoch) for start in starts]

    def _settle(self) -> None:
        self.settled += 1

    def perform(self, worker: str, path: Path) -> threading.Thread:
        """Have the job run a worker, in a thread."""
        size = Resources(256, 1.0)
        start = Start.first(WorkerId(worker), size, 0.0, part=str(path).encode())
        work = Work(context=self.context, starts=(start,))
        thread = threading.Thread(target=self.job.perform, args=(work,))
        thread.start()
        return thread

    def running(self) -> dict[str, tuple[int, ...]]:
        """The tasks of each worker, as the board has them."""
        return {record.worker: record.running for record in self.board.jobs().values()}


@pytest.fixture
def url() -> Iterator[str]:
    server = EmbeddedServer()
    yield server.url
    server.close()


@pytest.fixture
def scene(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr("shoal.platform.job.ENTRY", "platform_entries_waiting:act")
    scene = Scene(url)
    yield scene
    scene.job.close()
    scene.board._call([["FLUSHALL"]])
    scene.board.disconnect()


def test_each_event_is_done_when_its_own_worker_is(scene: Scene, tmp_path: Path) -> None:
    first = scene.perform("w1", tmp_path / "first")
    second = scene.perform("w2", tmp_path / "second")
    assert eventually(lambda: scene.running() == {"w1": (1,), "w2": (2,)})
    (tmp_path / "first").touch()
    first.join()
    assert eventually(lambda: scene.running() == {"w2": (2,)})
    assert second.is_alive()
    (tmp_path / "second").touch()
    second.join()
    assert scene.running() == {}
    assert scene.settled == 2


def test_a_cancelled_run_ends_all_its_workers(scene: Scene, tmp_path: Path) -> None:
    threads = [scene.perform(f"w{number}", tmp_path / "never") for number in (1, 2)]
    assert eventually(lambda: len(scene.running()) == 2)
    scene.board.cancel(RUN)
    for thread in threads:
        thread.join()
    assert scene.running() == {}


def test_a_killed_worker_has_been_restarted_when_its_event_is_done(
    scene: Scene, url: str, tmp_path: Path
) -> None:
    store = RedisStore(url)
    store.open(RUN, Opening([WorkerId("w1")], kind="256 1.0"))
    scene.perform("w1", tmp_path / "die").join()
    assert scene.sent == [("w1", 2)]
    store.disconnect()


def test_a_job_that_was_closed_performs_no_more(scene: Scene, tmp_path: Path) -> None:
    waiting = scene.perform("w1", tmp_path / "never")
    assert eventually(lambda: scene.running() == {"w1": (1,)})
    scene.job.close()
    waiting.join()
    assert scene.job.closed
