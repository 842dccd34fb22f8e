"""Timelines, and the records that they are decoded from."""

import json
import sys
from array import array

import pytest
from execution_examples import a, b, c, w0, w1
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import StoreError
from shoal.execution.timeline import (
    KINDS,
    Moved,
    Span,
    SpanRow,
    Timeline,
    decode_records,
    encode_record,
)
from shoal.types import TaskId, WorkerId

TASKS = [TaskId(f"t{number}") for number in range(10)]

_seconds = st.floats(0, 1e10)
_rows: st.SearchStrategy[list[SpanRow]] = st.lists(
    st.tuples(
        st.integers(0, len(KINDS) - 1),
        st.integers(-1, len(TASKS) - 1),
        _seconds,
        _seconds,
        _seconds,
        st.integers(0, 2**53),
    ),
    max_size=20,
)


def spans_of(worker: str, rows: list[SpanRow], started: float = 0.0) -> list[Span]:
    """Return the spans that rows represent."""
    return [
        Span(
            KINDS[kind],
            WorkerId(worker),
            TASKS[number] if number >= 0 else None,
            start - started,
            end - started,
            cpu,
            nbytes,
        )
        for kind, number, start, end, cpu, nbytes in rows
    ]


@given(first=_rows, second=_rows, started=_seconds, makespan=_seconds)
def test_decoding_restores_what_was_encoded_in_the_order_of_starts(
    first: list[SpanRow], second: list[SpanRow], started: float, makespan: float
) -> None:
    records = [encode_record(w0, first), encode_record(w1, second)]
    timeline = decode_records(records, TASKS, started, makespan)
    spans = spans_of("w0", first, started) + spans_of("w1", second, started)
    assert timeline == Timeline(tuple(sorted(spans, key=lambda span: span.start)), makespan)


def test_bytes_to_and_from_each_shard_add_up() -> None:
    first = {"a:1": Moved(10, 1), "b:1": Moved(saved=20)}
    records = [encode_record(w0, [], first), encode_record(w1, [], {"a:1": Moved(fetched=5)})]
    timeline = decode_records(records, [], 0.0, 1.0)
    assert timeline.shards == {"a:1": Moved(10, 6), "b:1": Moved(20, 0)}
    assert [line.split() for line in timeline.shard_use] == [
        ["shard", "a:1", "10", "bytes", "saved", "6", "fetched"],
        ["shard", "b:1", "20", "bytes", "saved", "0", "fetched"],
    ]
    assert decode_records([encode_record(w0, [])], [], 0.0, 1.0).shard_use == []
    strange = Timeline((), 1.0, {"\x1b[31m": Moved(1, 2)})
    assert r"shard \x1b[31m " in strange.shard_use[0]


def test_run_without_records_has_an_empty_timeline() -> None:
    timeline = decode_records([], [], 5.0, 0.0)
    assert timeline == Timeline((), 0.0)
    assert timeline.workers == ()
    assert timeline.placements == {}


def test_worker_without_spans_has_a_record_too() -> None:
    assert decode_records([encode_record(w0, [])], [], 0.0, 1.0) == Timeline((), 1.0)


@given(worker=st.text(), rows=_rows)
def test_any_worker_name_survives(worker: str, rows: list[SpanRow]) -> None:
    timeline = decode_records([encode_record(WorkerId(worker), rows)], TASKS, 0.0, 0.0)
    assert {span.worker for span in timeline.spans} <= {worker}
    assert len(timeline.spans) == len(rows)


def test_a_record_in_the_other_byte_order_is_read() -> None:
    rows: list[SpanRow] = [(3, 2, 1.5, 2.5, 0.25, 4096), (4, 2, 2.5, 3.0, 0.0, 4096)]
    head, _, packed = encode_record(w0, rows).partition(b"\n")
    columns = array("d")
    columns.frombytes(packed)
    columns.byteswap()
    header = json.loads(head) | {"order": "big" if sys.byteorder == "little" else "little"}
    record = json.dumps(header).encode() + b"\n" + columns.tobytes()
    assert decode_records([record], TASKS, 0.0, 3.0).spans == tuple(spans_of("w0", rows))


def test_a_truncated_record_is_not_taken_for_a_shorter_one() -> None:
    record = encode_record(w0, [(3, 2, 1.5, 2.5, 0.25, 4096)])
    with pytest.raises(StoreError, match=r"damaged.*bytes"):
        decode_records([record[:-1]], TASKS, 0.0, 3.0)


SPANS = (
    Span("cold start", w1, None, 0.0, 1.0),
    Span("execute", w1, b, 1.0, 2.5, 1.25, 10),
    Span("warm start", w0, None, 1.5, 2.0),
    Span("fetch", w0, b, 2.5, 3.0, 0.0, 10),
    Span("execute", w0, c, 3.0, 4.0),
    Span("save", w0, c, 4.0, 4.5),
    Span("execute", w0, a, 4.0, 5.0),
)


def test_placements_name_the_worker_that_executed_each_task() -> None:
    assert Timeline(SPANS, 5.0).placements == {b: w1, c: w0, a: w0}


def test_workers_come_in_the_order_of_their_starts() -> None:
    assert Timeline(SPANS, 5.0).workers == (w1, w0)


def test_spans_can_be_selected_by_kind() -> None:
    timeline = Timeline(SPANS, 5.0)
    assert timeline.of_kind("fetch", "save") == (SPANS[3], SPANS[5])
    assert timeline.of_kind() == ()


def test_span_knows_how_long_it_took() -> None:
    assert SPANS[1].seconds == 1.5
