"""The local gateway: what becomes of jobs, of sandboxes that die, and of what they print."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import PATIENCE, branch_of, eventually, exists, outside, parent
from platform_entries import TASK
from platform_examples import Caller, gateway, served
from shoal.errors import GatewayRefused
from shoal.platform.gateway import LocalGateway
from shoal.platform.housing import hidden_folder, home_of
from shoal.platform.sandbox import PAGE, RunningTasks
from shoal.platform.sandboxes import Sandbox
from shoal.storage.base import Opening
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.keys import CLIENT
from shoal.storage.redis import RedisStore
from shoal.types import Resources, RunId, WorkerId

pytestmark = pytest.mark.real

RUN = RunId("run-1")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalGateway]:
    with gateway(tmp_path, capacity=2) as local:
        yield local


@pytest.fixture
def caller(local: LocalGateway, tmp_path: Path) -> Caller:
    return Caller(local, tmp_path)


@pytest.fixture
def store() -> Iterator[RedisStore]:
    """A store in which a run has been opened."""
    server = EmbeddedServer()
    store = RedisStore(server.url)
    store.open(RUN, Opening([WorkerId("w0")], restarts=0))
    yield store
    store.close(RUN, [WorkerId("w0")])
    store.disconnect()
    server.close()


def loss(store: RedisStore) -> dict[str, Any]:
    """What the client is told of a worker that was lost."""
    letters = store.receive(RUN, CLIENT, "", PATIENCE)
    assert [(letter.kind, letter.name) for letter in letters] == [("lost", "w0")]
    found: dict[str, Any] = json.loads(bytes(letters[0].parts[0]))
    return found


def test_status_counts_sandboxes_and_invocations(local: LocalGateway, caller: Caller) -> None:
    caller.invoke(*(caller.job(f"w{number}", "await go") for number in range(3)))
    caller.await_notes("began", 2)
    status = local.status()
    assert (status["capacity"], status["busy"], status["idle"], status["queued"]) == (2, 2, 0, 1)
    assert status["runs"] == [RUN]
    caller.let_go()
    caller.await_quiet()
    status = local.status()
    assert (status["busy"], status["idle"], status["queued"], status["runs"]) == (0, 2, 0, [])
    assert status["invocations"] == {"cold": 2, "warm": 1, "died": 0, "out_of_memory": 0}
    assert status["busy_seconds"] > 0


def test_a_run_has_no_more_workers_at_work_than_it_may(local: LocalGateway, caller: Caller) -> None:
    caller.invoke(*(caller.job(f"w{number}", "await go", workers=1) for number in range(3)))
    caller.await_notes("began", 1)
    caller.invoke(caller.job("other", "await go", run=RunId("run-2"), workers=1))
    caller.await_notes("began", 2)  # it isn't held up by those that wait
    status = local.status()
    assert (status["busy"], status["queued"]) == (2, 2)
    caller.let_go()
    caller.await_quiet(RUN, RunId("run-2"))
    assert len(caller.notes("began")) == 4


def test_the_bound_of_a_run_travels_with_its_invocations(tmp_path: Path) -> None:
    with gateway(tmp_path, capacity=4) as local, served(local) as platform:
        caller = Caller(platform, tmp_path)
        like = caller.job("w0", "await go", workers=2)
        platform.fan_out(like, [WorkerId(f"w{number}") for number in range(6)])
        assert eventually(lambda: local.status()["queued"] == 4)
        assert local.status()["busy"] == 2
        caller.let_go()
        assert eventually(lambda: len(caller.notes("began")) == 6)
        caller.await_quiet()


def test_a_second_start_beside_the_first_takes_no_place(
    local: LocalGateway, caller: Caller
) -> None:
    caller.invoke(caller.job("w0", "await go", workers=1))
    caller.invoke(caller.job("w0", "await go", workers=1, epoch=2, beside=1))
    caller.await_notes("began", 2)
    caller.let_go()
    caller.await_quiet()


def test_a_start_that_waits_is_superseded_by_a_later_one(
    local: LocalGateway, caller: Caller
) -> None:
    caller.invoke(caller.job("w0", "await go", workers=1), caller.job("w1", workers=1))
    caller.await_notes("began", 1)
    caller.invoke(caller.job("w1", workers=1, epoch=2))
    assert local.status()["queued"] == 1
    caller.let_go()
    caller.await_quiet()
    assert len(caller.notes("began")) == 2


def test_room_is_made_for_more_workers(local: LocalGateway, caller: Caller) -> None:
    caller.invoke(*(caller.job(f"w{number}", "await go") for number in range(2)))
    assert (local.make_room(1), local.make_room(3), local.capacity) == (2, 3, 3)
    caller.invoke(caller.job("w2", "await go"))
    caller.await_notes("began", 3)
    caller.let_go()
    caller.await_quiet()


def test_a_round_trip_to_the_gateway_is_delayed_once(tmp_path: Path) -> None:
    with gateway(tmp_path, latency=3600.0) as slow, served(slow) as platform:
        caller = Caller(platform, tmp_path)
        assert caller.carry_out(caller.job())


def test_idle_sandboxes_end_by_themselves(tmp_path: Path) -> None:
    with gateway(tmp_path, idle_seconds=0.05) as local:
        caller = Caller(local, tmp_path)
        caller.invoke(caller.job(part="await go"))
        pid = outside(caller.await_notes("began")[0]["sandbox"])
        caller.let_go()
        assert eventually(lambda: not exists(pid))
        assert eventually(lambda: local.status()["idle"] == 0)


def test_a_sandbox_that_dies_is_reported_with_what_it_was_doing(
    local: LocalGateway, caller: Caller, store: RedisStore
) -> None:
    caller.carry_out(caller.job(part="exit 3", store=store.url))
    assert loss(store) == {
        "reason": "died",
        "code": 3,
        "running": [TASK],
        "memory_mb": 256,
        "epoch": 1,
    }
    assert local.status()["invocations"]["died"] == 1


def test_a_sandbox_that_is_killed_is_reported_with_the_signal(
    caller: Caller, store: RedisStore
) -> None:
    caller.invoke(caller.job(part="await go", store=store.url))
    os.kill(outside(caller.await_notes("began")[0]["sandbox"]), signal.SIGKILL)
    found = loss(store)
    assert (found["reason"], found["code"]) == ("died", -signal.SIGKILL)


def test_an_entry_that_breaks_is_reported_with_its_traceback(
    caller: Caller, store: RedisStore
) -> None:
    caller.carry_out(caller.job(part="fail on purpose", store=store.url))
    found = loss(store)
    assert found["reason"] == "error"
    assert "RuntimeError: on purpose" in found["detail"]


def test_a_cancelled_worker_is_not_reported(caller: Caller, store: RedisStore) -> None:
    caller.invoke(caller.job(part="await go", store=store.url))
    pid = outside(caller.await_notes("began")[0]["sandbox"])
    caller.platform.cancel(RUN)
    assert not exists(pid)
    assert store.receive(RUN, CLIENT, "", 0) == []


def test_nobody_is_warned_of_a_worker_whose_run_is_over(
    caller: Caller, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    caller.carry_out(caller.job(part="exit 3", store=store.url, run=RunId("run-2")))
    caller.carry_out(caller.job(part="exit 3", store=store.url))
    assert loss(store)
    assert not caplog.records


def test_a_run_whose_store_is_gone_gets_a_warning(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caller.carry_out(caller.job(part="exit 3", store="unix:///nowhere.sock"))
    assert eventually(lambda: caplog.messages)
    assert "run run-1 can't be tended" in caplog.messages[0]


@pytest.mark.parametrize("branch", [False, True])
def test_the_zygote_is_replaced_when_it_dies(
    local: LocalGateway, caller: Caller, store: RedisStore, branch: bool
) -> None:
    caller.invoke(caller.job(part="await go", store=store.url))
    sandbox = outside(caller.await_notes("began")[0]["sandbox"])
    zygote = branch_of(sandbox) if branch else parent(branch_of(sandbox))
    os.kill(zygote, signal.SIGKILL)
    assert loss(store)["code"] == -signal.SIGKILL
    assert eventually(lambda: not exists(sandbox))
    assert eventually(lambda: not Path(f"/proc/{zygote}").exists())
    assert caller.carry_out(caller.job("w1"))[-1]["worker"] == "w1"


def test_folders_of_a_killed_zygotes_sandboxes_are_deleted_though_no_other_one_is_started(
    caller: Caller, store: RedisStore
) -> None:
    caller.invoke(caller.job(part="await go", store=store.url))
    branch = branch_of(outside(caller.await_notes("began")[0]["sandbox"]))
    home = home_of(str(hidden_folder()), branch)
    assert [*home.iterdir()]
    os.kill(parent(branch), signal.SIGKILL)
    assert eventually(lambda: not home.exists())


def test_invocations_right_after_the_zygote_died_are_not_forgotten(
    local: LocalGateway, caller: Caller, store: RedisStore
) -> None:
    """1. The zygote dies. 2. A job comes before the gateway notices. 3. It is run or reported."""
    caller.carry_out(caller.job("w1", session="s2"))
    zygote = parent(branch_of(outside(caller.notes("began")[0]["sandbox"])))
    with local._lock:
        os.kill(zygote, signal.SIGKILL)
        assert eventually(lambda: not exists(zygote))
        caller.invoke(caller.job(store=store.url))
    assert loss(store)["reason"] == "died"
    caller.await_quiet()
    assert caller.carry_out(caller.job("w2"))[-1]["worker"] == "w2"


def test_when_no_sandbox_can_be_made_the_run_is_told_and_the_gateway_goes_on(
    local: LocalGateway,
    caller: Caller,
    store: RedisStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(nbytes: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    files = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr("shoal.platform.gateway.shared_page", refuse)
        caller.platform.prewarm(caller.job(), 1)
        assert set(os.listdir("/proc/self/fd")) <= set(files)
        caller.invoke(caller.job(store=store.url))
    assert loss(store)["reason"] == "error"
    assert "no sandbox could be made: [Errno 24] Too many open files" in caplog.messages
    assert not local.active(RUN)
    assert local.status()["busy"] == 0
    assert caller.carry_out(caller.job("w1"))[-1]["event"] == "ended"


def test_everything_printed_is_kept_also_without_an_end_of_line(
    local: LocalGateway, caller: Caller
) -> None:
    caller.carry_out(caller.job(part="flood 20000"))
    lines = [line.text for line in local.logs(RUN)]
    assert lines[:20000] == [f"line {number}" for number in range(20000)]
    assert "".join(lines[20000:]) == "x" * 1_000_000
    assert max(map(len, lines)) < 200_000


def test_a_stream_that_never_ends_does_not_hold_the_gateway_up(local: LocalGateway) -> None:
    """A process that a job left behind may print faster than the gateway reads."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open("/dev/zero", "rb") as endless:
        sandbox = Sandbox(
            number=0,
            kind=(Resources(memory_mb=256), "s1"),
            control=ours,
            streams={"stdout": endless.fileno()},
            running=RunningTasks(mmap.mmap(-1, PAGE)),
            zygote=(1, "s1"),
            last_run=(RUN, "w0"),
        )
        local._drain(sandbox)
    assert 1 < len(local.logs(RUN)) < 100


