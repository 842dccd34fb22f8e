"""A job serves several events at a time, and says what each of its workers is doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from observing import eventually
from shoal.clock import RealClock
from shoal.platform.events import Deployment, Offer, Work
from shoal.platform.invocation import Invocation, RunContext, Start, UserCode
from shoal.platform.job import BoardLogs, Job, JobGateway, board_of, log_lines, pushed
from shoal.storage.base import Opening
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.job_board import JobBoard, JobRecord
from shoal.storage.redis import RedisStore
from shoal.types import Resources, RunId, WorkerId

pytestmark = pytest.mark.real

ENTRY = "platform_entries_waiting:act"
RUN, SIZE = RunId("run-1"), Resources(256, 1.0)


class Scene:
    """A job of a function, and its board."""

    def __init__(self, url: str, *, stays: bool = False) -> None:
        self.deployment = Deployment(b"d" * 32, url)
        self.sent: list[tuple[str, int]] = []
        self.settled = 0
        self.job = Job(
            self.deployment, "j", ENTRY, stays=stays, elsewhere=self._send, settle=self._settle
        )
        self.board: JobBoard = board_of(self.deployment, stays=stays)
        self.context = RunContext(run=RUN, key=b"k", store=url, code=UserCode(session="s"))

    def _send(self, context: RunContext, starts: Sequence[Start]) -> None:
        time.sleep(0.3)  # whoever doesn't wait for this is noticed
        self.sent += [(start.worker, start.epoch) for start in starts]

    def _settle(self) -> None:
        self.settled += 1

    def perform(self, worker: str, path: Path) -> threading.Thread:
        """Have the job run a worker, in a thread."""
        start = Start.first(WorkerId(worker), SIZE, 0.0, part=str(path).encode())
        work = Work(entry=ENTRY, context=self.context, starts=(start,))
        thread = threading.Thread(target=self.job.perform, args=(work,))
        thread.start()
        return thread

    def running(self) -> dict[str, tuple[int, ...]]:
        """The tasks of each worker, as the board has them."""
        return {record.worker: record.running for record in self.board.jobs().values()}

    def push(self, worker: str, path: Path) -> None:
        """Have a worker wait for a job."""
        start = Start.first(WorkerId(worker), SIZE, 1.0, part=str(path).encode())
        self.board.push(pushed(self.context, [start], self.deployment, ENTRY))


@pytest.fixture
def url() -> Iterator[str]:
    server = EmbeddedServer()
    yield server.url
    server.close()


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
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


@pytest.fixture
def staying(url: str) -> Iterator[Scene]:
    """A job that takes work from the board."""
    scene = Scene(url, stays=True)
    yield scene
    scene.job.close()
    scene.board._call([["FLUSHALL"]])
    scene.board.disconnect()


def offer(idle_seconds: float, seconds: float | None = None, spares: int = 0) -> Offer:
    return Offer(
        job="j", entry=ENTRY, memory_mb=256, cpus=1.0, idle_seconds=idle_seconds, seconds=seconds,
        spares=spares,
    )  # fmt: skip


def test_a_job_takes_no_work_when_its_time_is_running_out(staying: Scene, tmp_path: Path) -> None:
    """Half of its time is over: the worker would be killed soon."""
    (tmp_path / "go").touch()
    staying.push("w1", tmp_path / "go")
    staying.job.serve(offer(idle_seconds=60, seconds=1))
    assert not staying.board.waiting()
    staying.push("w2", tmp_path / "go")
    staying.job.serve(offer(idle_seconds=60, seconds=1e-9))
    assert staying.board.waiting()
    assert not staying.board.jobs()


def test_a_worker_is_killed_before_its_job_s_time_is_over(
    staying: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the job can report it."""
    limits: list[float] = []
    noting = lambda context, start, begun, limit: limits.append(limit)  # noqa: E731
    monkeypatch.setattr(staying.job._gateway, "run_here", noting)
    staying.push("w1", tmp_path / "never")
    staying.job.serve(offer(idle_seconds=0.1, seconds=100))
    assert limits
    assert 90 < limits[0] <= 95


