"""A courier brings outputs, also those that have to be made again first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import eventually
from platform_examples import Caller
from shoal.execution.events import Event, Fetched, Saved
from shoal.execution.plan import Part
from shoal.storage.base import Opening
from shoal.storage.codec import Blob, encode
from shoal.storage.memory import MemoryStore
from shoal.storage.shared import SharedFolder
from shoal.types import Resources, RunId, TaskId, WorkerId
from shoal.worker.courier import Courier
from shoal.worker.recorder import Recorder

RUN, W0 = RunId("run-1"), WorkerId("w0")
OURS, THEIRS = TaskId("ours"), TaskId("theirs")
KEY = b"\0"
PART = Part(W0, Resources(256, 1.0), (OURS,), (0,), ((),), {}, {}, {})


class Watched:
    """A worker that only takes note."""

    executed = 0

    def __init__(self) -> None:
        self.recorder = Recorder(W0, PART.numbered())
        self.events: list[Event] = []
        self.kept: dict[TaskId, Any] = {}

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def keep(self, outputs: dict[TaskId, Any]) -> None:
        self.kept.update(outputs)

    def blob(self, task: TaskId) -> Blob:
        return encode(task, KEY)

    def parked(self, *, left: bool) -> None:
        raise AssertionError

    def give_up(self, error: BaseException) -> None:
        raise error


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.open(RUN, Opening([W0]))
    return store


@pytest.fixture
def worker() -> Watched:
    return Watched()


@pytest.fixture
def courier(store: MemoryStore, worker: Watched, tmp_path: Path) -> Iterator[Courier]:
    nobody: Any = None
    job = Caller(nobody, tmp_path).job()
    courier = Courier(job, PART, store, nobody, SharedFolder(str(tmp_path)), worker)
    courier.start()
    yield courier
    courier.stop()


def test_output_that_is_made_again_in_shared_memory_is_found_there(
    courier: Courier, worker: Watched, tmp_path: Path
) -> None:
    courier.fetch((THEIRS,))
    assert courier.work()
    assert not worker.events
    SharedFolder(str(tmp_path)).write(THEIRS, encode("again", KEY))
    assert eventually(lambda: worker.events == [Fetched((THEIRS,))])
    assert worker.kept == {THEIRS: "again"}


def test_own_output_is_saved_while_that_of_another_is_waited_for(
    courier: Courier, store: MemoryStore, worker: Watched
) -> None:
    courier.fetch((THEIRS,))
    courier.save(OURS)
    assert courier.work()
    assert worker.events == [Saved(OURS)]
    assert store.fetch(RUN, [OURS]) != [None]
