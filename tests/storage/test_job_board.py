"""The board of an engine's jobs: starts wait there, jobs report, runs are cancelled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.storage.embedded import EmbeddedServer
from shoal.storage.job_board import JobBoard, JobRecord
from shoal.types import RunId

pytestmark = pytest.mark.real

RUN = RunId("run-1")


@pytest.fixture
def board() -> Iterator[JobBoard]:
    server = EmbeddedServer()
    board = JobBoard(server.url, "here")
    yield board
    board._call([["FLUSHALL"]])
    board.disconnect()
    server.close()


def test_starts_are_taken_in_order_by_jobs_of_their_kind(board: JobBoard) -> None:
    board.push({"small": [b"1", b"2"], "large": [b"3"]})
    assert board.waiting() == {"small": [b"1", b"2"], "large": [b"3"]}
    assert [board.take("small", 0.01) for _ in range(3)] == [b"1", b"2", None]
    assert board.waiting() == {"large": [b"3"]}


def test_deployments_do_not_see_each_other(board: JobBoard) -> None:
    board.push({"small": [b"1"]})
    other = JobBoard(board.url, "elsewhere")
    assert other.waiting() == {}
    assert other.take("small", 0.01) is None
    other.disconnect()


def test_whoever_starts_jobs_wakes_up_when_starts_are_pushed(board: JobBoard) -> None:
    board.push({"small": [b"1"]})
    board.push({"small": [b"2"]})
    board.await_push(30)
    board.await_push(0.01)  # one wake-up for both


def test_withdrawn_starts_wait_no_longer(board: JobBoard) -> None:
    board.push({"small": [b"1", b"2", b"1"]})
    board.withdraw("small", [b"1"])
    assert board.waiting() == {"small": [b"2", b"1"]}


def test_jobs_report_what_they_do_and_learn_which_runs_were_cancelled(board: JobBoard) -> None:
    at = board.now()
    record = JobRecord(kind="small", at=at, run=RUN, worker="w0", epoch=2, running=(7, 8))
    assert board.report("job", record) == frozenset()
    assert board.jobs() == {"job": record}
    board.cancel(RUN)
    assert board.report("job", record) == {RUN}
    board.remove("job")
    assert board.jobs() == {}


def test_what_a_silent_job_wrote_counts_no_more_and_is_forgotten_later(board: JobBoard) -> None:
    now = board.now()
    ages = {"up": 5, "silent": 11, "gone": 601}
    records = {name: JobRecord(kind="small", at=now - age) for name, age in ages.items()}
    for name, record in records.items():
        board.report(name, record)
    assert board.jobs() == {"up": records["up"]}
    assert board.records() == ({"up": records["up"]}, {"silent": records["silent"]})
    assert board.record("silent") == records["silent"]
    assert board.record("gone") is None


def test_a_cancelled_run_may_be_resumed(board: JobBoard) -> None:
    board.cancel(RUN)
    assert board.cancelled() == {RUN}
    board.revive(RUN)
    assert board.cancelled() == frozenset()


def test_what_is_printed_is_kept_in_order(board: JobBoard) -> None:
    board.print(RUN, [b"1", b"2"])
    board.print(RUN, [b"3"])
    assert board.printed(RUN) == [b"1", b"2", b"3"]
    assert board.printed(RunId("run-2")) == []
