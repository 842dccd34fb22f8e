"""Letters survive a round trip, in the format that the scripts on the server expect."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from shoal.errors import Tampered
from shoal.storage.letters import (
    Failure,
    FunctionBroken,
    LeaveRequested,
    Letter,
    MemoryGrown,
    NoProgress,
    OutputReady,
    OutputSaved,
    Parts,
    StopRequested,
    TaskFailed,
    TaskReady,
    TasksAssigned,
    TasksDone,
    TasksPassed,
    WorkerEntered,
    WorkerFinished,
    WorkerLeft,
    WorkerLost,
    WorkerParked,
    decode_letter,
    encode_letter,
)
from shoal.types import Loss, LossReason, TaskId, WorkerId

T, W0, W1 = TaskId("t#0"), WorkerId("w0"), WorkerId("w1")
FAILURE = Failure(W0, "ValueError: no", "(1, x=2)", "Traceback …", b"signed")
FACTS = (
    b'{"worker": "w0", "reason": "ValueError: no", "arguments": "(1, x=2)", '
    b'"traceback": "Traceback \\u2026"}'
)
CRASHED = Loss(LossReason.DIED, (3, 4), 256, 2, code=-11)
REFUSED = Loss(LossReason.ERROR, (), 256, 1, detail="StoreRefused: full")

ON_THE_WIRE: list[tuple[Letter, str, str, Parts]] = [
    (OutputReady(T), "output", "t#0", ()),
    (OutputReady(T, b"value"), "output", "t#0", (b"value",)),
    (OutputReady(T, b""), "output", "t#0", (b"",)),
    (TaskFailed(T, FAILURE), "failed", "t#0", (FACTS, b"signed")),
    (
        WorkerLost(W0, CRASHED),
        "lost",
        "w0",
        (b'{"reason": "died", "code": -11, "running": [3, 4], "memory_mb": 256, "epoch": 2}',),
    ),
    (
        WorkerLost(W0, REFUSED),
        "lost",
        "w0",
        (
            b'{"reason": "error", "detail": "StoreRefused: full", "running": [], '
            b'"memory_mb": 256, "epoch": 1}',
        ),
    ),
    (MemoryGrown(W0, (1,), 512), "grown", "w0", (b'{"running": [1], "memory_mb": 512}',)),
    (WorkerParked(W0, b"record"), "parked", "w0", (b"record",)),
    (WorkerFinished(W0, b"record"), "finished", "w0", (b"record",)),
    (WorkerFinished(W0, b"record", ()), "finished", "w0", (b"record", b"[]")),
    (WorkerFinished(W0, b"record", (W1,)), "finished", "w0", (b"record", b'["w1"]')),
    (NoProgress(), "stuck", "", ()),
    (TaskReady(T, (b"0", b"1")), "ready", "t#0", (b"0", b"1")),
    (OutputSaved(T, b"size"), "saved", "t#0", (b"size",)),
    (StopRequested(W0), "stop", "w0", ()),
    (
        TasksDone(1, (("1", 0.5, b"a"), ("2", 2.0, b"b"))),
        "done",
        "1",
        (b"1", b"0.5", b"a", b"2", b"2.0", b"b"),
    ),
    (TasksPassed(0, (("1", 0.5), ("2", 2.0))), "passed", "0", (b"1", b"0.5", b"2", b"2.0")),
    (WorkerEntered(W0), "entered", "w0", ()),
    (WorkerLeft(W0), "left", "w0", ()),
    (FunctionBroken(W0, FAILURE), "broken", "w0", (FACTS, b"signed")),
    (TasksAssigned(W0, (("1", b"a"),)), "tasks", "w0", (b"1", b"a")),
    (LeaveRequested(W0), "leave", "w0", ()),
]
"""Letters and their encodings, which scripts and other processes depend on."""


@pytest.mark.parametrize(("letter", "kind", "name", "parts"), ON_THE_WIRE)
def test_a_letter_has_the_agreed_wire_format(
    letter: Letter, kind: str, name: str, parts: Parts
) -> None:
    assert encode_letter(letter) == (kind, name, parts)
    assert decode_letter(kind, name, parts) == letter


def test_every_letter_type_survives_a_round_trip() -> None:
    assert {type(letter) for letter, *_ in ON_THE_WIRE} == set(get_args(Letter))


def test_worker_that_the_store_gave_up_on_is_lost_without_details() -> None:
    """The script on the server writes only these fields."""
    vanished = decode_letter("lost", "w0", (b'{"reason":"vanished","running":[]}',))
    assert vanished == WorkerLost(W0, Loss(LossReason.VANISHED))


def test_fields_may_be_views_of_a_connections_buffer() -> None:
    views = tuple(map(memoryview, (b"1", b"0.5", b"a")))
    assert decode_letter("done", "0", views) == TasksDone(0, (("1", 0.5, b"a"),))


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("lost", ()),
        ("lost", (b"{}",)),
        ("lost", (b"[]",)),
        ("lost", (b"not JSON",)),
        ("lost", (b'{"reason": "bored", "running": []}',)),
        ("failed", (b'{"worker": "w0"}', b"")),
        ("failed", ()),
        ("failed", (FACTS, b"", b"")),
        ("grown", (b'{"running": 3}',)),
        ("saved", ()),
        ("finished", ()),
        ("done", (b"1", b"0.5")),
        ("done", (b"1", b"soon", b"a")),
        ("tasks", (b"1",)),
        ("tasks", (b"\xff", b"a")),
        ("unheard of", ()),
    ],
)
def test_an_invalid_letter_is_rejected(kind: str, parts: Parts) -> None:
    with pytest.raises(Tampered, match=kind):
        decode_letter(kind, "0", parts)


def test_a_stage_that_is_no_number_is_rejected() -> None:
    with pytest.raises(Tampered):
        decode_letter("passed", "first", ())


def test_the_detail_of_a_loss_may_be_any_text() -> None:
    loss = Loss(LossReason.ERROR, detail='"quoted"\n\x00é😀')
    (data,) = encode_letter(WorkerLost(W0, loss))[2]
    assert json.loads(bytes(data))["detail"] == loss.detail
    assert decode_letter("lost", "w0", (data,)) == WorkerLost(W0, loss)
