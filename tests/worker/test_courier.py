"""A courier brings outputs, also those that have to be made again first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from observing import eventually
from platform_examples import Caller
from shoal.errors import Tampered
from shoal.execution.costs import FAR
from shoal.execution.effects import Mark
from shoal.execution.events import Event, Fetched, Saved
from shoal.execution.plan import Part
from shoal.execution.timeline import decode_records
from shoal.storage.base import Completion, Letter, Opening
from shoal.storage.codec import Blob, blob_nbytes, encode
from shoal.storage.keys import CLIENT, signed_mark, signed_output
from shoal.storage.memory import MemoryStore
from shoal.storage.shared import SharedFolder
from shoal.types import Resources, RunId, TaskId, WorkerId
from shoal.worker.courier import Courier
from shoal.worker.recorder import DELIVER, Recorder

RUN, W0 = RunId("run-1"), WorkerId("w0")
OURS, THEIRS = TaskId("ours"), TaskId("theirs")
KEY = b"\0"
PART = Part(W0, Resources(256, 1.0), (OURS,), (0,), ((),), {OURS: ("w1", "w2")}, {}, {})


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
        return encode(task, KEY, signed_output(task))

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
    SharedFolder(str(tmp_path)).write(THEIRS, encode("again", KEY, signed_output(THEIRS)))
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


def test_if_the_store_is_far_no_slot_carries_orders_out(
    store: MemoryStore, worker: Watched, tmp_path: Path
) -> None:
    nobody: Any = None
    job = replace(Caller(nobody, tmp_path).job(), latency=2 * FAR)
    courier = Courier(job, PART, store, nobody, None, worker)
    courier.start()
    courier.save(OURS)
    assert not courier.work()
    assert eventually(lambda: store.fetch(RUN, [OURS]) != [None])
    courier.stop()


def test_timeline_tells_of_what_was_saved_last_and_together(
    store: MemoryStore, worker: Watched, tmp_path: Path
) -> None:
    """Both outputs are one transfer, told of the first; the timeline goes with the next trip."""
    nobody: Any = None
    courier = Courier(Caller(nobody, tmp_path).job(), PART, store, nobody, None, worker)
    courier.save(OURS)
    courier.save(THEIRS)
    courier.finish(done=True)
    courier.work()
    (letter,) = store.receive(RUN, CLIENT, "", 0.0)
    timeline = decode_records(letter.parts[:1], [OURS], 0.0, 0.0)
    first, second = timeline.of_kind("save")
    whole = sum(blob_nbytes(worker.blob(task)) for task in (OURS, THEIRS))
    assert (first.task, first.nbytes) == (OURS, whole)
    assert second.came_along
    assert timeline.of_kind("leave")[0].start >= first.end


def test_message_that_outputs_travel_with_says_nothing_of_messages(
    store: MemoryStore, worker: Watched, tmp_path: Path
) -> None:
    nobody: Any = None
    courier = Courier(Caller(nobody, tmp_path).job(), PART, store, nobody, None, worker)
    for task, producer, saving in ((OURS, "w1", True), (OURS, "w2", False)):
        if saving:
            courier.save(THEIRS)
        courier.mark(Mark(task, W0, ("w1", "w2"), (), (), producer), {}, {})
    courier.work()
    (letter,) = store.receive(RUN, W0, "", 0.0)
    courier.opened(letter)
    assert not [row for row in worker.recorder.rows if row[0] == DELIVER]


@pytest.mark.parametrize("place", ["store", "shared memory"])
def test_output_of_another_task_in_its_place_is_refused(
    courier: Courier, store: MemoryStore, worker: Watched, tmp_path: Path, place: str
) -> None:
    other = encode("genuine", KEY, signed_output("other"))
    if place == "store":
        store.complete(RUN, W0, 1, Completion(saves=[(THEIRS, other)]))
    else:
        SharedFolder(str(tmp_path)).write(THEIRS, other)
    courier.fetch((THEIRS,))
    with pytest.raises(Tampered, match="output of 'theirs'"):
        courier.work()
    assert not worker.kept


def mark(task: TaskId, producer: str, number: int) -> bytes:
    """What goes with a mark."""
    value = (0.0, {TaskId(producer): number}, {}, {}, producer)
    return b"".join(encode(value, KEY, signed_mark(task, producer)))


def test_marks_bring_small_outputs(courier: Courier) -> None:
    letter = Letter("ready", OURS, (mark(OURS, "w1", 1), mark(OURS, "w2", 2)))
    assert courier.opened(letter) == {"w1": 1, "w2": 2}


@pytest.mark.parametrize(
    "parts",
    [
        (mark(OURS, "w2", 2), mark(OURS, "w1", 1)),
        (mark(OURS, "w1", 1), mark(OURS, "w1", 1)),
        (mark(OURS, "w1", 1), mark(THEIRS, "w2", 2)),
        (mark(OURS, "w1", 1),),
    ],
    ids=["in another order", "one twice", "of another task", "one too few"],
)
def test_mark_in_the_place_of_another_is_refused(
    courier: Courier, parts: tuple[bytes, ...]
) -> None:
    with pytest.raises(Tampered):
        courier.opened(Letter("ready", OURS, parts))
