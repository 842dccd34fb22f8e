"""`PlatformContract`: what clients and workers rely on in every platform."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.platform.base import Platform
from shoal.storage.shared_memory import probe
from shoal.testing.platform_examples import Caller
from shoal.testing.pytest_required import pytest
from shoal.testing.waiting import eventually
from shoal.types import RunId

MakePlatform = Callable[..., Caller]


def sandboxes(notes: Sequence[dict[str, Any]]) -> list[int]:
    """Return the sandboxes in which workers began."""
    return [line["sandbox"] for line in notes if line["event"] == "began"]


class PlatformContract:
    """Tests that a platform starts workers as clients expect.

    Subclass it in a test module and override the fixture `make_platform`. Sandboxes note what they
    do in the folder `tmp_path`, so they must be able to write there.
    """

    keeps_logs = True
    """Whether the platform stores what workers print."""
    on_this_machine = True
    """Whether workers share the memory of the machine that runs the tests."""

    @pytest.fixture
    def make_platform(self) -> Callable[..., Platform]:
        """Return a function that makes a platform, which the fixture closes after the test.

        The function takes two keyword arguments: `capacity` is the number of sandboxes, 4 unless
        given; `idle_seconds` is how long a sandbox stays warm, 60 unless given. The platform's
        sandboxes call `shoal.testing.platform_entry:act`.
        """
        raise NotImplementedError("Override the fixture `make_platform` of PlatformContract.")

    @pytest.fixture
    def make(
        self, make_platform: Callable[..., Platform], tmp_path: Path
    ) -> Iterator[MakePlatform]:
        """Return a function that makes a platform, and a `Caller` for it."""
        yield lambda **options: Caller(make_platform(**options), tmp_path)
        (tmp_path / "go").touch()  # for threads that nobody can kill

    def test_invoke_runs_a_worker(self, make: MakePlatform) -> None:
        caller = make()
        notes = caller.carry_out(caller.job("w7"))
        assert [(line["event"], line["worker"]) for line in notes] == [
            ("began", "w7"),
            ("ended", "w7"),
        ]

    def test_a_run_is_active_while_a_worker_is_at_work(self, make: MakePlatform) -> None:
        caller = make()
        assert not caller.platform.active(RunId("run-1"))
        caller.invoke(caller.job(part="await go"))
        assert caller.platform.active(RunId("run-1"))
        assert not caller.platform.active(RunId("run-2"))
        caller.let_go()
        caller.await_quiet()

    def test_beyond_capacity_invocations_wait_and_are_served_in_order(
        self, make: MakePlatform
    ) -> None:
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

    def test_one_invocation_at_a_time_in_a_sandbox(self, make: MakePlatform) -> None:
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

    def test_as_many_workers_as_there_is_room_for_are_at_work_at_once(
        self, make: MakePlatform
    ) -> None:
        caller = make(capacity=3)
        caller.invoke(*(caller.job(f"w{number}", "await go") for number in range(5)))
        began = caller.await_notes("began", 3)
        assert len(set(sandboxes(began))) == len(began) == 3
        caller.let_go()
        caller.await_quiet()
        assert len(caller.notes("ended")) == 5

    def test_an_idle_sandbox_is_used_again(self, make: MakePlatform) -> None:
        caller = make()
        caller.carry_out(caller.job("w0"))
        caller.carry_out(caller.job("w1", run=RunId("run-2")))
        first, second = caller.notes("began")
        assert (first["start"], second["start"]) == ("cold", "warm")
        assert first["sandbox"] == second["sandbox"]

    @pytest.mark.parametrize("other", [{"memory_mb": 512}, {"cpus": 0.5}, {"session": "s2"}])
    def test_other_resources_or_sessions_never_share_a_sandbox(
        self, make: MakePlatform, other: dict[str, Any]
    ) -> None:
        caller = make()
        caller.carry_out(caller.job("w0"))
        caller.carry_out(caller.job("w1", **other))
        first, second = caller.notes("began")
        assert second["start"] == "cold"
        assert first["sandbox"] != second["sandbox"]

    def test_an_idle_sandbox_makes_room_for_one_of_another_kind(self, make: MakePlatform) -> None:
        caller = make(capacity=1)
        for session in ("s1", "s2", "s1"):
            caller.carry_out(caller.job(session=session))
        assert [line["start"] for line in caller.notes("began")] == ["cold", "cold", "cold"]

    def test_a_sandbox_that_was_idle_for_long_is_removed(self, make: MakePlatform) -> None:
        caller = make(idle_seconds=0.05)

        def next_start_is_cold() -> bool:
            time.sleep(0.1)
            caller.carry_out(caller.job())
            return bool(caller.notes("began")[-1]["start"] == "cold")

        caller.carry_out(caller.job())
        assert eventually(next_start_is_cold)
        assert len(set(sandboxes(caller.notes()))) > 1

    def test_a_sandbox_that_says_so_is_not_used_again(self, make: MakePlatform) -> None:
        caller = make()
        caller.carry_out(caller.job("w0", "spoil"))
        caller.carry_out(caller.job("w1"))
        first, second = caller.notes("began")
        assert second["start"] == "cold"
        assert first["sandbox"] != second["sandbox"]

    def test_prewarming_makes_the_next_starts_warm(self, make: MakePlatform) -> None:
        caller = make(capacity=3)
        assert caller.prewarm(caller.job(), 2) == 2
        caller.invoke(*(caller.job(f"w{number}", "await go") for number in range(3)))
        began = caller.await_notes("began", 3)
        assert sorted(line["start"] for line in began) == ["cold", "warm", "warm"]
        assert len(set(sandboxes(began))) == 3
        caller.let_go()
        caller.await_quiet()

    def test_prewarming_for_others_leaves_the_next_start_cold(self, make: MakePlatform) -> None:
        caller = make()
        caller.prewarm(caller.job(session="s2"), 1)
        assert caller.carry_out(caller.job())[0]["start"] == "cold"

    def test_prewarming_beyond_capacity_takes_nothing_from_those_at_work(
        self, make: MakePlatform
    ) -> None:
        caller = make(capacity=2)
        caller.invoke(caller.job("w0", "await go"))
        caller.await_notes("began")
        assert caller.prewarm(caller.job(), 9) == 1
        caller.carry_out(caller.job("w1", run=RunId("run-2")))
        assert caller.notes("began")[1]["start"] == "warm"
        caller.let_go()
        caller.await_quiet()
        assert len(caller.notes("ended")) == 2

    def test_cancel_stops_workers_and_drops_those_that_wait(self, make: MakePlatform) -> None:
        caller = make(capacity=2)
        caller.invoke(*(caller.job(f"w{number}", "await go") for number in range(4)))
        caller.await_notes("began", 2)
        caller.platform.cancel(RunId("run-1"))
        assert not caller.platform.active(RunId("run-1"))
        caller.carry_out(caller.job("other", run=RunId("run-2")))
        assert {line["worker"] for line in caller.notes("began")} == {"w0", "w1", "other"}
        assert [line["worker"] for line in caller.notes("ended")] == ["other"]

    def test_cancel_leaves_other_runs_alone(self, make: MakePlatform) -> None:
        caller = make(capacity=1)
        caller.invoke(caller.job("w0", "await go", run=RunId("run-2")))
        caller.invoke(caller.job("w1"), caller.job("w2", run=RunId("run-2")))
        caller.platform.cancel(RunId("run-1"))
        caller.platform.cancel(RunId("run-3"))
        caller.let_go()
        caller.await_quiet(RunId("run-2"))
        assert [line["worker"] for line in caller.notes("ended")] == ["w0", "w2"]

    def test_a_worker_that_breaks_leaves_the_platform_usable(self, make: MakePlatform) -> None:
        caller = make(capacity=1)
        caller.carry_out(caller.job("w0", "fail on purpose"))
        caller.carry_out(caller.job("w1"))
        assert [line["worker"] for line in caller.notes("ended")] == ["w1"]
        assert caller.notes("began")[1]["start"] == "cold"

    def test_what_workers_print_is_kept_per_run(self, make: MakePlatform) -> None:
        caller = make()
        if not self.keeps_logs:
            pytest.skip("this platform keeps no logs")
        caller.carry_out(
            caller.job("w0", "print hello"), caller.job("w1", "print other", run=RunId("run-2"))
        )
        lines = caller.platform.logs(RunId("run-1"))
        found = {(line.worker, line.stream, line.text) for line in lines}
        assert found == {("w0", "stdout", "hello"), ("w0", "stderr", "HELLO")}
        assert {line.worker for line in caller.platform.logs(RunId("run-2"))} == {"w1"}
        assert list(caller.platform.logs(RunId("run-3"))) == []

    def test_workers_of_this_machine_see_a_probe_in_its_shared_memory(
        self, make: MakePlatform
    ) -> None:
        platform = make().platform
        with probe(["/"]) as (nonce, path):
            if self.on_this_machine:
                assert platform.probed(nonce) == path is not None
                assert platform.sees_folders(nonce)
            else:
                assert platform.probed(nonce) != path
        assert platform.probed(nonce) is None
        assert not platform.sees_folders(nonce)
