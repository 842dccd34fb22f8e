"""What a session does after its runs is done by a thread, or by a process if runs come fast."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from observing import TIMEOUT, eventually, exists
from shoal import Session, system, task
from shoal.client.post_run import PostRunQueue
from shoal.client.post_run_process import PostRunProcess

pytestmark = pytest.mark.real


@task
def inc(number: int) -> int:
    return number + 1


def queue_of(session: Session) -> PostRunQueue:
    return session._ended_runs._post_run


def process_of(session: Session) -> PostRunProcess:
    """The process that files the session's runs, once it is ready."""
    queue = queue_of(session)
    assert eventually(lambda: queue._process is not None and queue._process.ready)
    assert queue._process is not None
    return queue._process


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is started for the first run."""
    monkeypatch.setattr("shoal.client.post_run._CROWDED", 0)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(workers=1, folder=str(tmp_path), idle_seconds=TIMEOUT) as session:
        yield session


def test_runs_that_come_one_by_one_need_no_process(session: Session) -> None:
    for number in range(6):
        assert session.compute(inc(number)) == [number + 1]
        session.settle()
    assert queue_of(session)._process is None
    assert len(session.history.runs()) == 6


def test_runs_that_come_fast_are_filed_by_a_process(session: Session) -> None:
    queue = queue_of(session)
    held, go = threading.Event(), threading.Event()
    queue.call(lambda: (held.set(), go.wait(TIMEOUT))[0])
    held.wait(TIMEOUT)
    for number in range(4):
        session.compute(inc(number))
    go.set()
    process = process_of(session)
    session.compute(inc(4))
    session.settle()
    assert len(session.history.runs()) == 5
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19


@pytest.mark.usefixtures("_at_once")
def test_whoever_waits_for_runs_does_not_wait_for_the_process(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shoal.client.post_run_process._PROGRAM",
        "import time; time.sleep(1000) # {path}{fd}{parent}",
    )
    session.compute(inc(1))
    session.settle()
    assert len(session.history.runs()) == 1


@pytest.mark.usefixtures("_at_once")
def test_plans_are_made_there_and_used_here(session: Session) -> None:
    def output() -> object:
        return inc(sum_of(*[inc(number) for number in range(8)]))

    @task
    def sum_of(*numbers: int) -> int:
        return sum(numbers)

    session.compute(output())
    process_of(session)
    for _ in range(4):
        assert session.compute(output()) == [37]
        session.settle()
    run = session.submit(output())
    run.result(TIMEOUT)
    session.settle()
    assert run.preview.learnt
    assert session.history.find(run.id).predicted is not None
    assert "auto" in run.plan.planner or len(run.plan.workers) == 1


@pytest.mark.usefixtures("_at_once")
def test_a_process_that_dies_is_replaced_and_no_run_is_lost(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    session.compute(inc(0))
    process = process_of(session)
    os.kill(process.pid, signal.SIGSTOP)
    for number in range(3):
        session.compute(inc(number))
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: queue_of(session)._process is not process)
    session.settle()
    assert len(session.history.runs()) == 4
    assert eventually(lambda: caplog.messages)
    assert caplog.messages == ["the process that files runs has died; it is replaced"]
    session.compute(inc(9))
    assert process_of(session) is not process


@pytest.mark.usefixtures("_at_once")
def test_a_process_that_gets_no_time_is_not_waited_for(session: Session) -> None:
    session.compute(inc(0))
    process = process_of(session)
    os.kill(process.pid, signal.SIGSTOP)
    for number in range(3):
        session.compute(inc(number))
    session.settle()
    assert len(session.history.runs()) == 4
    assert not exists(process.pid)


DYING = (
    "import os, socket, sys; sys.path[:] = {path!r}; "
    "from shoal.client.post_run_frames import Ready, framed, received; "
    "sock = socket.socket(fileno={fd}); received(sock); "
    "sock.sendall(framed(Ready())); received(sock); os._exit({parent} % 1)"
)


@pytest.mark.usefixtures("_at_once")
def test_what_ends_two_processes_is_dropped_and_the_thread_goes_on(
    session: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.client.post_run_process._PROGRAM", DYING)
    session.compute(inc(1))
    assert eventually(lambda: len(caplog.messages) == 2)
    assert caplog.messages == [
        "the process that files runs has died; it is replaced",
        "1 ended runs are not recorded: filing them killed two processes",
    ]
    session.compute(inc(2))
    session.settle()
    assert len(session.history.runs()) == 1
    assert queue_of(session)._process is None


@pytest.mark.usefixtures("_at_once")
def test_the_process_ends_when_the_session_idles_and_when_it_is_closed(tmp_path: Path) -> None:
    with Session(workers=1, folder=str(tmp_path), idle_seconds=0.2) as session:
        session.compute(inc(1))
        first = process_of(session).pid
        assert eventually(lambda: not exists(first))
        session.compute(inc(1))
        second = process_of(session).pid
    assert not exists(second)


CLIENT = """
import os, sys, time
import shoal.client.post_run
from shoal import Session, task

@task
def inc(number):
    return number + 1

shoal.client.post_run._CROWDED = 0
session = Session(workers=1, folder=sys.argv[1], idle_seconds=1000.0)
session.compute(inc(1))
queue = session._ended_runs._post_run
while queue._process is None or not queue._process.ready:
    time.sleep(0.01)
if os.fork():
    print(queue._process.pid, flush=True)
time.sleep({seconds})
"""


def test_the_process_ends_with_a_client_that_is_killed(tmp_path: Path) -> None:
    """A fork of the client, which holds the connection, is still there."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT.format(seconds=5))
    command = [sys.executable, str(script), str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        assert exists(pid)
        client.kill()
        assert eventually(lambda: not exists(pid))


@pytest.mark.skipif(not system.LINUX, reason="finds the descendants in /proc")
def test_a_script_repeats_nothing_in_the_process(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text('print("begun", flush=True)\n' + CLIENT.format(seconds=0))
    command = [sys.executable, str(script), str(tmp_path / "data")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert found.stdout.count("begun") == 1
    assert found.stderr == ""
