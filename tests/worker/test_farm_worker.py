"""A farm's worker holds the tasks that it takes, and gives back those it won't start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from observing import TIMEOUT
from platform_examples import Caller
from shoal.clock import RealClock
from shoal.storage.codec import Buffer, encode
from shoal.storage.farm_queues import FarmStore, Settled, Taken
from shoal.storage.keys import signed_function, signed_value
from shoal.types import WorkerId
from shoal.worker import farm_worker
from shoal.worker.farm_worker import work_with

KEY = b"\0"
W = WorkerId("0:0")
A_MOMENT = 0.2
"""Seconds in which a worker that doesn't wait would have asked for tasks."""


giving_back = threading.Event()


def slow(task: str) -> str:
    """Run until another task is given back."""
    assert giving_back.wait(TIMEOUT)
    return task


class Idle:
    """Ignores which tasks run."""

    def set(self, slot: int, task: int) -> None:
        """Do nothing."""

    def clear(self, slot: int) -> None:
        """Do nothing."""


class BatchStore:
    """A store with one batch of tasks, which is slow to take some of them back."""

    def __init__(self, function: Callable[[Any], Any], tasks: Sequence[str]) -> None:
        self._function = function
        self.most: list[int] = []
        """How many tasks the worker wanted, each time."""
        self._tasks = tasks
        self.asked_again = threading.Event()
        self.said: list[tuple[str, list[str]]] = []

    def join(self, *_: Any) -> Buffer:
        return b"".join(encode((self._function, None), KEY, signed_function(0)))

    def clock(self, run: str, sent: float) -> RealClock:
        """Of a server on which the worker was sent five seconds ago."""
        return RealClock(sent + 5.0 - time.monotonic())

    def take(self, run: str, worker: str, epoch: int, read: str, most: int, done: Any) -> Taken:
        self.said.append(("take", [each.id for each in done]))
        self.most.append(most)
        if len(self.said) > 1:
            self.asked_again.set()
            return Taken(leave=True)
        given = [b"".join(encode(task, KEY, signed_value(task, 0))) for task in self._tasks]
        return Taken(tuple(zip(self._tasks, given, strict=True)))

    def give_back(
        self, run: str, worker: str, epoch: int, tasks: Sequence[str], done: Sequence[Settled]
    ) -> None:
        giving_back.set()
        self.asked_again.wait(A_MOMENT)
        self.said.append(("give back", list(tasks)))

    def beat(self, *_: Any) -> None:
        """Do nothing."""


def test_a_worker_requests_tasks_only_after_others_are_given_back(tmp_path: Path) -> None:
    """A task that is given back must not be worked on twice.

    1. A worker takes two tasks. The first takes long.
    2. Another of its threads gives the second back; that request is still on its way.
    3. The first task is done, and the worker asks for the next: the store would answer with the
       second, which the worker still holds, and then give it to another worker too.
    """
    queue = BatchStore(slow, ["1", "2"])
    nobody: Any = None
    job = Caller(nobody, tmp_path).job(worker=W, key=KEY, farm=True)
    assert work_with(cast(FarmStore, queue), job, Idle())
    assert queue.said == [("take", []), ("give back", ["2"]), ("take", ["1"])]


class MachineClocks:
    """A machine's clocks, in place of the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.mark.parametrize(("took", "leaves"), [(4.0, False), (6.0, True)])
def test_the_way_to_a_worker_counts_against_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, leaves: bool
) -> None:
    """It was under way for five of its ten seconds, by the store's clock."""
    machine = MachineClocks()
    monkeypatch.setattr(farm_worker, "time", machine)
    monkeypatch.setattr(farm_worker, "decode", lambda data, *_: decoded(data))

    def work(_: Any) -> None:
        machine.now += took

    def decoded(data: Buffer) -> Any:
        return (work, 10.0) if data == b"joined" else None

    queue = BatchStore(work, ["1"])
    monkeypatch.setattr(queue, "join", lambda *_: b"joined")
    nobody: Any = None
    job = Caller(nobody, tmp_path).job(worker=W, key=KEY, farm=True, sent=1_000.0)
    assert work_with(cast(FarmStore, queue), job, Idle())
    assert [most == 0 for most in queue.most] == [False, leaves]
