"""The store's model of marks and starts, as data in and data out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.execution.store_model import OwnedMarks, Starts, UnownedMarks
from shoal.types import TaskId

t, u = TaskId("t"), TaskId("u")
ABC = ("a", "b", "c")


def test_the_mark_that_completes_the_set_makes_an_owned_task_ready_once() -> None:
    marks: OwnedMarks[int] = OwnedMarks()
    assert marks.add(t, ABC, "b", 2) is None
    assert marks.add(t, ABC, "c", 3) is None
    assert marks.add(t, ABC, "a", 1) == {"a": 1, "b": 2, "c": 3}
    assert [marks.add(t, ABC, each, 0) for each in ABC] == [None] * 3


def test_the_first_mark_of_a_share_counts() -> None:
    marks: OwnedMarks[str] = OwnedMarks()
    assert marks.add(t, ("a", "b"), "a", "first") is None
    assert marks.add(t, ("a", "b"), "a", "second") is None
    assert marks.add(t, ("a", "b"), "b", "b") == {"a": "first", "b": "b"}


def test_owned_marks_can_be_looked_up_by_their_producer() -> None:
    marks: OwnedMarks[int] = OwnedMarks()
    for task, producer, payload in ((t, "a", 1), (u, "a", 2), (u, "b", 3)):
        marks.add(task, ABC, producer, payload)
    assert set(marks) == {(t, "a"), (u, "a"), (u, "b")}
    assert marks.of("a") == {t: 1, u: 2}
    assert marks.of("c") == {}


@given(order=st.lists(st.sampled_from(ABC), max_size=12))
def test_an_unowned_task_goes_to_the_mark_that_completed_it_and_no_other(order: list[str]) -> None:
    marks: UnownedMarks[str] = UnownedMarks()
    answers = [marks.add(t, ABC, producer, producer) for producer in order]
    completed = [n for n in range(len(order)) if set(order[: n + 1]) == set(ABC)]
    last = order[completed[0]] if completed else None
    expected = [n in completed and producer == last for n, producer in enumerate(order)]
    assert [answer is not None for answer in answers] == expected


def test_held_marks_are_set_only_if_they_complete_the_set() -> None:
    marks: UnownedMarks[int] = UnownedMarks()
    assert marks.add_held(t, ABC, "a", ("a", "b")) is None
    assert marks.add(t, ABC, "c", 3) is None
    assert marks.add_held(t, ABC, "a", ("a",)) is None
    assert marks.add_held(t, ABC, "a", ("a", "b")) == {"a": None, "b": None, "c": 3}


def test_a_complete_task_is_not_given_to_a_sender_that_holds_what_is_marked_already() -> None:
    marks: UnownedMarks[int] = UnownedMarks()
    answers = [marks.add(t, ABC, producer, 1) for producer in ABC]
    assert answers == [None, None, dict.fromkeys(ABC, 1)]
    assert marks.add_held(t, ABC, "a", ("a",)) is None
    assert marks.add(t, ABC, "a", 1) is None
    assert marks.add(t, ABC, "c", 1) == dict.fromkeys(ABC, 1)


def held() -> UnownedMarks[int]:
    """Assign a task to a worker that holds the outputs of a and b."""
    marks: UnownedMarks[int] = UnownedMarks()
    marks.add(t, ABC, "c", 3)
    marks.add_held(t, ABC, "b", ("b", "a"))
    return marks


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_held_task_is_given_again_with_the_last_output_that_was_held(
    order: tuple[str, str],
) -> None:
    marks = held()
    assert marks.add(t, ABC, "c", 0) is None
    assert marks.add(t, ABC, order[0], 1) is None
    found = marks.add(t, ABC, order[1], 1)
    assert found == {"a": 1, "b": 1, "c": 3}


@given(asked=st.sets(st.sampled_from(ABC), min_size=1), saved=st.sets(st.sampled_from(("a", "b"))))
def test_a_held_task_is_given_again_to_a_sender_that_has_everything_held(
    asked: set[str], saved: set[str]
) -> None:
    marks = held()
    answer: Mapping[str, int | None] | None = None
    for producer in sorted(saved):
        answer = marks.add(t, ABC, producer, 1)
    assert (answer is not None) == (saved == {"a", "b"})
    found = marks.add_held(t, ABC, min(asked), tuple(asked))
    if saved != {"a", "b"}:
        assert (found is not None) == (asked >= {"a", "b"} - saved)


def test_a_worker_is_claimed_for_its_first_task_and_again_after_it_parked() -> None:
    starts = Starts()
    assert starts.claim_for_task()
    assert not starts.claim_for_task()
    assert starts.park(1)
    assert starts.claim_for_task()
    assert starts.epoch == 2


def test_the_store_accepts_messages_of_the_latest_start() -> None:
    starts = Starts()
    starts.claim()
    starts.claim()
    assert [starts.accepts(epoch) for epoch in (1, 2, 3)] == [False, True, False]


def test_the_first_invocation_of_a_start_enters() -> None:
    starts = Starts()
    starts.claim()
    assert starts.enter(1)
    assert not starts.enter(1)
    starts.claim()
    assert starts.enter(2)


def test_a_start_is_clean_if_it_is_the_first_or_follows_one_that_parked() -> None:
    starts = Starts()
    starts.claim()
    assert starts.clean(1)
    starts.park(1)
    starts.claim()
    assert starts.clean(2)
    starts.claim()
    assert not starts.clean(3)


def test_a_repeated_hand_over_grants_the_same_start() -> None:
    starts = Starts()
    starts.claim()
    for _ in range(2):
        starts.hand_over(1)
        assert starts.epoch == 2
    assert starts.clean(2)


@pytest.mark.parametrize("leaves", [1, 2])
def test_one_of_two_starts_may_leave_while_the_other_continues(leaves: int) -> None:
    starts = Starts()
    starts.claim_for_task()
    assert starts.add_twin()
    assert not starts.add_twin()
    assert [starts.accepts(epoch) for epoch in (1, 2)] == [True, True]
    assert not starts.park(leaves)
    assert [starts.accepts(epoch) for epoch in (1, 2)] == [leaves == 2, leaves == 1]
    assert starts.claimed


@pytest.mark.parametrize("finishes", [1, 2])
def test_the_first_of_two_starts_to_finish_ends_the_other(finishes: int) -> None:
    starts = Starts()
    starts.claim()
    starts.add_twin()
    starts.finish(finishes)
    assert [starts.accepts(epoch) for epoch in (1, 2)] == [finishes == 1, finishes == 2]
    assert starts.done
