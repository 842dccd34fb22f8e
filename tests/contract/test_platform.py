"""One suite over every platform: what whoever invokes workers may rely on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import platform_entries
from observing import eventually
from platform_examples import Caller, gateway, served
from shoal import Session, task
from shoal.platform.base import Invocation, Platform
from shoal.platform.inprocess import InProcessPlatform
from shoal.session import WORKER_ENTRY
from shoal.storage.memory import MemoryStore
from shoal.types import Resources, RunId
from shoal.worker.entry import run_worker

pytestmark = pytest.mark.real

Make = Callable[..., Caller]

KINDS = ("in process", "local", "http")


@contextlib.contextmanager
def made(
    kind: str, folder: Path, *, capacity: int = 4, idle_seconds: float = 60.0
) -> Iterator[Platform]:
    if kind == "in process":
        platform = InProcessPlatform(
            platform_entries.act, capacity=capacity, idle_seconds=idle_seconds
        )
        with contextlib.closing(platform):
            yield platform
        return
    with gateway(folder, capacity=capacity, idle_seconds=idle_seconds) as local:
        if kind == "local":
            yield local
            return
        with served(local) as remote:
            yield remote


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes platforms that end with the test."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Caller:
            return Caller(stack.enter_context(made(request.param, tmp_path, **options)), tmp_path)

        yield make
        (tmp_path / "go").touch()  # for threads that nobody can kill


def sandboxes(notes: Sequence[dict[str, Any]]) -> list[int]:
    return [line["sandbox"] for line in notes if line["event"] == "began"]


def test_invoke_runs_a_worker(make: Make) -> None:
    caller = make()
    notes = caller.carry_out(caller.job("w7"))
    assert [(line["event"], line["worker"]) for line in notes] == [("began", "w7"), ("ended", "w7")]


def test_a_run_is_active_while_a_worker_is_at_work(make: Make) -> None:
    caller = make()
    assert not caller.platform.active(RunId("run-1"))
    caller.invoke(caller.job(part="await go"))
    assert caller.platform.active(RunId("run-1"))
    assert not caller.platform.active(RunId("run-2"))
    caller.let_go()
    caller.await_quiet()


def test_beyond_capacity_invocations_wait_and_are_served_in_order(make: Make) -> None:
    caller = make(capacity=1)
    first, *others = (f"w{number}" for number in range(6))
    caller.invoke(caller.job(first, "await go"))
    caller.invoke(*(caller.job(name) for name in others))
    caller.await_notes("began")
    assert caller.platform.active(RunId("run-1"))
    assert [line["worker"] for line in caller.notes()] == [first]
    caller.let_go()
    caller.await_quiet()
    assert [line["worker"] for line in caller.notes("began")] == [first, *others]


def test_one_invocation_at_a_time_in_a_sandbox(make: Make) -> None:
    caller = make(capacity=2)
    caller.carry_out(*(caller.job(f"w{number}") for number in range(20)))
    at_work: dict[int, str] = {}
    for line in caller.notes():
        if line["event"] == "began":
            assert line["sandbox"] not in at_work
            at_work[line["sandbox"]] = line["worker"]
        else:
            assert at_work.pop(line["sandbox"]) == line["worker"]
    assert not at_work
    assert 1 <= len(set(sandboxes(caller.notes()))) <= 2


def test_as_many_workers_as_there_is_room_for_are_at_work_at_once(make: Make) -> None:
    caller = make(capacity=3)
    caller.invoke(*(caller.job(f"w{number}", "await go") for number in range(5)))
    began = caller.await_notes("began", 3)
    assert len(set(sandboxes(began))) == len(began) == 3
    caller.let_go()
    caller.await_quiet()
    assert len(caller.notes("ended")) == 5


def test_an_idle_sandbox_is_used_again(make: Make) -> None:
    caller = make()
    caller.carry_out(caller.job("w0"))
    caller.carry_out(caller.job("w1", run=RunId("run-2")))
    first, second = caller.notes("began")
    assert (first["start"], second["start"]) == ("cold", "warm")
    assert first["sandbox"] == second["sandbox"]


@pytest.mark.parametrize("other", [{"memory_mb": 512}, {"cpus": 0.5}, {"session": "s2"}])
def test_other_resources_or_sessions_never_share_a_sandbox(
    make: Make, other: dict[str, Any]
) -> None:
    caller = make()
    caller.carry_out(caller.job("w0"))
    caller.carry_out(caller.job("w1", **other))
    first, second = caller.notes("began")
    assert second["start"] == "cold"
    assert first["sandbox"] != second["sandbox"]


def test_an_idle_sandbox_makes_room_for_one_of_another_kind(make: Make) -> None:
    caller = make(capacity=1)
    for session in ("s1", "s2", "s1"):
        caller.carry_out(caller.job(session=session))
    assert [line["start"] for line in caller.notes("began")] == ["cold", "cold", "cold"]


def test_a_sandbox_that_was_idle_for_long_is_removed(make: Make) -> None:
    caller = make(idle_seconds=0.05)

    def next_start_is_cold() -> bool:
        time.sleep(0.1)
        caller.carry_out(caller.job())
        return bool(caller.notes("began")[-1]["start"] == "cold")

    caller.carry_out(caller.job())
    assert eventually(next_start_is_cold)
    assert len(set(sandboxes(caller.notes()))) > 1


def test_a_sandbox_that_says_so_is_not_used_again(make: Make) -> None:
    caller = make()
    caller.carry_out(caller.job("w0", "spoil"))
    caller.carry_out(caller.job("w1"))
    first, second = caller.notes("began")
    assert second["start"] == "cold"
    assert first["sandbox"] != second["sandbox"]


def test_prewarming_makes_the_next_starts_warm(make: Make) -> None:
    caller = make(capacity=3)
    caller.platform.prewarm(caller.job(), 2)
    caller.invoke(*(caller.job(f"w{number}", "await go") for number in range(3)))
    began = caller.await_notes("began", 3)
    assert sorted(line["start"] for line in began) == ["cold", "warm", "warm"]
    assert len(set(sandboxes(began))) == 3
    caller.let_go()
    caller.await_quiet()


def test_prewarming_for_others_leaves_the_next_start_cold(make: Make) -> None:
    caller = make()
    caller.platform.prewarm(caller.job(session="s2"), 1)
    assert caller.carry_out(caller.job())[0]["start"] == "cold"


def test_prewarming_beyond_capacity_takes_nothing_from_those_at_work(make: Make) -> None:
    caller = make(capacity=2)
    caller.invoke(caller.job("w0", "await go"))
    caller.await_notes("began")
    caller.platform.prewarm(caller.job(), 9)
    caller.carry_out(caller.job("w1", run=RunId("run-2")))
    assert caller.notes("began")[1]["start"] == "warm"
    caller.let_go()
    caller.await_quiet()
    assert len(caller.notes("ended")) == 2


def test_cancel_stops_workers_and_drops_those_that_wait(make: Make) -> None:
    caller = make(capacity=2)
    caller.invoke(*(caller.job(f"w{number}", "await go") for number in range(4)))
    caller.await_notes("began", 2)
    caller.platform.cancel(RunId("run-1"))
    assert not caller.platform.active(RunId("run-1"))
    caller.carry_out(caller.job("other", run=RunId("run-2")))
    assert {line["worker"] for line in caller.notes("began")} == {"w0", "w1", "other"}
    assert [line["worker"] for line in caller.notes("ended")] == ["other"]


def test_cancel_leaves_other_runs_alone(make: Make) -> None:
    caller = make(capacity=1)
    caller.invoke(caller.job("w0", "await go", run=RunId("run-2")))
    caller.invoke(caller.job("w1"), caller.job("w2", run=RunId("run-2")))
    caller.platform.cancel(RunId("run-1"))
    caller.platform.cancel(RunId("run-3"))
    caller.let_go()
    caller.await_quiet(RunId("run-2"))
    assert [line["worker"] for line in caller.notes("ended")] == ["w0", "w2"]


def test_a_worker_that_breaks_leaves_the_platform_usable(make: Make) -> None:
    caller = make(capacity=1)
    caller.carry_out(caller.job("w0", "fail on purpose"))
    caller.carry_out(caller.job("w1"))
    assert [line["worker"] for line in caller.notes("ended")] == ["w1"]
    assert caller.notes("began")[1]["start"] == "cold"


def test_what_workers_print_is_kept_per_run(make: Make) -> None:
    caller = make()
    if isinstance(caller.platform, InProcessPlatform):
        pytest.skip("it keeps nothing")
    caller.carry_out(
        caller.job("w0", "print hello"), caller.job("w1", "print other", run=RunId("run-2"))
    )
    lines = caller.platform.logs(RunId("run-1"))
    found = {(line.worker, line.stream, line.text) for line in lines}
    assert found == {("w0", "stdout", "hello"), ("w0", "stderr", "HELLO")}
    assert {line.worker for line in caller.platform.logs(RunId("run-2"))} == {"w1"}
    assert list(caller.platform.logs(RunId("run-3"))) == []


def test_the_host_is_the_machine_whose_memory_is_shared(make: Make) -> None:
    assert make().platform.host == InProcessPlatform(platform_entries.act).host != ""


class Stuttering:
    """A platform that starts every worker twice, as one that retries might."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def invoke(self, invocations: Sequence[Invocation]) -> None:
        """Start workers, and again."""
        self._platform.invoke([*invocations, *invocations])


