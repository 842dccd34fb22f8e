"""The farm's model as data: events in, observations out."""

from math import inf

import pytest

from shoal.errors import UsageError
from shoal.farm.model import Deadline, FarmModel, Limits, nearest


def test_changes_are_clipped_to_the_limits_counting_starting_workers() -> None:
    model = FarmModel(30, Limits(1, 32))
    assert model.ask(1) == 1
    assert model.ask(5) == 1
    assert model.ask(1) == 0
    assert model.ask(-100) == -31
    assert model.actions == 3


def test_a_worker_counts_from_its_start_until_it_has_left() -> None:
    model = FarmModel(2, Limits())
    model.ask(1)
    assert model.workers == 2
    model.started(5.0)
    model.ask(-1)
    assert model.workers == 3
    model.left(8.0)
    model.settle(10.0)
    assert model.worker_seconds == 2 * 5 + 3 * 3 + 2 * 2
    assert model.history == [(0.0, 2), (5.0, 3), (8.0, 2)]


def test_the_window_forgets_what_was_completed_long_ago() -> None:
    model = FarmModel(1, Limits(), window=8.0)
    model.completed(1.0, arrived=0.0, due=0.5)
    model.completed(9.0, arrived=6.0, due=10.0)
    model.completed(9.5, arrived=8.5, due=9.4)
    seen = model.observe(10.0, waiting=4, busy=1)
    assert (seen.mean_response, seen.max_response, seen.on_time) == (2.0, 3.0, 0.5)
    assert (seen.waiting, seen.busy, seen.collected) == (4, 1, 3)
    assert model.on_time_total == 1


def test_with_nothing_completed_the_service_level_is_1() -> None:
    seen = FarmModel(1, Limits()).observe(8.0, waiting=0, busy=0)
    assert (seen.on_time, seen.mean_response, seen.max_response) == (1.0, 1.5, 1.5)


def test_the_arrival_rate_counts_from_the_last_observation() -> None:
    model = FarmModel(1, Limits())
    for _ in range(16):
        model.arrived()
    assert model.observe(8.0, waiting=0, busy=0).arrival_rate == 2.0
    model.arrived()
    assert model.observe(12.0, waiting=0, busy=0).arrival_rate == 0.25


def test_without_the_clock_the_observation_hides_the_streams_progress() -> None:
    model = FarmModel(1, Limits())
    model.completed(1.0, arrived=0.0, due=2.0)
    seen = model.observe(8.0, waiting=3, busy=0, phases_left=2)
    blind = seen.without_clock()
    assert (seen.phases_left, seen.collected) == (2, 1)
    assert (blind.phases_left, blind.collected, blind.waiting) == (0, 0, 3)


def test_the_nearest_action_is_the_smaller_of_two() -> None:
    assert nearest(7, (-1, 0, 1)) == 1
    assert nearest(-7, (-1, 0, 1)) == -1
    assert nearest(1, (-2, 0, 2)) == 0


def test_deadlines_follow_the_expected_time_within_bounds() -> None:
    assert [Deadline().seconds(expected) for expected in (0.01, 1.5, 99.0)] == [0.1, 3.0, 30.0]


@pytest.mark.parametrize("limits", [(0, 4), (5, 4)])
def test_invalid_limits_are_rejected(limits: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="least <= most"):
        Limits(*limits)


def test_a_farm_starts_within_its_limits() -> None:
    with pytest.raises(UsageError, match="can't start with 40"):
        FarmModel(40, Limits())


def test_completions_are_kept_for_one_window_even_without_observations() -> None:
    model = FarmModel(1, Limits(), window=8.0)
    for second in range(1000):
        model.completed(float(second), arrived=0.0, due=inf)
    assert len(model._done) <= 9
    assert model.completed_total == 1000
