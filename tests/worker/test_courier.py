"""A courier executes what its outbox decides, and finds outputs that were recreated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import eventually
from platform_examples import Caller
from shoal.clock import RealClock
from shoal.errors import Tampered
from shoal.execution.effects import Fetch, Finish, Mark, Save
from shoal.execution.events import Event, Fetched, Saved
from shoal.execution.outbox import REMOTE
from shoal.execution.plan import PlannedPart
from shoal.execution.timeline import decode_records
from shoal.storage.base import Completion, Opening
from shoal.storage.codec import Blob, blob_nbytes, encode
from shoal.storage.keys import CLIENT, signed_output
from shoal.storage.letters import TaskReady, WorkerFinished
from shoal.storage.shared_memory import SharedFolder
from shoal.testing.memory_store import MemoryStore
from shoal.types import Resources, RunId, TaskId, WorkerId
from shoal.worker.courier import Courier
from shoal.worker.messages import InlineOutputs, Messages
from shoal.worker.recorder import DELIVER, Recorder

RUN, W0 = RunId("run-1"), WorkerId("w0")
OURS, THEIRS = TaskId("ours"), TaskId("theirs")
KEY = b"\0"
PART = PlannedPart(
    worker=W0,
    resources=Resources(256, 1.0),
    upstream={OURS: ()},
    numbers=(0,),
    shared={OURS: (WorkerId("w1"), WorkerId("w2"))},
    owners={},
    feeds={},
)


class Watched:
    """A worker that only records events."""

    executed = 0

    def __init__(self) -> None:
        self.recorder = Recorder(W0, PART.numbered(), RealClock())
        self.messages = Messages(PART, KEY, self.recorder)
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
    courier = Courier(
        job, PART, store, nobody, SharedFolder(str(tmp_path)), worker, worker.messages
    )
    courier.background.start()
    yield courier
    courier.background.stop()


def test_an_output_recreated_in_shared_memory_is_found(
    courier: Courier, worker: Watched, tmp_path: Path
) -> None:
    courier.order(Fetch((THEIRS,)))
    assert courier.work()
    assert not worker.events
    SharedFolder(str(tmp_path)).write(THEIRS, encode("again", KEY, signed_output(THEIRS)))
    assert eventually(lambda: worker.events == [Fetched((THEIRS,))])
    assert worker.kept == {THEIRS: "again"}


def test_a_workers_output_is_saved_while_it_waits_for_anothers(
    courier: Courier, store: MemoryStore, worker: Watched
) -> None:
    courier.order(Fetch((THEIRS,)))
    courier.order(Save(OURS))
    assert courier.work()
    assert worker.events == [Saved(OURS)]
    assert store.fetch(RUN, [OURS]) != [None]


def test_no_slot_sends_orders_if_the_store_is_remote(
    store: MemoryStore, worker: Watched, tmp_path: Path
) -> None:
    nobody: Any = None
    job = Caller(nobody, tmp_path).job(latency=2 * REMOTE)
    courier = Courier(job, PART, store, nobody, None, worker, worker.messages)
    courier.background.start()
    courier.order(Save(OURS))
    assert not courier.work()
    assert eventually(lambda: store.fetch(RUN, [OURS]) != [None])
    courier.background.stop()


def test_saves_sent_together_are_one_transfer_in_the_timeline(
    store: MemoryStore, worker: Watched, tmp_path: Path
) -> None:
    """The first output's span covers both; the timeline travels with the next trip."""
    nobody: Any = None
    courier = Courier(
        Caller(nobody, tmp_path).job(), PART, store, nobody, None, worker, worker.messages
    )
    courier.order(Save(OURS))
    courier.order(Save(THEIRS))
    courier.order(Finish(), given=True)
    courier.work()
    ((_, letter),) = store.receive(RUN, CLIENT, "", 0.0)
    assert isinstance(letter, WorkerFinished)
    timeline = decode_records([bytes(letter.record)], [OURS], 0.0, 0.0)
    first, second = timeline.of_kind("save")
    whole = sum(blob_nbytes(worker.blob(task)) for task in (OURS, THEIRS))
    assert (first.task, first.nbytes) == (OURS, whole)
    assert second.came_along
    assert timeline.of_kind("leave")[0].start >= first.end


def test_a_message_that_carries_outputs_is_no_sample_of_message_time(
    store: MemoryStore, worker: Watched, tmp_path: Path
) -> None:
    nobody: Any = None
    courier = Courier(
        Caller(nobody, tmp_path).job(), PART, store, nobody, None, worker, worker.messages
    )
    for task, producer, saving in ((OURS, "w1", True), (OURS, "w2", False)):
        if saving:
            courier.order(Save(THEIRS))
        courier.order(Mark(task, W0, ("w1", "w2"), (), (), producer), InlineOutputs({}, {}))
    courier.work()
    ((_, letter),) = store.receive(RUN, W0, "", 0.0)
    assert isinstance(letter, TaskReady)
    worker.messages.opened(letter)
    assert not [row for row in worker.recorder.rows if row[0] == DELIVER]


@pytest.mark.parametrize("place", ["store", "shared memory"])
def test_an_output_replaced_by_that_of_another_task_is_rejected(
    courier: Courier, store: MemoryStore, worker: Watched, tmp_path: Path, place: str
) -> None:
    other = encode("genuine", KEY, signed_output("other"))
    if place == "store":
        store.complete(RUN, W0, 1, Completion(saves=[(THEIRS, other)]))
    else:
        SharedFolder(str(tmp_path)).write(THEIRS, other)
    courier.order(Fetch((THEIRS,)))
    with pytest.raises(Tampered, match="output of 'theirs'"):
        courier.work()
    assert not worker.kept
