"""Contexts and starts are sent as JSON; invalid ones are rejected with a reason."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from shoal.clock import RealClock
from shoal.errors import GatewayRefused
from shoal.execution.pool import UNBOUNDED, Bound
from shoal.platform.invocation import (
    CacheAccess,
    Invocation,
    PythonEnvironment,
    RunContext,
    RunSettings,
    SandboxMessage,
    Start,
    StartRequest,
    UserCode,
    WarmUpRequest,
    checked,
    from_json,
    kind_of,
    schemas,
    to_json,
    valid_name,
)
from shoal.storage.base import LEASE, Claim
from shoal.storage.cache import CacheLocation
from shoal.types import Resources, RunId, WorkerId

SECRETS = ("redis://:password@localhost", b"the run's key", b"the cache's key", b"a part", b"given")
CONTEXT = RunContext(
    run=RunId("0102-030405-abcdef"),
    key=SECRETS[1],
    store=SECRETS[0],
    code=UserCode(session="s1", path=("/a", "/b"), folder="/c", preload=("numpy",)),
    settings=RunSettings(latency=0.03, check_inputs=True, workers=3),
    cache=CacheAccess(where="/cache", key=SECRETS[2], nbytes=10),
    environment=PythonEnvironment(python="3.11", shoal="0.1.0", packages={"numpy": "1.26.4"}),
    shared="/dev/shm/x",
    detached=True,
)
START = Start(
    worker=WorkerId("w1"),
    epoch=2,
    memory_mb=512,
    cpus=0.5,
    part=SECRETS[3],
    inputs=SECRETS[4],
    sent=12.5,
)
REQUEST = StartRequest(context=CONTEXT, starts=(START, START))


def body(**changes: Any) -> Any:
    """Return a request as decoded JSON, changed at a path such as `starts.0.epoch`."""
    found = json.loads(to_json(REQUEST))
    for path, value in changes.items():
        *way, last = path.split("__")
        target = found
        for step in way:
            target = target[int(step) if step.isdecimal() else step]
        target[last] = value
    return found


@pytest.mark.parametrize(
    "sent",
    [
        REQUEST,
        CONTEXT,
        START,
        WarmUpRequest(context=CONTEXT, memory_mb=64, cpus=1.5, count=3),
        SandboxMessage(context=CONTEXT, start=START, gateway="url", token="t", sandbox="warm"),
    ],
)
def test_a_message_arrives_unchanged(sent: Any) -> None:
    assert from_json(to_json(sent), type(sent)) == sent
    assert from_json(to_json(sent).decode(), type(sent)) == sent


def test_a_request_contains_the_context_once() -> None:
    assert to_json(REQUEST).count(b'"context"') == 1


def test_a_path_that_is_not_utf_8_arrives_unchanged() -> None:
    code = UserCode(session="s1", path=("/caf\udce9",), folder="/caf\udce9")
    assert from_json(to_json(code), UserCode) == code


def test_optional_fields_have_defaults() -> None:
    least = {"run": "r", "key": "AA==", "store": "redis://x", "code": {"session": "s"}}
    context = checked(least, RunContext)
    assert context.settings.lease == LEASE
    assert context == RunContext(
        run=RunId("r"), key=b"\0", store="redis://x", code=UserCode(session="s")
    )
    start = checked({"worker": "w", "epoch": 1, "memory_mb": 64, "cpus": 1}, Start)
    assert (start.part, start.inputs, start.beside, start.sent) == (None, None, False, 0.0)


def test_resources_are_the_same_in_a_first_and_a_claimed_start() -> None:
    for resources in (Resources(512), Resources(512, 0.5)):
        start = Start.first(WorkerId("w"), resources, 1.0)
        assert start.resources == resources
        claim = Claim(WorkerId("w"), 2, kind_of(resources))
        assert Start.claimed(claim, 1.0).resources == resources


def test_a_start_that_waited_for_a_sandbox_counts_from_when_it_was_there() -> None:
    """By the store's clock, whatever the wall clock of the gateway shows."""
    start, clock = Start.first(WorkerId("w"), Resources(512), 1_000.0), RealClock(2_000.0)
    at_once = Invocation(context=CONTEXT, start=start)
    assert at_once.sent(clock) == 1_000.0
    waited = Invocation(context=CONTEXT, start=start, served=time.monotonic())
    assert waited.sent(clock) == pytest.approx(2_000.0 + waited.served)


def test_a_twins_start_counts_against_no_limit() -> None:
    invocation = Invocation(context=CONTEXT, start=START)
    assert invocation.bound == Bound(CONTEXT.run, 3)
    beside = checked(json.loads(to_json(START)) | {"beside": True}, Start)
    assert Invocation(context=CONTEXT, start=beside).bound == UNBOUNDED


def test_the_location_of_the_cache_arrives_unchanged() -> None:
    location = CacheLocation("/cache", b"key", 7)
    access = CacheAccess.of(location)
    assert access is not None
    assert access.location == location
    assert CacheAccess.of(None) is None