def test_a_job_that_closes_its_streams_spoils_nothing(local: LocalGateway, caller: Caller) -> None:
    caller.carry_out(caller.job("w0", "close"))
    caller.carry_out(caller.job("w1", "print again"))
    assert [line["start"] for line in caller.notes("ended")] == ["cold", "warm"]
    assert {line.text for line in local.logs(RUN)} == {"again", "AGAIN"}


def test_logs_that_cannot_be_written_give_one_warning_and_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        for name in ("w0", "w1"):
            caller.carry_out(caller.job(name, "print text"))
        assert len(caller.notes("ended")) == 2
    warnings = [text for text in caplog.messages if "can't be kept" in text]
    assert len(warnings) == 1


def test_a_closed_gateway_refuses_and_leaves_no_process(tmp_path: Path) -> None:
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        caller.invoke(caller.job("w0", "await go"), caller.job("w1", "await go"))
        pids = [line["sandbox"] for line in caller.await_notes("began", 2)]
        local.close()
        assert not any(map(exists, pids))
        with pytest.raises(GatewayRefused, match="closed"):
            caller.invoke(caller.job())
        with pytest.raises(GatewayRefused, match="closed"):
            local.prewarm(caller.job(), 1)
        local.close()


def test_a_sandbox_that_cannot_be_set_up_says_why_in_the_log(
    local: LocalGateway, caller: Caller
) -> None:
    caller.carry_out(caller.job("w0"))
    if not local.status()["limits"].startswith("cgroup"):
        pytest.skip("no control groups here")
    caller.carry_out(caller.job(cpus=1e300))
    assert any("Error" in line.text for line in local.logs(RUN))
