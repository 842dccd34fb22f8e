import pytest

from shoal.errors import UsageError
from shoal.farm.autoscalers import Fixed, ReactiveAverage, ReactiveMaximum, SquareRootStaffing
from shoal.farm.model import Observation

QUIET = Observation(
    phases_left=0, waiting=0, collecting=0, collected=0, workers=10, mean_response=1.5,
    max_response=3.0, arrival_rate=5.0, on_time=1.0, busy=7, changing=0,
)  # fmt: skip
FLOODED = QUIET._replace(waiting=200, busy=10, mean_response=12.0, on_time=0.1)
IDLE = QUIET._replace(arrival_rate=0.1, busy=0)


def test_a_fixed_number_counts_the_workers_that_are_under_way() -> None:
    assert Fixed(15).decide(QUIET) == 5
    assert Fixed(15).decide(QUIET._replace(changing=5)) == 0
    assert Fixed(8).decide(QUIET) == -2


@pytest.mark.parametrize("autoscaler", [ReactiveAverage(), ReactiveMaximum()])
def test_reactive_rules_go_by_one(autoscaler: ReactiveAverage | ReactiveMaximum) -> None:
    assert autoscaler.decide(FLOODED) == 1
    assert autoscaler.decide(IDLE) == -1


def test_the_reactive_rule_weighs_busy_workers_by_half() -> None:
    # Wanted 7.5 of 10 workers, of which min(10, 7 - 1) * 1.5 * 0.5 / 8 = 0.56 count as busy.
    assert ReactiveAverage().decide(QUIET) == -1
    assert ReactiveAverage().decide(QUIET._replace(workers=8)) == 0
    assert ReactiveAverage().decide(QUIET._replace(workers=7)) == 1


def test_the_longest_response_asks_for_more_than_the_mean() -> None:
    assert ReactiveMaximum().decide(QUIET) == 1


def test_staffing_follows_the_load_and_its_square_root() -> None:
    # The load is 5 * 1.5 = 7.5, its square root 2.7.
    assert SquareRootStaffing(margin=0.0).decide(QUIET._replace(workers=1)) == 7
    assert SquareRootStaffing(margin=2.0).decide(QUIET._replace(workers=1)) == 12


def test_staffing_goes_up_at_once_and_down_with_patience() -> None:
    staffing = SquareRootStaffing(margin=1.0, patience=3)
    assert staffing.decide(IDLE) == 0
    assert staffing.decide(IDLE) == 0
    assert staffing.decide(IDLE) < 0
    assert staffing.decide(QUIET._replace(arrival_rate=20.0)) > 0


def test_staffing_adds_workers_for_those_that_wait() -> None:
    staffing = SquareRootStaffing(margin=0.0, backlog=0.5)
    assert staffing.decide(QUIET._replace(workers=8, waiting=6)) == 3


def test_staffing_can_take_the_load_from_the_tasks_in_the_farm() -> None:
    staffing = SquareRootStaffing(margin=0.0, backlog=0.0, inside=1.0)
    assert staffing.decide(QUIET._replace(workers=8, busy=8, waiting=4)) == 4


def test_staffing_that_has_left_its_floor_holds_on() -> None:
    staffing = SquareRootStaffing(floor=9, patience=1, hold=3)
    assert staffing.decide(IDLE._replace(workers=9)) == 0
    assert [staffing.decide(IDLE._replace(workers=11)) for _ in range(3)] == [0, 0, -2]
    staffing.decide(IDLE._replace(workers=9))
    assert staffing.decide(IDLE._replace(workers=11)) == 0


def test_staffing_keeps_its_floor() -> None:
    staffing = SquareRootStaffing(floor=9, patience=1)
    assert staffing.decide(IDLE) == -1


def test_staffing_forgets_a_stream_when_it_is_reset() -> None:
    staffing = SquareRootStaffing(patience=1)
    first = staffing.decide(QUIET)
    staffing.decide(FLOODED)
    staffing.reset()
    assert staffing.decide(QUIET) == first


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="floor and "):
        SquareRootStaffing(floor=0)