def test_no_repr_contains_a_secret() -> None:
    for shown in (CONTEXT, START, REQUEST, Invocation(context=CONTEXT, start=START)):
        for secret in SECRETS:
            text = secret if isinstance(secret, str) else secret.decode()
            assert text not in repr(shown)
            assert text.encode().hex() not in repr(shown)


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000])
def test_invalid_json_is_rejected(text: str | bytes) -> None:
    with pytest.raises(GatewayRefused, match="isn't JSON"):
        from_json(text, StartRequest)


@pytest.mark.parametrize("text", ["[]", "null", "7", '"text"', '{"\\ud800": 1}'])
def test_json_that_is_no_request_is_rejected(text: str) -> None:
    with pytest.raises(GatewayRefused, match=r"doesn't match its schema: .*/openapi\.json"):
        from_json(text, StartRequest)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("context__run", 7),
        ("context__run", None),
        ("context__key", "not base64"),
        ("context__code__path", "/a"),
        ("context__code__path", ["/a", 7]),
        ("context__code__path", ["/a\0"]),
        ("context__code__path", ["/\ud800"]),
        ("context__code__preload", {}),
        ("context__code__session", "../s"),
        ("context__shared", False),
        ("context__farm", 1),
        ("context__cache__nbytes", -1),
        ("context__settings__lease", float("inf")),
        ("context__started", 10**400),
        ("starts", []),
        ("starts__0__worker", ["w1"]),
        ("starts__0__worker", "\ud800"),
        ("starts__1__epoch", "1"),
        ("starts__1__epoch", 1.5),
        ("starts__1__epoch", True),
        ("starts__0__memory_mb", 1.5),
        ("starts__0__memory_mb", 1),
        ("starts__0__memory_mb", -1),
        ("starts__0__cpus", "many"),
        ("starts__0__cpus", 0),
        ("starts__0__cpus", -1.0),
        ("starts__0__cpus", float("nan")),
        ("starts__0__cpus", float("inf")),
        ("starts__0__part", 7),
        ("starts__0__sent", "now"),
    ],
)
def test_invalid_fields_are_rejected_with_their_location(path: str, value: Any) -> None:
    located = path.replace("__0", "[0]").replace("__1", "[1]").replace("__", ".")
    with pytest.raises(GatewayRefused) as refusal:
        checked(body(**{path: value}), StartRequest)
    assert f"at `$.{located}" in str(refusal.value)


def test_missing_and_unknown_fields_are_named() -> None:
    sent = body()
    del sent["starts"][0]["worker"]
    with pytest.raises(GatewayRefused, match=r"missing required field `worker` - at .*\[0\]"):
        checked(sent, StartRequest)
    with pytest.raises(GatewayRefused, match=r"unknown field `colour` - at `\$\.context`"):
        checked(body(context__colour="red"), StartRequest)


@pytest.mark.parametrize("run", ["", "-", "..", "../x", "a/b", "a.b", "a b", "é", "a" * 101, "a\n"])
def test_a_run_id_that_could_name_other_files_is_rejected(run: str) -> None:
    assert not valid_name(run)
    with pytest.raises(GatewayRefused, match=r"(letters, digits and hyphens|length <= 100).*run`"):
        checked(body(context__run=run), StartRequest)


def test_the_schema_contains_the_checked_bounds() -> None:
    found = schemas((StartRequest, WarmUpRequest))
    assert found.keys() == {
        "StartRequest", "WarmUpRequest", "RunContext", "UserCode", "RunSettings", "CacheAccess",
        "FleetMember", "PythonEnvironment", "Start",
    }  # fmt: skip
    assert all(schema["additionalProperties"] is False for schema in found.values())
    assert found["Start"]["required"] == ["worker", "epoch", "memory_mb", "cpus"]
    assert found["Start"]["properties"]["cpus"] == {
        "type": "number", "exclusiveMinimum": 0, "maximum": 4096,
        "description": "The worker's CPUs.",
    }  # fmt: skip
    for schema in found.values():
        for name, field in schema["properties"].items():
            assert field.keys() & {"description", "$ref", "anyOf", "items"}, name


MESSAGES_IN_THREADS = """
import sys, threading
from msgspec import defstruct
from shoal.platform.invocation import checked

sys.setswitchinterval(1e-6)
for _ in range(100):
    inner = defstruct("Inner", [("a", int), ("b", tuple[int, ...])])
    outer = defstruct("Outer", [("inner", inner), ("more", dict[str, inner])])
    found = {"inner": {"a": 1, "b": [2]}, "more": {"x": {"a": 1, "b": []}}}
    gate = threading.Barrier(8)

    def check():
        gate.wait()
        checked(found, outer)

    threads = [threading.Thread(target=check) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


@pytest.mark.real
def test_the_first_messages_of_a_kind_may_arrive_in_several_threads() -> None:
    """msgspec crashes if threads build the same decoder at once."""
    assert subprocess.run([sys.executable, "-c", MESSAGES_IN_THREADS], check=False).returncode == 0


@pytest.mark.parametrize("cpus", [1, 1.0])
def test_equal_resources_are_of_one_kind(cpus: float) -> None:
    kind_of.cache_clear()
    assert kind_of(Resources(256, cpus=cpus)) == "256 1.0"
