"""Each caller has a rate of requests and a burst beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.platform import throttle
from shoal.platform.throttle import Throttle


def test_a_burst_passes_and_further_requests_wait() -> None:
    some = Throttle(10, 5)
    assert [some.delay("a", 0.0) for _ in range(6)] == [0.0] * 6
    assert 0 < some.delay("a", 0.0) <= 0.1
    assert some.delay("a", 0.2) == 0.0


def test_callers_do_not_wait_for_each_other() -> None:
    some = Throttle(1, 1)
    for _ in range(5):
        some.delay("a", 0.0)
    assert some.delay("a", 0.0) > 0
    assert some.delay("b", 0.0) == 0.0


@given(st.lists(st.floats(0, 0.5), max_size=60), st.integers(1, 20), st.integers(1, 9))
def test_no_more_requests_pass_than_burst_and_rate_allow(
    pauses: list[float], per_second: int, burst: int
) -> None:
    some, now, passed = Throttle(per_second, burst), 0.0, 0
    for pause in pauses:
        now += pause
        passed += some.delay("a", now) == 0.0
    assert passed <= 1 + burst + now * per_second + 1e-6


def test_a_caller_that_waits_as_told_passes() -> None:
    some = Throttle(7, 3)
    for _ in range(10):
        some.delay("a", 0.0)
    assert some.delay("a", some.delay("a", 0.0) + 1e-9) == 0.0


@pytest.mark.slow
def test_many_callers_take_bounded_memory() -> None:
    some = Throttle(1, 1)
    for number in range(2 * throttle._MAX_CALLERS):
        some.delay(number, 0.0)
    assert len(some._due) <= throttle._MAX_CALLERS
