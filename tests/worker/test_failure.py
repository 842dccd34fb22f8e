"""A failure on its way to the client, for any exception."""

from __future__ import annotations

import pytest

from shoal.errors import TaskError
from shoal.types import TaskId, WorkerId
from shoal.worker import failure
from shoal.worker.failure import failure_error, failure_of

KEY = b"key"
HUGE = "a" * 1000 + "x" * 50_000_000 + "z" * 1000


def raised_for(error: Exception) -> TaskError:
    """Return what the client raises for an exception that a worker caught."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - any exception counts
        known = failure_of(caught, "t#0", WorkerId("w0"), "()", KEY)
    return failure_error(TaskId("t#0"), known, (), KEY)


def test_a_50_mb_exception_is_shortened_in_messages_and_intact_as_the_cause() -> None:
    error = raised_for(ValueError(HUGE))
    for shown in (str(error), error.reason, error.remote_traceback):
        assert len(shown) < 50_000
        assert "ValueError: aaa" in shown
        assert "characters in all" in shown
        assert "zzz" in shown
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.args == (HUGE,)


def test_text_of_moderate_length_is_shown_in_full() -> None:
    error = raised_for(ValueError("short\n" * 100))
    assert error.reason == "ValueError: " + "short\n" * 100
    assert "in all" not in str(error)


def test_an_exception_too_large_to_send_is_replaced_by_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failure, "_HEAVIEST", 1000)
    error = raised_for(ValueError("why", bytes(2000)))
    assert isinstance(error.__cause__, RuntimeError)
    assert "why" in str(error.__cause__)
