"""A run's samples are encoded as a block and survive a round trip."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest

from shoal import Resources, task
from shoal.errors import ShoalError
from shoal.execution.timeline import STARTS, Span, Timeline
from shoal.metadata.samples import (
    FIRST,
    MOST,
    NOTHING,
    About,
    Sample,
    Samples,
    decode_samples,
    encode_samples,
    measured_on,
)
from shoal.types import TaskId, WorkerId
from shoal.workflow import Workflow

w0 = WorkerId("w0")
R = Resources(2048)


@task(name="load")
def load(path: str) -> bytes: ...  # type: ignore[empty-body]


@task(name="count")
def count(data: bytes) -> int: ...  # type: ignore[empty-body]


WORKFLOW = Workflow.of(count(load("a")))
LOAD, COUNT = TaskId("load#0"), TaskId("count#0")
TIMELINE = Timeline(
    (
        Span("cold start", w0, None, 0.5, 0.75),
        Span("load", w0, LOAD, 0.75, 1.0),
        Span("fetch", w0, TaskId("constant:1"), 1.0, 1.25, 0.0, 1000),
        Span("execute", w0, LOAD, 1.25, 2.25, 0.5, 100),
        Span("execute", w0, COUNT, 2.25, 2.5, 0.25, 10),
        Span("leave", w0, None, 2.5, 2.5),
    ),
    3.0,
)


def samples(timeline: Timeline = TIMELINE) -> list[Sample]:
    constants = {LOAD: {TaskId("constant:1"): 1000}}
    return decode_samples(encode_samples(WORKFLOW, {w0: R}, timeline, constants)).samples


def one(kind: str) -> Sample:
    (sample,) = [sample for sample in samples() if sample.kind == kind]
    return sample


def test_an_execution_depends_on_its_inputs_and_large_constants() -> None:
    first, second = [sample for sample in samples() if sample.kind == "execute"]
    assert first[:-1] == Sample("execute", "load", 0, R, 1000, 1.0, 0.5, 100)[:-1]
    assert second == Sample("execute", "count", 1, R, 100, 0.25, 0.25, 10, About((), 1))


def test_an_execution_records_its_small_constants_but_no_text() -> None:
    """A number counts by its value, a text by its length and a digest."""

    @task(name="simulate")
    def simulate(n: int, path: str, *, quick: bool, parts: list[int]) -> None: ...

    flow = Workflow.of(simulate(10**6, "secret", quick=True, parts=[1, 2, 3]))
    timeline = Timeline((Span("execute", w0, TaskId("simulate#0"), 0.0, 1.0),), 1.0)
    block = encode_samples(flow, {w0: R}, timeline, {})
    (sample,) = decode_samples(block).samples
    values = sample.about.values
    assert values["=0"] == 10**6
    assert values["=quick"] == "True"
    assert (values["len 1"], values["len parts"]) == (6, 3)
    assert values["=1"] not in ("", "secret")
    assert "secret" not in str(zlib.decompress(block))


def test_an_execution_records_its_inputs_one_by_one_if_they_are_few() -> None:
    flow = Workflow.of(count([load("a"), load("b")]), count([load(str(n)) for n in range(9)]))
    spans = [Span("execute", w0, t, i, i + 1, 1.0, 10 * i) for i, t in enumerate(flow.calls)]
    block = encode_samples(flow, {w0: R}, Timeline(tuple(spans), 1.0), {})
    few, many = (s.about for s in decode_samples(block).samples if s.name == "count")
    assert (few.inputs, few.many) == ((0, 10), 2)
    assert (many.inputs, many.many) == ((), 9)


def test_a_transfer_records_whose_output_was_moved() -> None:
    moved = Timeline((Span("save", w0, LOAD, 0.0, 1.0, 0.0, 100),), 1.0)
    (sample,) = samples(moved)
    assert (sample.kind, sample.name) == ("save", "load")


def test_a_block_of_an_earlier_version_is_read() -> None:
    """It has no column for what executions may depend on."""
    head, _, columns = zlib.decompress(encode_samples(WORKFLOW, {w0: R}, TIMELINE, {})).partition(
        b"\n"
    )
    header = json.loads(head)
    del header["about"]
    columns = columns[: 8 * 8 * header["rows"]]
    old = decode_samples(zlib.compress(json.dumps(header).encode() + b"\n" + columns)).samples
    assert [sample[:8] for sample in old] == [
        sample[:8]
        for sample in decode_samples(encode_samples(WORKFLOW, {w0: R}, TIMELINE, {})).samples
    ]
    assert all(sample.about == NOTHING for sample in old)


def test_a_start_takes_until_the_task_is_imported() -> None:
    assert one("cold start").seconds == 0.5


def test_starts_by_the_client_and_by_a_worker_are_distinguished() -> None:
    again = replace(TIMELINE, spans=(*TIMELINE.spans, Span("warm start", w0, None, 2.6, 2.7)))
    starts = {sample.kind: sample.name for sample in samples(again) if sample.kind in STARTS}
    assert starts == {"cold start": FIRST, "warm start": ""}


def test_a_transfer_depends_on_what_was_moved() -> None:
    assert (one("fetch").nbytes, one("fetch").seconds) == (1000, 0.25)


def test_the_clients_costs_are_the_gaps() -> None:
    assert (one("launch").seconds, one("launch").nbytes) == (0.5, 1000)
    assert one("hand in").seconds == 0.5


def test_a_failed_run_has_no_sample_of_handing_in() -> None:
    """One of two sinks arrived long before the run ended without the other."""
    both = Workflow.of(count(load("a")), load("b"))
    block = encode_samples(both, {w0: R}, replace(TIMELINE, makespan=600.0), {})
    assert not [s for s in decode_samples(block).samples if s.kind == "hand in"]


def test_a_start_records_how_many_others_were_in_progress() -> None:
    """Two start at the same time, and w0 counts as the first."""
    begun = [(0.0, 3.0), (0.0, 1.0), (2.0, 4.0), (5.0, 6.0)]
    spans = tuple(
        Span("cold start", WorkerId(f"w{n}"), None, *when) for n, when in enumerate(begun)
    )
    block = encode_samples(WORKFLOW, {span.worker: R for span in spans}, Timeline(spans, 6.0), {})
    found = decode_samples(block).samples
    assert [s.nbytes for s in found if s.kind == "cold start"] == [0, 1, 1, 0]


def test_a_run_in_which_nothing_started_teaches_nothing() -> None:
    assert samples(Timeline((), 1.0)) == []


def test_tasks_of_another_plan_are_ignored() -> None:
    stranger = Timeline((Span("execute", WorkerId("w9"), LOAD, 0.0, 1.0),), 1.0)
    assert samples(stranger) == []


def test_a_large_run_teaches_no_more_than_its_share() -> None:
    fan = Workflow.of(*[load(str(i)) for i in range(10 * MOST)])
    spans = [Span("execute", w0, t, i, i + 1, 1.0, i) for i, t in enumerate(fan.calls)]
    block = encode_samples(fan, {w0: R}, Timeline(tuple(spans), 1.0), {})
    found = decode_samples(block).samples
    assert len(found) == MOST
    assert {found[0].output_nbytes, found[-1].output_nbytes} == {0, 10 * MOST - 1}
    assert len(block) < 30 * MOST


def test_a_damaged_block_is_an_error() -> None:
    with pytest.raises(ShoalError, match="damaged"):
        decode_samples(b"something else")
    with pytest.raises(ShoalError, match="damaged"):
        decode_samples(encode_samples(WORKFLOW, {w0: R}, TIMELINE, {})[:-4])


def block(platform: str, *costs: tuple[str, str]) -> Samples:
    """A run that measured these costs: a kind and a name each."""
    return Samples("f", [Sample(*cost, -1, R, 0, 1.0, 0.0, 0) for cost in costs], platform)


def test_a_block_says_where_it_was_measured() -> None:
    for platform in ("", "lambda://shoal"):
        encoded = encode_samples(WORKFLOW, {w0: R}, TIMELINE, {}, None, platform)
        assert decode_samples(encoded).platform == platform


def test_samples_from_elsewhere_count_only_where_there_are_none_from_here() -> None:
    here = block("slurm://", ("execute", "load"), ("cold start", FIRST), ("fetch", ""))
    elsewhere = block(
        "", ("execute", "load"), ("execute", "count"), ("cold start", ""), ("warm start", ""),
        ("fetch", ""), ("save", ""),
    )  # fmt: skip
    assert measured_on("slurm://", [elsewhere, here]) == [
        block("", ("execute", "count"), ("warm start", ""), ("save", "")),
        here,
    ]
    assert measured_on("lambda://shoal", [elsewhere, here]) == [elsewhere, here]


def test_a_run_elsewhere_that_teaches_nothing_new_is_left_out() -> None:
    here, elsewhere = (block(name, ("execute", "load")) for name in ("slurm://", ""))
    assert measured_on("slurm://", [elsewhere, here]) == [here]


def test_the_memory_that_a_task_needs_is_learnt_anywhere() -> None:
    here, elsewhere = (block(name, ("memory", "load")) for name in ("slurm://", ""))
    assert measured_on("slurm://", [elsewhere, here]) == [elsewhere, here]
