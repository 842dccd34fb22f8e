"""Concurrent transfers share the store's bandwidth."""

from __future__ import annotations

import pytest

from shoal.clock import VirtualClock
from shoal.experiments.shared_bandwidth import SharedBandwidth


def ends(
    begins: dict[str, tuple[float, float]], sharing: float = 1.0, tail: float = 0.0
) -> dict[str, float]:
    """Return when transfers end, given their start and how long each would take alone."""
    clock, found = VirtualClock(), dict[str, float]()
    pipe = SharedBandwidth(clock, sharing)

    def begin(name: str, alone: float) -> None:
        ask_again(name, pipe.enter(alone, tail))

    def ask_again(name: str, seconds: float) -> None:
        clock.call_at(clock.now() + seconds, lambda: asked(name))

    def asked(name: str) -> None:
        more = pipe.overtime()
        if more:
            ask_again(name, more)
        else:
            found[name] = clock.now()

    for name, (when, alone) in begins.items():
        clock.call_at(when, lambda n=name, a=alone: begin(n, a))  # type: ignore[misc]
    clock.run()
    return found


def test_a_single_transfer_has_the_full_bandwidth() -> None:
    assert ends({"a": (1.0, 2.0)}) == {"a": 3.0}
    assert ends({"a": (1.0, 2.0)}, tail=0.5) == {"a": 3.5}


def test_equal_transfers_that_start_together_end_together() -> None:
    assert ends({name: (0.0, 1.0) for name in "abcd"}) == dict.fromkeys("abcd", 4.0)


def test_a_later_transfer_slows_an_earlier_one_down() -> None:
    """`a` is alone for half of its bytes and shares until it ends; then `b` is alone."""
    found = ends({"a": (0.0, 2.0), "b": (1.0, 2.0)})
    assert found == {"a": pytest.approx(3.0), "b": pytest.approx(4.0)}


def test_after_a_short_transfer_a_long_one_has_the_full_bandwidth() -> None:
    found = ends({"a": (0.0, 3.0), "b": (0.0, 1.0)})
    assert found == {"b": pytest.approx(2.0), "a": pytest.approx(4.0)}


def test_with_enough_bandwidth_transfers_do_not_slow_each_other_down() -> None:
    assert ends({name: (0.0, 1.0) for name in "ab"}, sharing=0.0) == {"a": 1.0, "b": 1.0}


def test_the_fixed_part_of_a_transfer_slows_nobody_down() -> None:
    found = ends({"a": (0.0, 1.0), "b": (1.5, 1.0)}, tail=5.0)
    assert found == {"a": 6.0, "b": 7.5}
