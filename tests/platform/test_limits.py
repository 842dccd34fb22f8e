"""Sandboxes are limited by control groups where permitted, else by resource limits."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually, exists
from platform_examples import Caller, gateway
from shoal import system
from shoal.platform import limits
from shoal.platform.limits import SandboxLimits
from shoal.storage.base import Opening
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.keys import CLIENT
from shoal.storage.letters import WorkerLost
from shoal.storage.redis import RedisStore
from shoal.types import LossReason, Resources, RunId, WorkerId

pytestmark = pytest.mark.real

RUN = RunId("run-1")
enforced = pytest.mark.skipif(
    not system.LIMITS_DATA, reason="only Linux enforces resource limits on memory"
)


@pytest.fixture(scope="module")
def machine() -> SandboxLimits:
    """This machine's control groups; skips the test if there are none."""
    found = limits.detect()
    if not found.grouped:
        pytest.skip(f"no control groups: {found.reason}")
    return found


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with gateway(tmp_path) as local:
        yield Caller(local, tmp_path)


def shown(caller: Caller, name: str, **facts: Any) -> dict[str, Any]:
    """Return what a sandbox sees of its limits."""
    caller.carry_out(caller.job(name, f"limits {name}", **facts))
    found: dict[str, Any] = json.loads((caller.folder / name).read_text())
    return found


def folders(machine: SandboxLimits, groups: str) -> dict[str, Path]:
    """Return the folders of a process's control groups, below those of all sandboxes."""
    found: dict[str, Path] = {}
    for controller, root in (("cpu", machine.cpu), ("memory", machine.memory)):
        for line in groups.splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(",") or (machine.kind == "cgroup v2" and not names):
                found[controller] = root / Path(path).name
    return found


def test_cpu_quota_and_memory_limit_are_those_requested(
    caller: Caller, machine: SandboxLimits
) -> None:
    for name, memory_mb, cpus in (("half", 256, 0.5), ("more", 300, 2.25)):
        groups = folders(machine, shown(caller, name, memory_mb=memory_mb, cpus=cpus)["groups"])
        if machine.kind == "cgroup v2":
            quota, period = (groups["cpu"] / "cpu.max").read_text().split()
            memory = (groups["memory"] / "memory.max").read_text()
        else:
            quota = (groups["cpu"] / "cpu.cfs_quota_us").read_text()
            period = (groups["cpu"] / "cpu.cfs_period_us").read_text()
            memory = (groups["memory"] / "memory.limit_in_bytes").read_text()
        assert int(quota) / int(period) == cpus
        assert int(memory) == memory_mb * 1024 * 1024


def test_each_sandbox_has_its_own_control_groups_which_end_with_it(
    caller: Caller, machine: SandboxLimits
) -> None:
    one = folders(machine, shown(caller, "one")["groups"])
    other = folders(machine, shown(caller, "other", session="s2")["groups"])
    assert {*one.values()}.isdisjoint(other.values())
    assert all(folder.is_dir() for folder in (*one.values(), *other.values()))
    caller.platform.close()
    assert not any(folder.exists() for folder in (*one.values(), *other.values()))


def test_libraries_use_as_many_threads_as_slots_up_to_the_cores(caller: Caller) -> None:
    cores = os.cpu_count() or 1
    assert shown(caller, "small", cpus=0.5)["threads"] == "1"
    assert shown(caller, "large", cpus=2.5)["threads"] == str(min(2, cores))
    assert shown(caller, "huge", cpus=500.0)["threads"] == str(cores)


@pytest.mark.skipif(limits.detect().kind == "rlimit", reason="memory isn't limited as a whole")
def test_exceeding_the_memory_limit_is_reported_as_such(caller: Caller) -> None:
    server = EmbeddedServer()
    store = RedisStore(server.url)
    try:
        store.open(RUN, Opening([WorkerId("w0")], restarts=0))
        caller.carry_out(caller.job(part="grow 1024", store=store.url, memory_mb=128))
        ((_, letter),) = store.receive(RUN, CLIENT, "", TIMEOUT)
        assert isinstance(letter, WorkerLost)
        assert (letter.loss.reason, letter.loss.memory_mb) == (LossReason.OUT_OF_MEMORY, 128)
        store.close(RUN, [WorkerId("w0")])
    finally:
        store.disconnect()
        server.close()


def test_within_the_limit_nothing_happens(caller: Caller) -> None:
    assert caller.carry_out(caller.job(part="grow 64", memory_mb=256))[-1]["event"] == "ended"


