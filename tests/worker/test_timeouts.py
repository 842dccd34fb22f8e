"""Tasks that exceed their timeout, and the threads that run them."""

import pytest

from shoal.types import TaskId
from shoal.worker.timeouts import GivenUp, Timeouts

A, B = TaskId("a"), TaskId("b")


def test_a_task_that_ends_in_time_cannot_time_out_afterwards() -> None:
    timeouts = Timeouts()
    attempt = timeouts.begin(A, slot=1, seconds=60.0)
    timeouts.end(attempt)
    assert not timeouts.give_up(attempt)
    assert timeouts.abandoned == 0


def test_the_thread_of_a_timed_out_task_learns_of_it_when_the_task_ends() -> None:
    timeouts = Timeouts()
    attempt = timeouts.begin(A, slot=1, seconds=60.0)
    assert timeouts.give_up(attempt)
    assert timeouts.abandoned == 1
    with pytest.raises(GivenUp):
        timeouts.end(attempt)
    assert timeouts.abandoned == 0


def test_late_timeout_of_an_earlier_attempt_leaves_the_next_one_alone() -> None:
    timeouts = Timeouts()
    first = timeouts.begin(A, slot=1, seconds=60.0)
    timeouts.end(first)
    second = timeouts.begin(B, slot=1, seconds=60.0)
    assert not timeouts.give_up(first)
    timeouts.end(second)


def test_a_task_times_out_once() -> None:
    timeouts = Timeouts()
    attempt = timeouts.begin(A, slot=1, seconds=60.0)
    assert timeouts.give_up(attempt)
    assert not timeouts.give_up(attempt)
    assert timeouts.abandoned == 1


def test_nothing_times_out_after_the_end() -> None:
    timeouts = Timeouts()
    attempt = timeouts.begin(A, slot=1, seconds=60.0)
    timeouts.clear()
    assert not timeouts.give_up(attempt)
