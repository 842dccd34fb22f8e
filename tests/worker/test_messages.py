"""Messages carry small outputs, and only from the producers that a task waits for."""

from __future__ import annotations

import pytest

from shoal.clock import RealClock
from shoal.errors import Tampered
from shoal.execution.plan import PlannedPart
from shoal.storage.codec import encode
from shoal.storage.keys import signed_mark
from shoal.storage.letters import TaskReady
from shoal.types import Resources, TaskId, WorkerId
from shoal.worker.messages import Messages
from shoal.worker.recorder import Recorder

W0 = WorkerId("w0")
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


def mark(task: TaskId, producer: str, number: int) -> bytes:
    """Return the payload of a mark."""
    value = (0.0, {TaskId(producer): number}, {}, {}, producer)
    return b"".join(encode(value, KEY, signed_mark(task, producer)))


@pytest.fixture
def messages() -> Messages:
    return Messages(PART, KEY, Recorder(W0, PART.numbered(), RealClock()))


def test_marks_carry_small_outputs(messages: Messages) -> None:
    letter = TaskReady(OURS, (mark(OURS, "w1", 1), mark(OURS, "w2", 2)))
    assert messages.opened(letter) == {"w1": 1, "w2": 2}


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
def test_a_mark_replaced_by_another_is_rejected(
    messages: Messages, parts: tuple[bytes, ...]
) -> None:
    with pytest.raises(Tampered):
        messages.opened(TaskReady(OURS, parts))
