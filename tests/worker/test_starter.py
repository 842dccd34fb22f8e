"""A worker starts others, and continues if the platform fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from platform_examples import invocation
from shoal.errors import PlatformError
from shoal.platform.invocation import NO_INPUTS, RunContext, Start
from shoal.storage.base import Claim
from shoal.types import Resources, WorkerId
from shoal.worker.starter import Starter

W1, W2 = WorkerId("w1"), WorkerId("w2")
CLAIMS = [Claim(W1, 1, "256 1.0"), Claim(W2, 3, "256 1.0")]


class RecordingPlatform:
    """Records requests, and rejects some of them."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.inline_nbytes: int | None = None
        self.invoked: list[Start] = []
        self.fanned_out: list[Start] = []
        self.warmed: list[tuple[Resources, int]] = []

    def _note(self, operation: str) -> None:
        if operation in self.refused:
            raise PlatformError("no room")

    def invoke(self, context: RunContext, starts: Sequence[Start]) -> None:
        self._note("invoke")
        self.invoked.extend(starts)

    def fan_out(self, context: RunContext, starts: Sequence[Start]) -> None:
        self._note("fan_out")
        self.fanned_out.extend(starts)

    def prewarm(self, context: RunContext, resources: Resources, count: int) -> int:
        self._note("prewarm")
        self.warmed.append((resources, count))
        return count


def starter_of(platform: Any) -> Starter:
    return Starter(platform, invocation().context, lambda: 7.0)


def test_claimed_workers_are_started_with_what_they_are_given() -> None:
    platform = RecordingPlatform()
    starter_of(platform).start(CLAIMS, {W1: b"inputs"})
    first, second = platform.invoked
    assert [(i.worker, i.epoch) for i in platform.invoked] == [(W1, 1), (W2, 3)]
    assert (first.inputs, second.inputs) == (b"inputs", None)
    assert (first.sent, second.sent) == (7.0, 7.0)


def test_no_more_travels_with_a_start_than_the_platform_takes() -> None:
    platform = RecordingPlatform()
    platform.inline_nbytes = 6
    starter_of(platform).start(CLAIMS, {W1: b"inputs", W2: b"inputs!"})
    assert [start.inputs for start in platform.invoked] == [b"inputs", None]


@pytest.mark.parametrize(("given", "inputs"), [(True, None), (False, NO_INPUTS)])
def test_workers_of_a_fan_out_fetch_inputs_only_if_there_are_any(
    given: bool, inputs: bytes | None
) -> None:
    platform = RecordingPlatform()
    starter_of(platform).fan_out(CLAIMS, given=given)
    assert [(i.worker, i.inputs) for i in platform.fanned_out] == [(W1, inputs), (W2, inputs)]


def test_worker_starts_others_itself_if_the_fan_out_fails() -> None:
    platform = RecordingPlatform("fan_out")
    starter_of(platform).fan_out(CLAIMS, given=True)
    assert [invocation.worker for invocation in platform.invoked] == [W1, W2]


def test_the_platform_is_not_called_without_work() -> None:
    platform = RecordingPlatform()
    starter = starter_of(platform)
    starter.start([], {})
    starter.fan_out([], given=False)
    assert not platform.invoked
    assert not platform.fanned_out


def test_a_failing_platform_does_not_stop_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    starter = starter_of(RecordingPlatform("invoke", "fan_out", "prewarm"))
    starter.start(CLAIMS, {})
    starter.fan_out(CLAIMS, given=False)
    starter.warm_up(Resources(512), 2)
    assert [record.getMessage() for record in caplog.records] == [
        "could not start workers: no room",
        "could not fan out, starting workers one by one: no room",
        "could not start workers: no room",
        f"could not warm up a sandbox with {Resources(512)}: no room",
    ]


def test_sandboxes_are_warmed_up_with_the_resources_asked_for() -> None:
    platform = RecordingPlatform()
    starter_of(platform).warm_up(Resources(512), 2)
    assert platform.warmed == [(Resources(512), 2)]
