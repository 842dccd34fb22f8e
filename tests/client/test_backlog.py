"""Runs that wait to be filed take limited memory, and history loses none that it would keep."""

from __future__ import annotations

from shoal.client.backlog import Backlog, WaitingRun


def waiting(
    number: int, group: str = "a", data: bytes = b"", *, replan: bool = False
) -> WaitingRun:
    return WaitingRun(number, None, group, replan, data)


def taken(backlog: Backlog) -> list[int]:
    return [backlog.take().number for _ in range(len(backlog))]


def test_runs_are_taken_in_their_order() -> None:
    backlog = Backlog(kept=5)
    for number, group in enumerate("abab"):
        backlog.add(waiting(number, group))
    assert backlog.first == 0
    assert taken(backlog) == [0, 1, 2, 3]
    assert backlog.first is None


def test_of_each_group_no_more_wait_than_history_keeps() -> None:
    backlog = Backlog(kept=2)
    for number, group in enumerate("abaaba"):
        backlog.add(waiting(number, group))
    assert taken(backlog) == [1, 3, 4, 5]
    assert backlog.dropped == 0, "history would have deleted them"


def test_a_dropped_run_hands_on_that_a_plan_is_due() -> None:
    backlog = Backlog(kept=1)
    backlog.add(waiting(0, replan=True))
    backlog.add(waiting(1))
    assert backlog.take().replan


def test_the_oldest_are_dropped_if_they_take_too_much_memory() -> None:
    backlog = Backlog(kept=5, most_nbytes=100)
    for number, group in enumerate("abcd"):
        backlog.add(waiting(number, group, bytes(40)))
    assert backlog.dropped == 2
    assert taken(backlog) == [2, 3]
    backlog.add(waiting(4, data=bytes(1000)))
    assert taken(backlog) == [4], "the latest is never dropped"


def test_it_tells_whether_a_later_run_of_the_same_group_waits() -> None:
    backlog = Backlog(kept=5)
    for number, group in enumerate("aba"):
        backlog.add(waiting(number, group))
    assert not backlog.more(waiting(-1), last=-1)
    assert [backlog.more(backlog.take(), last=2) for _ in range(3)] == [True, False, False]
