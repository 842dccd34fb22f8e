"""Invocations travel as JSON, and what doesn't fit is refused with a reason."""

import json
import traceback
from dataclasses import asdict, replace
from typing import Any

import pytest

from shoal.errors import GatewayRefused, StoreRefused, StoreUnavailable
from shoal.platform.base import Invocation, final_error
from shoal.types import Resources, RunId, WorkerId

INVOCATION = Invocation(
    run=RunId("0102-030405-abcdef"),
    worker=WorkerId("w1"),
    epoch=2,
    memory_mb=512,
    cpus=0.5,
    store="redis://localhost",
    key="00ff",
    session="s1",
    path=("/a", "/b"),
    folder="/c",
    part="cGFydA==",
    preload=("numpy",),
    latency=0.03,
    sent=12.5,
)


def test_an_invocation_arrives_as_it_was_sent() -> None:
    assert Invocation.from_json(INVOCATION.to_json()) == INVOCATION
    assert Invocation.from_json(INVOCATION.to_json().encode()) == INVOCATION


def test_what_may_be_left_out_has_defaults() -> None:
    least = {name: asdict(INVOCATION)[name] for name in ("run", "worker", "epoch", "memory_mb",
             "cpus", "store", "key", "session")}  # fmt: skip
    found = Invocation.from_dict(least)
    assert found == replace(
        INVOCATION, path=(), folder="", part=None, preload=(), latency=0.0, sent=0.0
    )


def test_it_knows_the_resources() -> None:
    assert INVOCATION.resources == Resources(512, 0.5)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"text"', "[" * 100_000, b"\xff"])
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(GatewayRefused, match="must be"):
        Invocation.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", 7),
        ("run", None),
        ("worker", ["w1"]),
        ("epoch", "1"),
        ("epoch", 1.5),
        ("epoch", True),
        ("memory_mb", 1.5),
        ("memory_mb", 1),
        ("memory_mb", -1),
        ("cpus", "many"),
        ("cpus", 0),
        ("cpus", -1.0),
        ("cpus", float("nan")),
        ("cpus", float("inf")),
        ("path", "/a"),
        ("path", ["/a", 7]),
        ("preload", {}),
        ("part", 7),
        ("shared", False),
        ("sent", "now"),
    ],
)
def test_ill_typed_and_impossible_fields_are_refused_and_named(name: str, value: Any) -> None:
    sent = json.loads(INVOCATION.to_json()) | {name: value}
    with pytest.raises(GatewayRefused, match=name):
        Invocation.from_json(json.dumps(sent))


def test_missing_and_unknown_fields_are_named() -> None:
    sent = json.loads(INVOCATION.to_json())
    del sent["worker"]
    with pytest.raises(GatewayRefused, match=r"lacks worker\.$"):
        Invocation.from_dict(dict(sent))
    with pytest.raises(GatewayRefused, match="lacks worker and has unknown fields colour, size"):
        Invocation.from_dict(sent | {"colour": "red", "size": 1})


@pytest.mark.parametrize("run", ["", "-", "..", "../x", "a/b", "a.b", "a b", "é", "a" * 101, "a\n"])
def test_a_run_that_could_name_other_files_is_refused(run: str) -> None:
    with pytest.raises(GatewayRefused, match="letters, digits and hyphens"):
        Invocation.from_dict(json.loads(INVOCATION.to_json()) | {"run": run})


def test_error_that_ended_a_worker_is_told_from_its_causes() -> None:
    def told(error: BaseException, cause: BaseException) -> str:
        error.__cause__ = cause
        return "".join(traceback.format_exception(error))

    refused, away = StoreRefused("memory\nis full"), StoreUnavailable("not answered")
    assert final_error(told(refused, away)) == (StoreRefused, "memory\nis full")
    assert final_error(told(away, StoreRefused("CLUSTERDOWN for now"))) is None
    assert final_error("ValueError: no") is None
