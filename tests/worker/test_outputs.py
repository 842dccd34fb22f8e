"""The values that a worker holds, and their pickled forms."""

import pytest

from shoal.errors import NotPicklable
from shoal.execution.plan import PlannedPart
from shoal.storage.codec import blob_nbytes, decode
from shoal.storage.keys import signed_output
from shoal.types import Resources, TaskId, WorkerId
from shoal.worker.outputs import Outputs

KEY = b"\0"
STAYS, TRAVELS, OTHER = TaskId("stays"), TaskId("travels"), TaskId("other")
PART = PlannedPart(
    worker=WorkerId("w0"),
    resources=Resources(256, 1.0),
    upstream={STAYS: (), TRAVELS: ()},
    sinks=frozenset((TRAVELS,)),
    numbers=(0, 1),
    shared={},
    owners={},
    feeds={},
)


class Opaque:
    """A value whose size is unknown before it is pickled."""

    def __init__(self) -> None:
        self.numbers = list(range(100))


def test_an_output_that_may_be_sent_is_measured_by_its_pickled_form() -> None:
    outputs = Outputs(PART, KEY)
    nbytes = outputs.measure(TRAVELS, Opaque())
    blob = outputs.take_blob(TRAVELS)
    assert blob is not None
    assert nbytes == blob_nbytes(blob)
    assert decode(b"".join(blob), KEY, signed_output(TRAVELS)).numbers == list(range(100))


def test_output_that_stays_is_not_pickled() -> None:
    outputs = Outputs(PART, KEY)
    outputs.measure(STAYS, lambda: None)
    assert outputs.take_blob(STAYS) is None


def test_an_unpicklable_output_that_may_be_sent_is_an_error() -> None:
    with pytest.raises(NotPicklable, match="the output of task 'travels'"):
        Outputs(PART, KEY).measure(TRAVELS, (value for value in ()))


def test_small_outputs_are_sent_pickled_only_if_they_already_are() -> None:
    outputs = Outputs(PART, KEY)
    value = Opaque()
    outputs.values = {TRAVELS: value, OTHER: 3}
    outputs.measure(TRAVELS, value)
    plain, pickled = outputs.inline((TRAVELS, OTHER))
    assert plain == {OTHER: 3}
    assert pickled == {TRAVELS: outputs.take_blob(TRAVELS)}


def test_pickled_form_is_taken_once() -> None:
    outputs = Outputs(PART, KEY)
    outputs.measure(TRAVELS, Opaque())
    assert outputs.take_blob(TRAVELS) is not None
    assert outputs.take_blob(TRAVELS) is None


def test_a_dropped_output_leaves_nothing() -> None:
    outputs = Outputs(PART, KEY)
    outputs.add({TRAVELS: Opaque(), OTHER: 3})
    outputs.measure(TRAVELS, outputs.values[TRAVELS])
    outputs.forget((TRAVELS, OTHER, STAYS))
    assert outputs.values == {}
    assert outputs.take_blob(TRAVELS) is None
