"""The post-run process lets runs gather, unless somebody waits for them."""

from __future__ import annotations

import pytest

from shoal.client.backlog import WaitingRun
from shoal.client.post_run_frames import Done, Hurry, Settle, Told
from shoal.client.post_run_process import Inbox
from shoal.planning.plan_cache import PlanName


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def inbox(now: list[float]) -> Inbox:
    return Inbox(kept=3, clock=lambda: now[0])


def run(number: int, *, replan: bool = False, group: str = "a") -> WaitingRun:
    return WaitingRun(number, None, group, replan, b"")


def taken(inbox: Inbox) -> int | None:
    found = inbox.next(0.0)[1]
    return None if found is None else found.number


def test_runs_gather_and_are_filed_together(inbox: Inbox, now: list[float]) -> None:
    inbox.put(run(1))
    assert taken(inbox) is None
    now[0] = 0.9
    inbox.put(run(2))
    assert taken(inbox) is None
    now[0] = 1.0
    assert taken(inbox) == 1
    inbox.put(run(3))
    assert [taken(inbox), taken(inbox)] == [2, None], "the third gathers again"
    now[0] = 2.0
    assert taken(inbox) == 3


def test_of_many_runs_only_those_are_filed_that_history_would_keep(
    inbox: Inbox, now: list[float]
) -> None:
    for number in range(1, 100):
        inbox.put(run(number))
    now[0] = 1.0
    assert [inbox.next(0.0)[1:] for _ in range(3)] == [
        (run(97), True),
        (run(98), True),
        (run(99), False),
    ], "learning waits for the last"


def test_learning_does_not_wait_for_runs_that_still_gather(inbox: Inbox, now: list[float]) -> None:
    """In a loop, there are always some."""
    inbox.put(run(1))
    inbox.put(run(2))
    now[0] = 1.0
    assert inbox.next(0.0)[1:] == (run(1), True)
    inbox.put(run(3))
    assert inbox.next(0.0)[1:] == (run(2), False)


def test_filing_comes_before_learning_if_many_runs_wait(inbox: Inbox) -> None:
    for number in range(1, 51):
        inbox.put(run(number, replan=True, group=str(number)))
    later = [inbox.next(0.0)[2] for _ in range(50)]
    assert later == [True] * 29 + [False] * 21


@pytest.mark.parametrize("message", [Settle(), Hurry()])
def test_somebody_who_waits_ends_the_gathering(inbox: Inbox, message: Settle | Hurry) -> None:
    inbox.put(run(1))
    inbox.put(message)
    assert taken(inbox) == 1


def test_a_workflow_that_is_due_to_be_planned_anew_does_not_wait(inbox: Inbox) -> None:
    inbox.put(run(1))
    inbox.put(run(2, replan=True))
    assert [taken(inbox), taken(inbox)] == [1, 2]
    inbox.put(run(3))
    assert taken(inbox) is None


def test_nothing_is_learnt_while_the_session_is_being_closed(inbox: Inbox) -> None:
    inbox.put(run(1))
    inbox.put(Hurry())
    assert inbox.next(0.0) == ([], run(1), True)


def test_plans_come_before_the_runs_that_they_are_for(inbox: Inbox) -> None:
    told = Told(PlanName(1, 0), b"")
    inbox.put(told)
    inbox.put(run(1, replan=True))
    assert inbox.next(0.0) == ([told], run(1, replan=True), False)


def test_the_session_is_told_when_everything_is_done(inbox: Inbox) -> None:
    inbox.put(run(1))
    inbox.put(run(2))
    assert inbox.report(0) is None
    inbox.put(Settle())
    assert taken(inbox) == 1
    assert inbox.report(1) is None
    assert taken(inbox) == 2
    assert inbox.report(2) == Done(2)
    assert inbox.report(2) is None, "it doesn't wait any more"