def test_a_start_that_was_meant_for_a_job_that_ends_is_taken(
    staying: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A client sees an idle job and pushes a start. 2. The job has been idle for long enough."""
    (tmp_path / "go").touch()
    remove = staying.job._board.remove

    def pushed_first(job: str, count: int = 1) -> None:
        if not staying.sent:
            staying.sent.append(("pushed", 0))
            staying.push("w1", tmp_path / "go")
        remove(job, count)

    monkeypatch.setattr(staying.job._board, "remove", pushed_first)
    staying.job.serve(offer(idle_seconds=0.1))
    assert not staying.board.waiting()


def test_a_spare_job_stands_by_as_long_as_others_are_at_work(
    staying: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is at work when it looks for the first and the second time."""
    looks: list[int] = []
    busy = JobRecord(kind="256 1.0", at=0.0, run=RUN)
    jobs = staying.job._board.jobs

    def seen() -> dict[str, JobRecord]:
        looks.append(len(looks))
        own = {name: record for name, record in jobs().items() if name == staying.job._name}
        return own | ({"other": busy} if len(looks) < 3 else {})

    monkeypatch.setattr(staying.job._board, "jobs", seen)
    staying.job.serve(offer(idle_seconds=0.05, spares=1))
    assert len(looks) == 3


def test_more_idle_jobs_than_spares_end(staying: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, idle = (JobRecord(kind="256 1.0", at=0.0, run=run) for run in (RUN, ""))
    jobs = staying.job._board.jobs
    monkeypatch.setattr(staying.job._board, "jobs", lambda: jobs() | {"busy": busy, "idle": idle})
    staying.job.serve(offer(idle_seconds=0.05, spares=1))
    assert not jobs()


def test_a_resumed_run_is_worked_for(scene: Scene, tmp_path: Path) -> None:
    """The job has learnt that the run was cancelled, and then nothing for a while."""
    first = scene.perform("w1", tmp_path / "never")
    assert eventually(lambda: bool(scene.running()))
    scene.board.cancel(RUN)
    first.join()
    scene.perform("w2", tmp_path / "never").join()  # it does nothing
    scene.board.revive(RUN)
    third = scene.perform("w3", tmp_path / "later")
    assert eventually(lambda: "w3" in scene.running())
    (tmp_path / "later").touch()
    third.join()


def test_printed_lines_have_the_store_s_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    board = board_of(Deployment(b"d" * 32, url), stays=True)
    clock = RealClock(1e6)
    monkeypatch.setattr(board, "clock", lambda run: clock)
    logs = BoardLogs(board)
    before = clock.now()
    logs.extend(RUN, "w1", "stdout", ["hello"])
    after = clock.now()
    logs.flush()
    (line,) = log_lines(board, RUN)
    assert before - 1e-3 <= line.time <= after + 1e-3
    board._call([["FLUSHALL"]])
    board.disconnect()


def test_only_the_first_worker_of_a_job_starts_cold(staying: Scene, tmp_path: Path) -> None:
    """A sandbox takes no time beside a job, and a start that waited for room isn't timed."""
    given: list[tuple[str, float]] = []
    give = JobGateway.__mro__[1]._give  # type: ignore[attr-defined]

    def noting(gateway: JobGateway, sandbox: object, invocation: Invocation, start: str) -> None:
        given.append((start, invocation.start.sent))
        give(gateway, sandbox, invocation, start)

    (tmp_path / "go").touch()
    for worker in ("w1", "w2"):
        staying.context = replace(staying.context, code=UserCode(session=worker))
        staying.push(worker, tmp_path / "go")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.platform.gateway.LocalGateway._give", noting)
        staying.job.serve(offer(idle_seconds=0.1))
    assert given == [("cold", 1.0), ("warm", 0.0)]
