"""Whatever a sandbox says or does, at most that sandbox is ended; the gateway and others go on."""

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
from shoal.platform.housing import hidden_folder
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
    """The process of another session's sandbox, which is at work before and after."""
    caller.invoke(caller.job("other", "await go", run=OTHER, session="s2"))
    pid = outside(caller.await_notes("began")[0]["sandbox"])
    yield pid
    assert exists(pid)
    caller.let_go()
    caller.await_quiet(OTHER)
    assert [line["event"] for line in caller.notes() if line["worker"] == "other"][1:] == ["ended"]


def frame(text: str) -> str:
    """What a sandbox sends, in hexadecimal."""
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
        frame("[" * 100_000),
        frame(WELL_FORMED) * 2,
    ],
    ids=["text", "endless", "list", "empty", "type", "error", "depth", "twice"],
)
def test_whatever_a_task_says_to_the_gateway_only_its_sandbox_is_ended(
    local: LocalGateway,
    caller: Caller,
    other: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(local._tender, "lost", lambda job, facts, _: told.append(facts["detail"]))
    caller.invoke(caller.job("w1", f"say {said} for-ever"))
    bad = outside(caller.await_notes("began", 2)[-1]["sandbox"])
    assert eventually(lambda: not exists(bad))
    caller.await_quiet(RunId("run-1"))
    assert ["its sandbox was ended: " in detail for detail in told] == [True]
    assert caller.carry_out(caller.job("w2"))[-1]["worker"] == "w2"


def test_a_sandbox_that_speaks_while_it_is_idle_is_ended(
    local: LocalGateway, caller: Caller, other: int
) -> None:
    """1. A task says that its job is done. 2. The job is done, and says so again."""
    caller.carry_out(caller.job("w1", f"say {frame(WELL_FORMED)}"))
    assert eventually(lambda: local.status()["idle"] == 0)
    assert caller.carry_out(caller.job("w2"))[-1]["start"] == "cold"


def test_a_sandbox_that_has_hung_up_is_ended_and_its_worker_counts_as_lost(
    local: LocalGateway, caller: Caller, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(local._tender, "lost", lambda job, facts, most: told.append(facts["code"]))
    caller.carry_out(caller.job("w1", "hang-up for-ever"))
    assert told == [-signal.SIGKILL]


def test_a_sandbox_that_reads_nothing_holds_nobody_up(
    local: LocalGateway, caller: Caller, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. An idle sandbox is stopped. 2. It is given more than fits its socket. 3. Others work."""
    monkeypatch.setattr("shoal.platform.sandboxes.BEGIN_SECONDS", 0.5)
    monkeypatch.setattr(local, "_longest_wait", 0.1)
    caller.carry_out(caller.job("w1"))
    stopped = outside(caller.notes("began")[-1]["sandbox"])
    os.kill(stopped, signal.SIGSTOP)
    large = caller.job("w2", inputs="x" * 8_000_000)
    caller.invoke(large)
    assert caller.carry_out(caller.job("w3", run=RunId("run-3")))[-1]["worker"] == "w3"
    caller.await_quiet()
    assert not exists(stopped)
    assert caller.notes("ended")[-1]["worker"] == "w2"  # started elsewhere
    assert [line["worker"] for line in caller.notes("began")].count("w2") == 1


def test_a_large_job_reaches_a_sandbox_that_reads(local: LocalGateway, caller: Caller) -> None:
    for name in ("w1", "w2"):
        caller.carry_out(caller.job(name, inputs="x" * 8_000_000))
    assert [line["start"] for line in caller.notes("ended")] == ["cold", "warm"]


def test_folders_deeper_than_python_follows_end_nothing(
    local: LocalGateway, caller: Caller, other: int
) -> None:
    caller.carry_out(caller.job("w1", "dig 1500"))
    local.cool()
    assert eventually(lambda: local.status()["idle"] == 0)
    assert caller.carry_out(caller.job("w2"))[-1]["worker"] == "w2"
    local.cool()
    homes = hidden_folder() / "sandboxes"
    assert eventually(lambda: len([*homes.glob("*/*")]) == 1)  # of the other


def test_a_defect_in_serving_one_sandbox_ends_that_sandbox(
    local: LocalGateway, caller: Caller, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(local, "_take_print", fail)
        caller.carry_out(caller.job("w1", "print text"))
    assert caller.carry_out(caller.job("w2"))[-1]["worker"] == "w2"
