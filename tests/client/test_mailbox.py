"""The client reads each letter once, and recognises those of earlier attempts."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.client import mailbox as module
from shoal.client.mailbox import ClientMailbox
from shoal.storage.letters import Letter, OutputReady, Received, WorkerFinished, WorkerLost
from shoal.types import Loss, LossReason, RunId, TaskId, WorkerId


class FakeStore:
    """A stream of letters that is never emptied."""

    def __init__(self, *letters: Received) -> None:
        self.letters = letters

    def receive(self, run: RunId, who: str, after: str, timeout: float) -> list[Received]:
        return [letter for letter in self.letters if letter.id > after]


def letter(number: int, content: Letter | None = None) -> Received:
    finished = WorkerFinished(WorkerId("w0"), f"timeline {number}".encode())
    return Received(str(number), content or finished)


def mailbox(*letters: Received) -> ClientMailbox:
    store: Any = FakeStore(*letters)
    return ClientMailbox(store, RunId("r"))


def test_letters_are_received_until_they_are_marked_as_read() -> None:
    found = mailbox(letter(1), letter(2), letter(3))
    assert [each.id for each in found.receive()] == ["1", "2", "3"]
    found.mark_read("2")
    assert [each.id for each in found.receive()] == ["3"]


def test_letters_of_an_earlier_attempt_are_outdated() -> None:
    found = mailbox()
    found.stale = "2"
    assert [found.outdated(str(number)) for number in (1, 2, 3)] == [True, True, False]


def test_final_timelines_come_from_workers_that_finished() -> None:
    lost = WorkerLost(WorkerId("w1"), Loss(LossReason.DIED))
    found = mailbox(letter(1, OutputReady(TaskId("a"))), letter(2), letter(3, lost))
    assert list(found.last_timelines({WorkerId("w0"), WorkerId("w1")})) == [b"timeline 2"]
    assert found.receive() == []


def test_final_timelines_of_earlier_attempts_do_not_count() -> None:
    found = mailbox(letter(1), letter(2))
    found.stale = "1"
    assert list(found.last_timelines({WorkerId("w0")})) == [b"timeline 2"]


def test_the_client_does_not_wait_long_for_silent_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LAST_SAVES", 0.0)
    assert list(mailbox(letter(1)).last_timelines({WorkerId("silent")})) == [b"timeline 1"]
