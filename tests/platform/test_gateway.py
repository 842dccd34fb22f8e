"""The local gateway: invocations, sandboxes that die, and their output."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from observing import TIMEOUT, branch_of, eventually, exists, outside, parent
from platform_entries import TASK
from platform_examples import Caller, gateway, served
from shoal.errors import GatewayRefused
from shoal.platform.gateway import LocalGateway
from shoal.platform.sandbox_env import hidden_folder, home_of
from shoal.storage.base import Opening
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.keys import CLIENT
from shoal.storage.letters import WorkerLost
from shoal.storage.redis import RedisStore
from shoal.types import Loss, LossReason, RunId, WorkerId

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
    """A store with an open run."""
    server = EmbeddedServer()
    store = RedisStore(server.url)
    store.open(RUN, Opening([WorkerId("w0")], restarts=0))
    yield store
    store.close(RUN, [WorkerId("w0")])
    store.disconnect()
    server.close()


def loss(store: RedisStore) -> Loss:
    """Return what the client is told about a lost worker."""
    ((_, letter),) = store.receive(RUN, CLIENT, "", TIMEOUT)
    assert isinstance(letter, WorkerLost)
    assert letter.worker == "w0"
    return letter.loss


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


def test_a_run_has_no_more_running_workers_than_allowed(
    local: LocalGateway, caller: Caller
) -> None:
    caller.invoke(*(caller.job(f"w{number}", "await go", workers=1) for number in range(3)))
    caller.await_notes("began", 1)
    caller.invoke(caller.job("other", "await go", run=RunId("run-2"), workers=1))
    caller.await_notes("began", 2)  # waiting workers of another run don't block it
    status = local.status()
    assert (status["busy"], status["queued"]) == (2, 2)
    caller.let_go()
    caller.await_quiet(RUN, RunId("run-2"))
    assert len(caller.notes("began")) == 4


def test_the_worker_limit_of_a_run_travels_with_its_invocations(tmp_path: Path) -> None:
    with gateway(tmp_path, capacity=4) as local, served(local) as platform:
        caller = Caller(platform, tmp_path)
        jobs = [caller.job(f"w{number}", "await go", workers=2) for number in range(6)]
        platform.fan_out(jobs[0].context, [job.start for job in jobs])
        assert eventually(lambda: local.status()["queued"] == 4)
        assert local.status()["busy"] == 2
        caller.let_go()
        assert eventually(lambda: len(caller.notes("began")) == 6)
        caller.await_quiet()


@pytest.mark.parametrize("sent", [0.0, 1_000.0])
def test_a_start_is_timed_by_its_gateway_if_nobody_says_when_it_was_sent(
    caller: Caller, tmp_path: Path, sent: float
) -> None:
    before = time.monotonic()
    caller.carry_out(caller.job(part="served at", sent=sent))
    served = float((tmp_path / "at").read_text())
    assert served == 0.0 if sent else before <= served <= time.monotonic()


def test_a_start_that_waits_is_timed_by_its_gateway(caller: Caller, tmp_path: Path) -> None:
    caller.invoke(*(caller.job(f"w{number}", "await go", sent=1_000.0) for number in range(2)))
    caller.await_notes("began", 2)
    caller.invoke(caller.job("late", "served at", sent=1_000.0))
    before = time.monotonic()
    caller.let_go()
    caller.await_quiet()
    assert before <= float((tmp_path / "at").read_text()) <= time.monotonic()


def test_a_twin_counts_against_no_limit(local: LocalGateway, caller: Caller) -> None:
    caller.invoke(caller.job("w0", "await go", workers=1))
    caller.invoke(caller.job("w0", "await go", workers=1, epoch=2, beside=True))
    caller.await_notes("began", 2)
    caller.let_go()
    caller.await_quiet()


def test_a_later_start_supersedes_one_that_waits(local: LocalGateway, caller: Caller) -> None:
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


def test_idle_sandboxes_expire(tmp_path: Path) -> None:
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
    assert loss(store) == Loss(LossReason.DIED, (TASK,), 256, 1, code=3)
    assert local.status()["invocations"]["died"] == 1


def test_a_sandbox_that_is_killed_is_reported_with_the_signal(
    caller: Caller, store: RedisStore
) -> None:
    caller.invoke(caller.job(part="await go", store=store.url))
    os.kill(outside(caller.await_notes("began")[0]["sandbox"]), signal.SIGKILL)
    found = loss(store)
    assert (found.reason, found.code) == (LossReason.DIED, -signal.SIGKILL)


def test_an_entry_point_that_fails_is_reported_with_its_traceback(
    caller: Caller, store: RedisStore
) -> None:
    caller.carry_out(caller.job(part="fail on purpose", store=store.url))
    found = loss(store)
    assert found.reason is LossReason.ERROR
    assert "RuntimeError: on purpose" in found.detail


def test_a_cancelled_worker_is_not_reported(caller: Caller, store: RedisStore) -> None:
    caller.invoke(caller.job(part="await go", store=store.url))
    pid = outside(caller.await_notes("began")[0]["sandbox"])
    caller.platform.cancel(RUN)
    assert not exists(pid)
    assert store.receive(RUN, CLIENT, "", 0) == []


def test_losing_a_worker_of_an_ended_run_causes_no_warning(
    caller: Caller, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    caller.carry_out(caller.job(part="exit 3", store=store.url, run=RunId("run-2")))
    caller.carry_out(caller.job(part="exit 3", store=store.url))
    assert loss(store)
    assert not caplog.records


def test_a_run_whose_store_is_gone_causes_a_warning(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caller.carry_out(caller.job(part="exit 3", store="unix:///nowhere.sock"))
    assert eventually(lambda: caplog.messages)
    assert "cannot supervise run run-1" in caplog.messages[0]


@pytest.mark.parametrize("branch", [False, True])
def test_the_zygote_is_replaced_when_it_dies(
    local: LocalGateway, caller: Caller, store: RedisStore, branch: bool
) -> None:
    caller.invoke(caller.job(part="await go", store=store.url))
    sandbox = outside(caller.await_notes("began")[0]["sandbox"])
    zygote = branch_of(sandbox) if branch else parent(branch_of(sandbox))
    os.kill(zygote, signal.SIGKILL)
    assert loss(store).code == -signal.SIGKILL
    assert eventually(lambda: not exists(sandbox))
    assert eventually(lambda: not Path(f"/proc/{zygote}").exists())
    assert caller.carry_out(caller.job("w1"))[-1]["worker"] == "w1"


def test_folders_of_a_killed_zygotes_sandboxes_are_deleted_without_a_new_zygote(
    caller: Caller, store: RedisStore
) -> None:
    caller.invoke(caller.job(part="await go", store=store.url))
    branch = branch_of(outside(caller.await_notes("began")[0]["sandbox"]))
    home = home_of(str(hidden_folder()), branch)
    assert [*home.iterdir()]
    os.kill(parent(branch), signal.SIGKILL)
    assert eventually(lambda: not home.exists())


def test_invocations_right_after_the_zygote_died_are_not_lost(
    local: LocalGateway, caller: Caller, store: RedisStore
) -> None:
    """1. The zygote dies. 2. An invocation arrives unnoticed. 3. It is executed or reported."""
    caller.carry_out(caller.job("w1", session="s2"))
    zygote = parent(branch_of(outside(caller.notes("began")[0]["sandbox"])))
    with local._lock:
        os.kill(zygote, signal.SIGKILL)
        assert eventually(lambda: not exists(zygote))
        caller.invoke(caller.job(store=store.url))
    assert loss(store).reason is LossReason.DIED
    caller.await_quiet()
    assert caller.carry_out(caller.job("w2"))[-1]["worker"] == "w2"


def test_if_no_sandbox_can_be_created_the_run_is_told_and_the_gateway_continues(
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
        patch.setattr("shoal.platform.sandbox.shared_page", refuse)
        caller.prewarm(caller.job(), 1)
        assert set(os.listdir("/proc/self/fd")) <= set(files)
        caller.invoke(caller.job(store=store.url))
    assert loss(store).reason is LossReason.ERROR
    assert "could not create a sandbox: [Errno 24] Too many open files" in caplog.messages
    assert not local.active(RUN)
    assert local.status()["busy"] == 0
    assert caller.carry_out(caller.job("w1"))[-1]["event"] == "ended"


def test_all_output_is_logged_even_without_a_final_newline(
    local: LocalGateway, caller: Caller
) -> None:
    caller.carry_out(caller.job(part="flood 20000"))
    lines = [line.text for line in local.logs(RUN)]
    assert lines[:20000] == [f"line {number}" for number in range(20000)]
    assert "".join(lines[20000:]) == "x" * 1_000_000
    assert max(map(len, lines)) < 200_000


def test_a_worker_that_closes_its_streams_does_no_harm(local: LocalGateway, caller: Caller) -> None:
    caller.carry_out(caller.job("w0", "close"))
    caller.carry_out(caller.job("w1", "print again"))
    assert [line["start"] for line in caller.notes("ended")] == ["cold", "warm"]
    assert {line.text for line in local.logs(RUN)} == {"again", "AGAIN"}


def test_unwritable_logs_cause_one_warning_and_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        for name in ("w0", "w1"):
            caller.carry_out(caller.job(name, "print text"))
        assert len(caller.notes("ended")) == 2
    warnings = [text for text in caplog.messages if "can't be stored" in text]
    assert len(warnings) == 1


def test_a_closed_gateway_rejects_requests_and_leaves_no_process(tmp_path: Path) -> None:
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        caller.invoke(caller.job("w0", "await go"), caller.job("w1", "await go"))
        pids = [line["sandbox"] for line in caller.await_notes("began", 2)]
        local.close()
        assert not any(map(exists, pids))
        with pytest.raises(GatewayRefused, match="closed"):
            caller.invoke(caller.job())
        with pytest.raises(GatewayRefused, match="closed"):
            caller.prewarm(caller.job(), 1)
        local.close()


def test_what_was_printed_just_before_the_gateway_closes_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's result may reach its client before the gateway has read the last lines."""
    monkeypatch.setattr(LocalGateway, "_on_output", lambda *_, **__: None)
    monkeypatch.setattr(LocalGateway, "_on_answer", lambda *_: None)
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        caller.invoke(caller.job("w0", "print text"))
        caller.await_notes("ended", 1)
        local.close()
        assert {line.text for line in local.logs(RUN)} == {"text", "TEXT"}


def test_a_sandbox_that_cannot_be_set_up_says_why_in_the_log(
    local: LocalGateway, caller: Caller
) -> None:
    caller.carry_out(caller.job("w0"))
    if not local.status()["limits"].startswith("cgroup"):
        pytest.skip("no control groups here")
    caller.carry_out(caller.job(cpus=1e300))
    assert any("Error" in line.text for line in local.logs(RUN))
