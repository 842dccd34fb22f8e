"""Every platform passes the contract suite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from platform_examples import gateway, served
from shoal import Session, task
from shoal.client.backends import WORKER_ENTRY
from shoal.platform.base import Platform
from shoal.platform.invocation import RunContext, SandboxMessage, Start
from shoal.testing import InProcessPlatform, MemoryStore, PlatformContract, platform_entry
from shoal.types import Resources
from shoal.worker.entry import run_worker

pytestmark = pytest.mark.real

ENTRY = "shoal.testing.platform_entry:act"


@contextlib.contextmanager
def making(kind: str, folder: Path) -> Iterator[Callable[..., Platform]]:
    """A function that makes platforms, which end with the test."""
    with contextlib.ExitStack() as stack:

        def make(capacity: int = 4, idle_seconds: float = 60.0) -> Platform:
            options: Any = {"capacity": capacity, "idle_seconds": idle_seconds}
            if kind == "in process":
                platform = InProcessPlatform(platform_entry.act, **options)
                return stack.enter_context(contextlib.closing(platform))
            local = stack.enter_context(gateway(folder, entry=ENTRY, **options))
            return local if kind == "local" else stack.enter_context(served(local))

        yield make


class TestInProcessPlatform(PlatformContract):
    keeps_logs = False

    @pytest.fixture
    def make_platform(self, tmp_path: Path) -> Iterator[Callable[..., Platform]]:
        with making("in process", tmp_path) as make:
            yield make


class TestLocalGateway(PlatformContract):
    @pytest.fixture
    def make_platform(self, tmp_path: Path) -> Iterator[Callable[..., Platform]]:
        with making("local", tmp_path) as make:
            yield make


class TestHttpPlatform(PlatformContract):
    @pytest.fixture
    def make_platform(self, tmp_path: Path) -> Iterator[Callable[..., Platform]]:
        with making("http", tmp_path) as make:
            yield make


class Stuttering:
    """A platform that starts every worker twice, as one that retries might."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        """Start workers, and again."""
        self._platform.invoke(context, [*starts, *starts])


@contextlib.contextmanager
def working(kind: str, folder: Path) -> Iterator[Session]:
    """A session whose platform runs real workers, each started twice."""
    settings: dict[str, Any] = {"folder": str(folder), "workers": 3}
    if kind == "in process":
        store = MemoryStore()

        def entry(message: SandboxMessage, running: Any) -> bool:
            return run_worker(message, store, twice, running, start=message.sandbox)

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


@pytest.mark.parametrize("kind", ["in process", "local", "http"])
def test_two_invocations_of_one_worker_and_epoch_are_harmless(kind: str, tmp_path: Path) -> None:
    where = str(tmp_path)
    ones = [one(where, f"one {number}") for number in range(12)]
    halves = [total(where, "left", *ones[:6]), total(where, "right", *ones[6:])]
    with working(kind, tmp_path) as session:
        assert session.compute(total(where, "all", *halves)) == [12]
    executed = (tmp_path / "executed").read_text().split("\n")[:-1]
    assert sorted(executed) == sorted({*executed})
    assert len(executed) == 15
