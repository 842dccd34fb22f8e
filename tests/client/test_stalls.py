"""A run counts as stuck after several leases without any progress, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.client import stalls
from shoal.client.stalls import StallDetector
from shoal.execution import restart_policy
from shoal.execution.restart_policy import GiveUp

LEASE = 10.0


class FakeSupervisor:
    """Says whether the run progresses, and counts the questions."""

    def __init__(self, lease: float = LEASE) -> None:
        self.lease = lease
        self.going = False
        self.asked = 0

    def progresses(self) -> bool:
        self.asked += 1
        return self.going

    def stuck(self, seconds: float) -> bool:
        return isinstance(restart_policy.while_idle(seconds, self.lease), GiveUp)


@pytest.fixture
def supervisor() -> FakeSupervisor:
    return FakeSupervisor()


@pytest.fixture
def detector(supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> StallDetector:
    """A detector for a run that started at 0."""
    monkeypatch.setattr(stalls.time, "monotonic", lambda: 0.0)
    given: Any = supervisor
    return StallDetector(given, LEASE)


def test_silence_for_several_leases_is_a_stall(detector: StallDetector) -> None:
    assert [detector.stalled(at, heard=False) for at in (11, 22, 33, 41, 44)] == [0, 0, 0, 0, 44]


def test_a_letter_ends_the_silence(detector: StallDetector) -> None:
    assert detector.stalled(35, heard=True) == 0
    assert detector.stalled(46, heard=False) == 0
    assert detector.stalled(76, heard=False) == 41


def test_a_run_that_progresses_without_letters_is_not_stuck(
    detector: StallDetector, supervisor: FakeSupervisor
) -> None:
    supervisor.going = True
    assert detector.stalled(39, heard=False) == 0
    supervisor.going = False
    assert detector.stalled(50, heard=False) == 0
    assert detector.stalled(80, heard=False) == 41


def test_the_store_is_asked_once_per_lease(
    detector: StallDetector, supervisor: FakeSupervisor
) -> None:
    for at in range(1, 32):
        detector.stalled(float(at), heard=False)
    assert supervisor.asked == 2


def test_short_leases_leave_a_gateway_time_to_restart(detector: StallDetector) -> None:
    given: Any = FakeSupervisor(0.5)
    short = StallDetector(given, 0.5)
    assert short.stalled(14.0, heard=False) == 0
    assert short.stalled(16.0, heard=False) == 16.0