@enforced
def test_without_control_groups_memory_is_limited_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway(tmp_path, entry="platform_entries_rlimit:act") as local:
        caller = Caller(local, tmp_path)
        assert shown(caller, "one", memory_mb=300)["data"] == 300 * 1024 * 1024
        assert shown(caller, "other", memory_mb=400, cpus=2.0)["data"] == 400 * 1024 * 1024
        assert eventually(lambda: local.status()["limits"] == "rlimit")
        caller.carry_out(caller.job(part="grow 2048", memory_mb=300))
        assert len(caller.notes("ended")) == 2
    assert [
        text for text in caplog.messages if "no control groups (not permitted here)" in text
    ] == [text for text in caplog.messages if "control groups" in text]
    assert sum("control groups" in text for text in caplog.messages) == 1


@enforced
def test_without_control_groups_the_end_of_a_sandbox_leaves_others_at_work(
    tmp_path: Path,
) -> None:
    """An isolated zygote may write only to the folders of its sandboxes."""
    with gateway(tmp_path, entry="platform_entries_rlimit:act") as local:
        caller = Caller(local, tmp_path)
        caller.invoke(caller.job("w0", "await go"))
        assert eventually(lambda: len(caller.notes("began")) == 1)
        caller.invoke(caller.job("w1", "spoil", run=RunId("run-2")))
        caller.await_quiet(RunId("run-2"))
        caller.carry_out(caller.job("w2", run=RunId("run-3")))
        (tmp_path / "go").touch()
        caller.await_quiet()
        assert [note["worker"] for note in caller.notes("ended")] == ["w1", "w2", "w0"]


def test_a_control_group_is_removed_with_any_remaining_process(machine: SandboxLimits) -> None:
    name = f"shoal-test-{os.getpid()}"
    pid = os.fork()
    if pid == 0:
        os.setsid()
        machine.enter(name, Resources(256, 1.0))
        os.execvp("sleep", ["sleep", "300"])
    groups = [root / name / "cgroup.procs" for root in (machine.memory, machine.cpu)]
    assert eventually(lambda: all(g.exists() and str(pid) in g.read_text().split() for g in groups))
    machine.remove(name)
    os.waitpid(pid, 0)
    assert not exists(pid)
    assert not (machine.memory / name).exists()
    assert not (machine.cpu / name).exists()
    machine.remove(name)


def test_a_sandbox_cannot_leave_its_control_groups(machine: SandboxLimits, caller: Caller) -> None:
    before = shown(caller, "before")["groups"]
    if caller.platform.status()["isolation"] != "namespaces":  # type: ignore[attr-defined]
        pytest.skip("sandboxes have no mounts of their own here")
    caller.carry_out(caller.job(part="leave left"))
    assert json.loads((caller.folder / "left").read_text()) == []
    assert shown(caller, "after")["groups"] == before
    groups = folders(machine, before)
    assert all(folder.exists() for folder in groups.values())
    caller.platform.close()
    assert not any(folder.exists() for folder in groups.values())


def test_a_self_watching_sandbox_that_exceeds_its_limit_leaves_a_note_and_exits(
    tmp_path: Path,
) -> None:
    watched = SandboxLimits("watched", tmp_path, tmp_path)
    limit = 256 + system.peak_nbytes() // 2**20  # a child inherits it
    for name, megabytes in (("small", 8), ("large", 600)):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            watched.enter(name, Resources(limit, 1.0))
            held = b"x" * (megabytes * 2**20)
            time.sleep(TIMEOUT if megabytes > 256 else 0.2)
            os._exit(len(held) % 2)
        assert os.waitpid(pid, 0)[1] == (signal.SIGKILL if name == "large" else 0)
    assert watched.ran_out_of_memory("large")
    assert not watched.ran_out_of_memory("small")
    watched.remove("large")
    assert not watched.ran_out_of_memory("large")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_control_group_does_not_count_as_out_of_memory(machine: SandboxLimits) -> None:
    assert not machine.ran_out_of_memory("shoal-never-made")


@enforced
@pytest.mark.parametrize("missing", ["/proc/self/cgroup", "/proc/self/mounts"])
def test_without_readable_control_groups_resource_limits_apply(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
        if str(path) == missing:
            raise FileNotFoundError(missing)
        return read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    found = limits.detect()
    assert found.kind == "rlimit"
    assert "cgroup v1" in found.reason
    assert "cgroup v2" in found.reason


@enforced
def test_a_sandbox_that_a_resource_limit_refuses_memory_leaves_a_note(tmp_path: Path) -> None:
    limited = SandboxLimits("rlimit", tmp_path, tmp_path)
    name = "shoal-1-1"
    pid = os.fork()
    if pid == 0:
        os.setsid()
        limited.enter(name, Resources(64, 1.0))
        try:
            bytearray(128 * 2**20)
        except MemoryError:
            limits.end_out_of_memory()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert limited.ran_out_of_memory(name)
    limited.remove(name)
    assert not limited.ran_out_of_memory(name)


def test_a_process_without_a_resource_limit_survives_its_memory_errors() -> None:
    limits.end_out_of_memory()
