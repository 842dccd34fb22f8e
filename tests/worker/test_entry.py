"""A flexible worker with all its inputs asks the store nothing, and reports in one trip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform_examples import changed, invocation
from shoal.clock import RealClock
from shoal.errors import StoreError
from shoal.execution.plan import Placement, Plan
from shoal.platform.invocation import NO_INPUTS, Invocation, SandboxMessage, Start
from shoal.storage.base import Answer, Completion, Entry, Opening
from shoal.storage.codec import Buffer
from shoal.storage.keys import CLIENT, shared_part
from shoal.storage.letters import encode_letter
from shoal.storage.shared_memory import SharedFolder
from shoal.testing.memory_store import MemoryStore
from shoal.types import Resources, RunId, TaskId, WorkerId
from shoal.worker import entry
from shoal.worker.entry import run_worker
from shoal.worker.package import pack
from shoal.workflow import Workflow, task

RUN = RunId("run-1")
KEY = bytes(32)
calls: list[int] = []


@task
def number(value: int) -> int:
    calls.append(value)
    return value


@task
def array(value: int) -> Any:
    calls.append(value)
    return np.full(100_000, value)


@task
def total(*values: Any) -> int:
    return int(np.sum(values))


class Asked(MemoryStore):
    """Records each round trip."""

    def __init__(self) -> None:
        super().__init__()
        self.trips: list[str] = []

    def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
        self.trips.append(f"enter {worker}")
        return super().enter(run, worker, epoch, part=part)

    def complete(
        self, run: RunId, worker: WorkerId, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        self.trips.append(f"complete {worker}")
        return super().complete(run, worker, epoch, completion)

    def fetch(self, run: RunId, names: Sequence[str]) -> list[Buffer | None]:
        self.trips.append("fetch")
        return super().fetch(run, names)


class Idle:
    """Ignores which tasks run."""

    def set(self, slot: int, number: int) -> None:
        """Do nothing."""

    def clear(self, slot: int) -> None:
        """Do nothing."""


class Sandbox:
    """Starts workers of a workflow with two roots and a fan-in, one after the other."""

    def __init__(self, leaf: Any, folder: Path) -> None:
        calls.clear()
        entry._packages.clear()
        self.store = Asked()
        self.workflow = Workflow.of(total(leaf(1), leaf(2)))
        flexible = Placement(None, Resources(1769))
        packed = pack(Plan(self.workflow, dict.fromkeys(self.workflow.calls, flexible)), KEY)
        assert packed.common is not None
        self.roots = [t for t, sources in self.workflow.upstream.items() if not sources]
        started = [WorkerId(root) for root in self.roots]
        self.store.open(RUN, Opening(started, common=packed.common, kind="1769 1.0"))
        SharedFolder(str(folder)).write(shared_part(packed.name), packed.common)
        self.job = invocation(
            folder=str(folder),
            memory_mb=1769,
            key=KEY,
            shared=str(folder),
            common=packed.name,
            inputs=NO_INPUTS,
            sent=RealClock().now(),
        )

    def start(self, root: TaskId, **facts: Any) -> list[str]:
        """Start a worker with a root, and return its round trips."""
        return self.carried_out(changed(self.job, worker=root, **facts))

    def carried_out(self, job: Invocation) -> list[str]:
        self.store.trips.clear()
        assert run_worker(job, self.store, None, Idle(), start="warm")
        return list(self.store.trips)

    def told(self) -> list[tuple[str, str]]:
        """Return what the client was told."""
        received = self.store.receive(RUN, CLIENT, "", 0)
        return [encode_letter(letter)[:2] for _, letter in received]


@pytest.fixture
def small(tmp_path: Path) -> Sandbox:
    return Sandbox(number, tmp_path)


@pytest.fixture
def large(tmp_path: Path) -> Sandbox:
    return Sandbox(array, tmp_path)


def test_a_worker_that_is_not_the_last_at_a_fan_in_makes_one_round_trip(small: Sandbox) -> None:
    first, second = small.roots
    assert small.start(first) == [f"complete {first}"]
    assert small.told() == [("finished", first)]
    assert small.start(second) == [f"complete {second}"] * 2
    (sink,) = small.workflow.sinks
    assert small.told() == [("finished", first), ("output", sink), ("finished", second)]


def test_a_worker_without_its_part_enters_first(small: Sandbox) -> None:
    first = small.roots[0]
    trips = small.start(first, shared=None)
    assert trips == [f"enter {first}", f"complete {first}"]


@pytest.mark.parametrize(
    "facts",
    [{"inputs": None}, {"sent": 0.0}],
    ids=["does not know what it is given", "was long on its way"],
)
def test_a_worker_that_cannot_begin_at_once_enters_first(
    small: Sandbox, facts: dict[str, Any]
) -> None:
    first = small.roots[0]
    assert small.start(first, **facts) == [f"enter {first}", f"complete {first}"]


def test_a_repeated_start_has_no_second_effect(small: Sandbox) -> None:
    first, second = small.roots
    small.start(first)
    small.start(first)
    assert calls == [1, 1]
    assert small.told() == [("finished", first)]
    small.start(second)
    assert small.told().count(("finished", second)) == 1


def test_a_repeated_start_does_not_touch_a_shared_output(large: Sandbox, tmp_path: Path) -> None:
    first = large.roots[0]
    assert large.start(first) == [f"complete {first}"]
    shared = SharedFolder(str(tmp_path))
    shared.write(first, [b"what others may have read"])
    large.start(first)
    found = shared.read(first)
    assert found is not None
    assert bytes(found) == b"what others may have read"


def test_a_shared_output_of_a_start_that_never_entered_is_overwritten(
    large: Sandbox, tmp_path: Path
) -> None:
    first = large.roots[0]
    shared = SharedFolder(str(tmp_path))
    shared.write(first, [b"of a start that was lost"])
    assert large.start(first) == [f"complete {first}"] * 2
    found = shared.read(first)
    assert found is not None
    assert bytes(found) != b"of a start that was lost"


def test_a_restarted_worker_enters_and_recovers(small: Sandbox) -> None:
    first, second = small.roots
    small.start(first)
    claim = small.store.restart(RUN, WorkerId(second), 1, "killed")
    assert claim is not None
    start = Start.claimed(claim, RealClock().now(), inputs=NO_INPUTS)
    job = Invocation(context=small.job.context, start=start)
    assert small.carried_out(job) == [f"enter {second}", *[f"complete {second}"] * 2]


def test_a_worker_that_fails_disconnects_from_its_store(
    small: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[str] = []

    class Failing(Asked):
        def enter(self, run: RunId, worker: WorkerId, epoch: int, *, part: bool = True) -> Entry:
            raise StoreError("out of order")

        def disconnect(self) -> None:
            given_up.append("store")

    monkeypatch.setattr(entry, "open_store", lambda *_, **__: Failing())
    job = changed(small.job, worker=small.roots[0], common="", shared=None)
    message = SandboxMessage(
        context=job.context, start=job.start, gateway="http://127.0.0.1:1", token="token"
    )
    with pytest.raises(StoreError):
        entry.handle(message, Idle())
    assert given_up == ["store"]
    assert not entry._stores