@contextlib.contextmanager
def working(kind: str, folder: Path) -> Iterator[Session]:
    """A session whose platform runs real workers, each started twice."""
    settings: dict[str, Any] = {"folder": str(folder), "workers": 3}
    if kind == "in process":
        store = MemoryStore()

        def entry(job: dict[str, Any], running: Any) -> bool:
            invocation = Invocation.from_dict(job["invocation"] | {"path": [], "preload": []})
            return run_worker(invocation, store, twice, running, start=job["start"])

        twice: Any = Stuttering(InProcessPlatform(entry))
        with contextlib.closing(twice), Session(store=store, platform=twice, **settings) as session:
            yield session
        return
    with gateway(folder, entry=WORKER_ENTRY) as local, served(local) as remote:
        twice = Stuttering(remote if kind == "http" else local)
        with Session(platform=twice, **settings) as session:
            yield session


@task
def one(folder: str, name: str) -> int:
    with open(Path(folder) / "executed", "a") as file:
        file.write(f"{name}\n")
    return 1


@task(resources=Resources(memory_mb=512))
def total(folder: str, name: str, *numbers: int) -> int:
    with open(Path(folder) / "executed", "a") as file:
        file.write(f"{name}\n")
    return sum(numbers)


@pytest.mark.parametrize("kind", KINDS)
def test_two_invocations_of_one_worker_and_epoch_are_harmless(kind: str, tmp_path: Path) -> None:
    where = str(tmp_path)
    ones = [one(where, f"one {number}") for number in range(12)]
    halves = [total(where, "left", *ones[:6]), total(where, "right", *ones[6:])]
    with working(kind, tmp_path) as session:
        assert session.compute(total(where, "all", *halves)) == [12]
    executed = (tmp_path / "executed").read_text().split("\n")[:-1]
    assert sorted(executed) == sorted({*executed})
    assert len(executed) == 15
