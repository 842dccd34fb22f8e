"""Whatever a sandbox sends or does ends at most that sandbox; the gateway and others continue."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from observing import eventually, exists, outside
from platform_examples import Caller, gateway
from shoal.platform.gateway import LocalGateway
from shoal.platform.sandbox_env import hidden_folder
from shoal.platform.sandbox_output import SandboxOutput
from shoal.types import RunId

pytestmark = pytest.mark.real

OTHER = RunId("run-2")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGateway]:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with gateway(tmp_path) as local:
        yield local


@pytest.fixture
def caller(local: LocalGateway, tmp_path: Path) -> Caller:
    return Caller(local, tmp_path)


@pytest.fixture
def other(caller: Caller) -> Iterator[int]:
    """The process of another session's sandbox, which runs before and after the test."""
    caller.invoke(caller.job("other", "await go", run=OTHER, session="s2"))
    pid = outside(caller.await_notes("began")[0]["sandbox"])
    yield pid
    assert exists(pid)
    caller.let_go()
    caller.await_quiet(OTHER)
    assert [line["event"] for line in caller.notes() if line["worker"] == "other"][1:] == ["ended"]


def frame(text: str) -> str:
    """Return a frame that a sandbox sends, in hexadecimal."""
    return (len(text).to_bytes(4, "little") + text.encode()).hex()


WELL_FORMED = json.dumps({"reusable": True})


@pytest.mark.parametrize(
    "said",
    [
        frame("garbage"),
        "ffffffff" + "00" * 100,
        frame("[1, 2]"),
        frame("{}"),
        frame('{"reusable": "yes"}'),
        frame('{"reusable": true, "error": 7}'),
        frame("[" * 40_000),
        frame(WELL_FORMED) * 2,
    ],
    ids=["text", "endless", "list", "empty", "type", "error", "depth", "twice"],
)
def test_whatever_a_task_sends_to_the_gateway_only_its_sandbox_ends(
    local: LocalGateway,
    caller: Caller,
    other: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(local._supervisor, "lost", lambda job, loss, _: told.append(loss.detail))
    caller.invoke(caller.job("w1", f"say {said} for-ever"))
    bad = outside(caller.await_notes("began", 2)[-1]["sandbox"])
    assert eventually(lambda: not exists(bad))
    caller.await_quiet(RunId("run-1"))
    assert ["its sandbox was killed: " in detail for detail in told] == [True]
    assert caller.carry_out(caller.job("w2"))[-1]["worker"] == "w2"


def test_a_sandbox_that_sends_while_idle_is_killed(
    local: LocalGateway, caller: Caller, other: int
) -> None:
    """1. A task claims that its worker is done. 2. The worker is done, and reports it again."""
    caller.carry_out(caller.job("w1", f"say {frame(WELL_FORMED)}"))
    assert eventually(lambda: local.status()["idle"] == 0)
    assert caller.carry_out(caller.job("w2"))[-1]["start"] == "cold"


def test_a_sandbox_that_closes_its_connection_is_killed_and_its_worker_counts_as_lost(
    local: LocalGateway, caller: Caller, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(local._supervisor, "lost", lambda job, loss, most: told.append(loss.code))
    caller.carry_out(caller.job("w1", "hang-up for-ever"))
    assert told == [-signal.SIGKILL]


def test_a_sandbox_that_reads_nothing_blocks_nobody(
    local: LocalGateway, caller: Caller, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. An idle sandbox is stopped. 2. It is sent more than its socket holds. 3. Others work."""
    monkeypatch.setattr("shoal.platform.sandbox.BEGIN_SECONDS", 0.5)
    monkeypatch.setattr(local, "_longest_wait", 0.1)
    caller.carry_out(caller.job("w1"))
    stopped = outside(caller.notes("began")[-1]["sandbox"])
    os.kill(stopped, signal.SIGSTOP)
    large = caller.job("w2", inputs=b"x" * 8_000_000)
    caller.invoke(large)
    assert caller.carry_out(caller.job("w3", run=RunId("run-3")))[-1]["worker"] == "w3"
    caller.await_quiet()
    assert not exists(stopped)
    assert caller.notes("ended")[-1]["worker"] == "w2"  # started in another sandbox
    assert [line["worker"] for line in caller.notes("began")].count("w2") == 1


def test_a_large_invocation_reaches_a_sandbox_that_reads(
    local: LocalGateway, caller: Caller
) -> None:
    for name in ("w1", "w2"):
        caller.carry_out(caller.job(name, inputs=b"x" * 8_000_000))
    assert [line["start"] for line in caller.notes("ended")] == ["cold", "warm"]


def test_very_deep_folders_do_not_break_the_cleanup(
    local: LocalGateway, caller: Caller, other: int
) -> None:
    caller.carry_out(caller.job("w1", "dig 1500"))
    local.cool()
    assert eventually(lambda: local.status()["idle"] == 0)
    assert caller.carry_out(caller.job("w2"))[-1]["worker"] == "w2"
    local.cool()
    folders = hidden_folder() / "sandboxes"
    assert eventually(lambda: len([*folders.glob("*/*")]) == 1)  # the other sandbox's


def test_an_internal_error_while_serving_a_sandbox_ends_only_that_sandbox(
    local: LocalGateway, caller: Caller, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(SandboxOutput, "_add", fail)
        caller.carry_out(caller.job("w1", "print text"))
    assert caller.carry_out(caller.job("w2"))[-1]["worker"] == "w2"
