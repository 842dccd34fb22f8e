"""A mailbox, as data in and data out."""

from __future__ import annotations

from shoal.execution.mail_model import Mailbox


def test_reading_removes_nothing() -> None:
    mailbox: Mailbox[str] = Mailbox()
    mailbox.append("a")
    mailbox.append("b")
    assert [mailbox.after(0) for _ in range(2)] == [[(1, "a"), (2, "b")]] * 2
    assert mailbox.after(1) == [(2, "b")]
    assert mailbox.after(2) == []
    assert mailbox.last == 2


def test_an_empty_mailbox_has_no_last_message() -> None:
    mailbox: Mailbox[str] = Mailbox()
    assert mailbox.last == 0
    assert mailbox.after(0) == []


def test_no_id_is_given_twice_even_after_a_message_was_deleted() -> None:
    mailbox: Mailbox[str | int] = Mailbox()
    for message in ("a", 1, "b", 2):
        mailbox.append(message)
    mailbox.delete(int)
    assert mailbox.after(0) == [(1, "a"), (3, "b")]
    assert mailbox.last == 3
    mailbox.append("c")
    assert mailbox.after(2) == [(3, "b"), (5, "c")]
