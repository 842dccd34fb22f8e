"""The real clock, and the virtual clock, which jumps."""

import time
from itertools import pairwise

import pytest

from shoal.clock import RealClock, VirtualClock

A_DAY = 86_400


def test_real_clock_never_goes_backwards() -> None:
    clock = RealClock()
    assert all(first <= second for first, second in pairwise(clock.now() for _ in range(1000)))


def test_real_clock_counts_from_the_epoch() -> None:
    assert abs(RealClock().now() - time.time()) < A_DAY


def test_the_real_clock_ignores_changes_of_the_wall_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = RealClock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert RealClock().now() >= before
    assert clock.now() >= before


def test_the_virtual_clock_starts_at_0_and_stays_there_with_nothing_due() -> None:
    clock = VirtualClock()
    clock.run()
    assert clock.now() == 0.0


def test_the_virtual_clock_jumps_to_callbacks_in_time_order() -> None:
    clock = VirtualClock()
    seen: list[float] = []
    for when in (5.0, 1.0, 3.5):
        clock.call_at(when, lambda: seen.append(clock.now()))
    clock.run()
    assert seen == [1.0, 3.5, 5.0]
    assert clock.now() == 5.0


def test_ties_keep_the_order_of_their_requests() -> None:
    clock = VirtualClock()
    seen: list[int] = []
    for number in range(20):
        clock.call_at(1.0, lambda number=number: seen.append(number))  # type: ignore[misc]
    clock.run()
    assert seen == list(range(20))


def test_a_callback_can_schedule_another() -> None:
    clock = VirtualClock()
    seen: list[float] = []

    def tick() -> None:
        seen.append(clock.now())
        if len(seen) < 4:
            clock.call_at(clock.now() + 0.5, tick)

    clock.call_at(1.0, tick)
    clock.run()
    assert seen == [1.0, 1.5, 2.0, 2.5]


def test_an_overdue_callback_runs_now_after_those_already_due() -> None:
    clock = VirtualClock()
    seen: list[tuple[str, float]] = []

    def first() -> None:
        clock.call_at(0.0, lambda: seen.append(("late", clock.now())))

    clock.call_at(2.0, first)
    clock.call_at(2.0, lambda: seen.append(("due", clock.now())))
    clock.run()
    assert seen == [("due", 2.0), ("late", 2.0)]


def test_the_virtual_clock_continues_after_a_failed_callback() -> None:
    clock = VirtualClock()
    seen: list[float] = []

    def fail() -> None:
        raise RuntimeError

    clock.call_at(1.0, fail)
    clock.call_at(2.0, lambda: seen.append(clock.now()))
    with pytest.raises(RuntimeError):
        clock.run()
    clock.run()
    assert seen == [2.0]
